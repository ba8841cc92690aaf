"""Packs what executors need beside a Python of the same version: this project's packages and what they import.

``python -m tierlog.pipeline.packing dist/tierlog-spark.tar.gz``. The libraries are those installed here, so that driver
and executors run the same versions. ``spark-submit --archives dist/tierlog-spark.tar.gz#site --conf
spark.executorEnv.PYTHONPATH=site`` unpacks it beside every executor. PySpark comes with Spark itself.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

#: Folders of the package ``tierlog``; executors serve nothing.
FOLDERS = ("index", "pipeline", "tiering")
#: Distributions that those packages import; what these need is found by their metadata.
LIBRARIES = (
    "boto3", "numba", "numpy", "orjson", "pyarrow", "rich", "sortedcontainers", "urllib3", "xxhash", "zstandard",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LEFT_OUT = ("__pycache__", "tests", "include")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the archive and prints how large it is."""
    parser = argparse.ArgumentParser(
        prog="python -m tierlog.pipeline.packing", description="Pack what Spark executors need."
    )
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


def _package() -> Path:
    """Returns the folder of the package ``tierlog``, below which a checkout has the others by links."""
    found = find_spec("tierlog")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the package tierlog is not on the path")
    return Path(found.origin).parent


def _files() -> Iterator[tuple[str, Path]]:
    package = _package()
    for path in (*package.glob("*.py"), *(path for folder in FOLDERS for path in (package / folder).rglob("*"))):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(package.parent).as_posix(), path
    for found in installed(LIBRARIES):
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and path.is_file() and not set(_LEFT_OUT) & set(file.parts):
                yield file.as_posix(), path


def installed(names: Sequence[str]) -> list[Distribution]:
    """Returns the named distributions and all that they need, without extras.

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
