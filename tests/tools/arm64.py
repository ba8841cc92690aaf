"""Runs tests of the kernels on an emulated arm64 processor: ``python -m tests.tools.arm64 [PYTEST ARGUMENTS]``.

QEMU runs Debian's Python for arm64 as a program of this machine, with the libraries that ``requirements/dev.txt``
pins, in their wheels for arm64. numba compiles for a generic processor: without PCLMUL and AVX, with NEON. Root folder,
libraries and compiled kernels stay in the user's cache folder. Shown is that the code is right there, not how fast.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tools.cache import ToolMissingError, alone, cache_folder

_ROOT = Path(__file__).resolve().parents[2]
_QEMU = "qemu-aarch64-static"
_SUITE, _PACKAGES = "bookworm", "python3.11,libstdc++6,libgomp1"
_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
#: What the kernels, their oracles and pytest import.
_LIBRARIES = {
    "annotated-types", "attrs", "hypothesis", "iniconfig", "llvmlite", "numba", "numpy", "packaging", "pluggy",
    "pyarrow", "pydantic", "pydantic-core", "pydantic-settings", "pygments", "pytest", "pytest-timeout",
    "python-dotenv", "sortedcontainers", "typing-extensions", "typing-inspection", "xxhash", "zstandard",
}  # fmt: skip
#: Each compares a kernel with its codec in plain Python, or gives it hostile bytes.
TESTS = (
    "tests/property/test_records.py",
    "tests/property/test_index_kernels.py",
    "tests/tiering/kernels/test_scan.py",
    "tests/tiering/format/test_hashing.py",
)


def arm64_python() -> tuple[Path, Path]:
    """Root folder and libraries of an arm64 Python; raises :class:`ToolMissingError` without QEMU or mmdebstrap."""
    for program, package in ((_QEMU, "qemu-user-static"), ("mmdebstrap", "mmdebstrap")):
        if shutil.which(program) is None:
            raise ToolMissingError(f"no {program} found: install {package}")
    pins = _pins()
    digest = hashlib.sha256(f"{_SUITE} {_PACKAGES}\n{pins}".encode()).hexdigest()[:12]
    folder = cache_folder() / f"arm64-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.parent / "arm64.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as half:
                _build(Path(half) / "built", pins)
                (Path(half) / "built").rename(folder)
    return folder / "root", folder / "site"


def _pins() -> str:
    """The lines of the libraries in the requirements, with their hashes, which are those of every platform."""
    text = (_ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    pins = [pin for pin in re.split(r"\n(?=[a-z0-9])", text) if pin.partition("==")[0] in _LIBRARIES]
    return "\n".join(pins) + "\n"


def _build(folder: Path, pins: str) -> None:
    folder.mkdir()
    extract = ("--variant=extract", "--architectures=arm64", f"--include={_PACKAGES}", "--quiet")
    subprocess.run(["mmdebstrap", *extract, _SUITE, str(folder / "root")], check=True)  # nothing of it is run
    (folder / "pins.txt").write_text(pins, encoding="utf-8")
    platforms = [option for name in _PLATFORMS for option in ("--platform", name)]
    only = ("--python-version", "3.11", "--implementation", "cp", "--only-binary", ":all:", "--no-deps")
    where = ("--target", str(folder / "site"), "--require-hashes", "--requirement", str(folder / "pins.txt"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", *platforms, *only, *where]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    subprocess.run(command, env=environment, check=True)


def main() -> None:
    """Become pytest on the emulated processor."""
    root, site = arm64_python()
    arguments = sys.argv[1:] or ["-q", "-m", "not slow", *TESTS]
    environment = os.environ | {
        "PYTHONPATH": f"{site}:{_ROOT}",
        "NUMBA_CACHE_DIR": str(site.parent / "kernels"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = [_QEMU, "-L", str(root), str(root / "usr/bin/python3.11")]
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "1800", *arguments]
    os.chdir(_ROOT)
    os.execvpe(_QEMU, [*python, *pytest], environment)


if __name__ == "__main__":
    main()
