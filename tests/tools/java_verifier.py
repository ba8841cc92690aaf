"""Builds the Java program of ``tests/rocketmq``: ``python -m tests.tools.java_verifier``.

The result lies in the user's cache folder, not in the checkout, under a name that holds RocketMQ's version and a hash
of the sources, so that a second run only looks. Maven gets the jars from where this machine's Maven is set up to.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.tools.cache import ToolMissingError, cache_folder

_PROJECT = Path(__file__).resolve().parents[1] / "rocketmq"
_BUILD_LIMIT_S = 900


def build_java_verifier() -> str:
    """The class path of the built program; raises :class:`ToolMissingError` without Maven or a JDK."""
    folder = cache_folder() / f"rocketmq-{_rocketmq_version()}-{_hash_of_sources()}"
    for program, package in (("java", "a JDK, 17 or newer"), ("javac", "a JDK, 17 or newer"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise ToolMissingError(f"no {program} found: install {package}")
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as half:
            _build(Path(half))
            try:
                (Path(half) / "built").rename(folder)
            except OSError:
                if not folder.is_dir():  # else somebody else was faster
                    raise
    return f"{folder / 'classes'}{os.pathsep}{folder / 'lib'}/*"


def _sources() -> list[Path]:
    return [_PROJECT / "pom.xml", *sorted(path for path in (_PROJECT / "src").rglob("*") if path.is_file())]


def _rocketmq_version() -> str:
    found = re.search(r"<rocketmq\.version>([\w.]+)<", (_PROJECT / "pom.xml").read_text(encoding="utf-8"))
    assert found, "pom.xml names no version of RocketMQ"
    return found[1]


def _hash_of_sources() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_PROJECT)} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12]


def _build(half: Path) -> None:
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(_PROJECT / "pom.xml"), "compile"]
    done = subprocess.run(
        [*command, f"-DbuildDirectory={half / 'built'}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_BUILD_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


if __name__ == "__main__":
    print(build_java_verifier())
