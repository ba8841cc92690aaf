"""Packs what executors need beside a Python of the same version: this project's packages and what they import.

``python -m pipeline.packing dist/tierlog-spark.tar.gz``. The libraries are those installed here, so that driver and
executors run the same versions. ``spark-submit --archives dist/tierlog-spark.tar.gz#site --conf
spark.executorEnv.PYTHONPATH=site`` unpacks it beside every executor. PySpark comes with Spark itself.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PACKAGES = ("index", "pipeline", "tiering")
#: Distributions that those packages import; what these need is found by their metadata.
LIBRARIES = ("boto3", "numba", "numpy", "pyarrow", "rich", "sortedcontainers", "urllib3", "xxhash", "zstandard")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HERE = Path(__file__).resolve().parent.parent
_LEFT_OUT = ("__pycache__", "tests", "include")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the archive and say how large it is."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.packing", description="Pack what Spark executors need.")
    parser.add_argument("out", type=Path, metavar="FILE.tar.gz")
    out: Path = parser.parse_args(argv).out
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(out.name + ".part")
    with tarfile.open(draft, "w:gz", compresslevel=1) as archive:  # it travels once, and is packed often
        for name, path in sorted(_files()):
            archive.add(path, name, recursive=False)
    draft.replace(out)
    print(f"{out}: {out.stat().st_size} bytes")
    return 0


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in (_HERE / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(_HERE).as_posix(), path
    for found in installed(LIBRARIES):
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and path.is_file() and not set(_LEFT_OUT) & set(file.parts):
                yield file.as_posix(), path


def installed(names: Sequence[str]) -> list[Distribution]:
    """The named distributions and all that they need, without extras.

    Raises :class:`PackageNotFoundError` for a named one that is not installed; what another needs and is not installed
    is for another kind of machine.
    """
    found = {_plain(name): distribution(name) for name in names}
    waiting = list(found.values())
    while waiting:
        for requirement in waiting.pop().requires or ():
            named, marker = _NAME.match(requirement), requirement.partition(";")[2]
            if named is None or "extra" in marker or _plain(named[0]) in found:
                continue
            try:
                needed = distribution(named[0])
            except PackageNotFoundError:
                continue
            found[_plain(named[0])] = needed
            waiting.append(needed)
    return list(found.values())


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
