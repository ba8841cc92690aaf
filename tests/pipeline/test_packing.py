"""What is packed for Spark's executors."""

from __future__ import annotations

import ast
import sys
import tarfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tierlog.pipeline.packing import FOLDERS, LIBRARIES, installed, main

#: Spark brings its own.
_OF_SPARK = {"pyspark", "py4j"}


def imported_libraries() -> set[str]:
    """Distributions that the packed packages import."""
    names: set[str] = set()
    for package in FOLDERS:
        for path in (ROOT / "tierlog" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names.update(alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.partition(".")[0])
    modules = names - set(sys.stdlib_module_names) - {"tierlog"}
    known = packages_distributions()
    return {known[module][0].lower() for module in modules - _OF_SPARK}


def test_every_library_that_executors_import_is_packed() -> None:
    packed = {found.name.lower() for found in installed(LIBRARIES)}
    assert imported_libraries() <= packed
    assert not packed & _OF_SPARK
    assert "fastapi" not in packed


@pytest.mark.slow
def test_the_archive_holds_packages_and_libraries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dist" / "packed.tar.gz"
    assert main([str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size} bytes\n"
    with tarfile.open(out) as archive:
        names = set(archive.getnames())
    assert {
        "tierlog/pipeline/packing.py",
        "tierlog/tiering/base/fs.py",
        "tierlog/index/search/query.py",
        "numpy/__init__.py",
        "six.py",
    } <= names
    assert not [name for name in names if name.startswith(("tierlog/service/", "service/", "pyspark/", "/", ".."))]
    assert list(out.parent.iterdir()) == [out]
