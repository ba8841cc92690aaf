"""What is shipped is named byte for byte: images by digest, libraries by hash."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

_ROOT = Path(__file__).resolve().parents[2]
_DIGEST = r"@sha256:[0-9a-f]{64}"


def test_images_of_others_are_pinned_by_digest() -> None:
    dockerfile = (_ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    for base in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE):
        assert base in stages | {"${BASE_IMAGE}"}
    (default,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    assert re.search(_DIGEST + "$", default)
    compose = yaml.safe_load((_ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    for name, service in compose["services"].items():
        assert "build" in service or re.search(_DIGEST, service["image"]), name


def test_every_pin_has_a_hash() -> None:
    for file in sorted((_ROOT / "requirements").glob("*.txt")):
        pins = re.split(r"\n(?=\S)", file.read_text(encoding="utf-8").strip())
        assert pins
        for pin in (each for each in pins if not each.startswith("#")):
            assert re.match(r"[a-z0-9.-]+==\S+ \\\n\s+--hash=sha256:[0-9a-f]{64}", pin), f"{file.name}: {pin[:60]}"


def test_what_is_shipped_is_listed_and_asked_about() -> None:
    """`make sbom` and `make audit` go through the requirements of every image, which are all that images install."""
    shipped = re.search(r"^SHIPPED := (.*)$", (_ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert shipped is not None
    dockerfile = (_ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    installed = set(re.findall(r"requirements/(\w+)\.txt", dockerfile)) - {
        "dev"
    }  # of which setuptools alone builds Spark
    assert installed <= set(shipped[1].split())
