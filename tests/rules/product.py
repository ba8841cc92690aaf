"""The modules of the product, which the rules are about."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.conftest import ROOT

PACKAGES = ("tierlog", "service", "pipeline", "index", "tiering")


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by the name under which it is imported, packages included."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[0] == "tierlog" and parts[1] in PACKAGES:
                continue  # by way of the links to the other four
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join(parts if package == "tierlog" else ("tierlog", *parts))] = path
    return found
