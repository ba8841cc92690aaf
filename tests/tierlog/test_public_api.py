"""What a program may import of the package ``tierlog``, and that it costs nothing until it is used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tierlog
from tests.conftest import ROOT
from tierlog.tiering.base import errors as base_errors

NAMES = {
    "Answer", "Archive", "AsyncProducer", "Boundary", "Coverage", "Durability", "IdempotencyKey", "Message", "Order",
    "Producer", "PullResult", "PulledBatch", "Querier", "Query", "Settings", "Store", "StoredMessage", "TimeAxis",
    "errors",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    """A name that goes or changes breaks programs: it needs an entry in the changelog."""
    assert set(tierlog.__all__) == NAMES
    assert sorted(tierlog.__all__) == tierlog.__all__


def test_every_public_name_is_there_under_its_own_name() -> None:
    for name in tierlog.__all__:
        found = getattr(tierlog, name)
        assert found.__name__.rpartition(".")[2] == name
        assert found.__doc__


def test_type_checkers_see_the_names_that_are_loaded() -> None:
    tree = ast.parse(Path(tierlog.__file__).read_bytes())
    (shown,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        (alias.asname or alias.name, node.module)
        for node in ast.walk(shown)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {(name, home) for name, home in tierlog._HOMES.items()}
    assert imported == homes | {("errors", "tierlog"), ("client", "tierlog")}


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'tierlog' has no attribute 'Engine'"):
        _ = tierlog.Engine
    assert set(dir(tierlog)) == NAMES | {"client"}


def test_what_dir_lists_is_there() -> None:
    """In a process of its own: what another test has imported is there anyhow."""
    script = "import json, tierlog; print(json.dumps([getattr(tierlog, name).__name__ for name in dir(tierlog)]))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.rpartition(".")[2] for name in json.loads(done.stdout)} == NAMES | {"client"}


def test_the_errors_are_a_module_and_all_of_them_are_in_it() -> None:
    script = "from tierlog.errors import StoreError; import tierlog; assert tierlog.errors.StoreError is StoreError"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    found = {kind.__name__ for kind in vars(base_errors).values() if isinstance(kind, type)}
    assert found == set(tierlog.errors.__all__)
    assert all(getattr(tierlog.errors, name) is getattr(base_errors, name) for name in found)


def test_importing_the_package_loads_nothing_of_it() -> None:
    """The client, executors of Spark and the health check come through it."""
    script = "import json, sys, tierlog; print(json.dumps([name for name in sys.modules if 'tierlog' in name]))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["tierlog"]


def test_the_pages_import_the_public_names_alone() -> None:
    """README and docs show programs what they may import; the page for those who add an object store goes deeper."""
    allowed = (
        "tierlog", "tierlog.errors", "tierlog.client", "tierlog.client.errors", "tierlog.pipeline.source",
        "tierlog.pipeline.jobs",
    )  # fmt: skip
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [
        f"{page.name}: {line.strip()}"
        for page in pages
        if page.name != "adding_an_object_store.md"
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("from tierlog.", "from tierlog ", "import tierlog"))
        and line.split()[1] not in allowed
    ]
    assert found == []
