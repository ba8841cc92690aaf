"""What a program may import of the package ``tierlog``, and that it costs nothing until it is used."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import tierlog
from tests.conftest import ROOT
from tierlog.tiering.base import errors as base_errors

NAMES = {
    "Answer", "Appended", "AppendedColumns", "Archive", "ArchiveReport", "AsyncProducer", "AxisHint", "Block",
    "Boundary", "ClientMessages", "CostEstimate", "CostRange", "CountQuery", "Coverage", "Durability", "Failure",
    "FileInfo", "Finding", "Findings", "HotKeys", "HotPage", "HotRecord", "HotRecords", "IdempotencyKey",
    "IntervalCounts", "LogDamage", "LostMessages", "Message", "MessageReader", "Order", "PendingMessages", "Producer",
    "PullResult", "PullStatus", "PulledBatch", "PulledRecords", "Querier", "Query", "QueueInfo", "ReadinessProblem",
    "Record", "RepairReport", "Settings", "Store", "StoreCoverage", "StoreReader", "StoredMessage", "Tier",
    "TierCoverage", "TimeAxis", "TimeRange", "Timeline", "TimelineView", "TopicInfo", "errors",
}  # fmt: skip

#: Names in public signatures that are not public themselves, and why.
INNER = {
    # seams that tests replace; docs/adding_an_object_store.md is for those who bring a store of their own
    **dict.fromkeys(("Clock", "FileSystem", "ObjectStore", "Randomness", "Tracer"), "a seam"),
    **dict.fromkeys(
        ("HotOptions", "TailOptions", "ColdOptions", "RetentionOptions"), "settings as the store takes them"
    ),
    **dict.fromkeys(
        ("ClusterView", "LocalStores", "ArchivedStore", "FileState", "Total", "Tombstone"),
        "for the service in this process",
    ),
    **dict.fromkeys(("AppendResult", "MessageBatch", "LoneMessage"), "between an append and its store"),
    **dict.fromkeys(("HotSnapshot", "IndexSnapshot", "Erasures", "Generation"), "HotKeys is made by Store.hot_keys"),
    "MessageFilters": "what the filters of a query say, made by it",
    "RecordVersion": "the version of a record's bytes",
}


def test_the_public_names_are_these() -> None:
    """A name that goes or changes breaks programs: it needs an entry in the changelog."""
    assert set(tierlog.__all__) == NAMES
    assert sorted(tierlog.__all__) == tierlog.__all__


def test_every_public_name_is_there_under_its_own_name() -> None:
    for name in tierlog.__all__:
        found = getattr(tierlog, name)
        assert found.__name__.rpartition(".")[2] == name
        assert found.__doc__


def _signatures(public: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """The annotations of each public method and property, and of the fields of a dataclass.

    Stores, archives and queriers are opened, not made: their constructors do not count. Nor do sections of settings.
    """
    for name, member in vars(public).items():
        found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        is_made = name == "__init__" and not hasattr(public, "open")
        if isinstance(found, FunctionType) and (is_made or not name.startswith("_")):
            yield name, found.__annotations__
    if public is not tierlog.Settings:
        yield "fields", {name: kind for name, kind in inspect.get_annotations(public).items() if name[0] != "_"}


def _names_of(annotation: object) -> set[str]:
    written = getattr(annotation, "__forward_arg__", annotation)  # a named tuple has them so
    text = written if isinstance(written, str) else getattr(written, "__name__", str(written))
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _typing_imports(module: str) -> dict[str, object]:
    """What a module imports for type checkers alone, by name; None for another library as a whole."""
    tree = ast.parse(Path(sys.modules[module].__file__ or "").read_bytes())
    found: dict[str, object] = {}
    for node in (node for block in tree.body if isinstance(block, ast.If) for node in ast.walk(block)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: None for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = import_module(node.module or "")
            found |= {alias.asname or alias.name: getattr(source, alias.name) for alias in node.names}
    return found


def test_public_methods_take_and_return_public_types() -> None:
    inner: set[str] = set()
    for public in [getattr(tierlog, name) for name in NAMES - {"errors"}]:  # each is there once it was asked for
        module = sys.modules[public.__module__]
        for_checkers = _typing_imports(public.__module__)
        known = {**vars(builtins), **for_checkers, **vars(module)}
        for method, declared in _signatures(public):
            for name in set().union(*map(_names_of, declared.values())):
                found = known.get(name)
                is_ours = str(getattr(found, "__module__", "")).startswith("tierlog")
                if found is None:
                    assert name in for_checkers, f"{public.__name__}.{method}: {name}"
                elif is_ours and found is not vars(tierlog).get(name):
                    assert name in INNER, f"{public.__name__}.{method}: {name} is not public"
                    inner.add(name)
    assert inner == set(INNER)


def test_stores_archives_and_queriers_are_readers() -> None:
    """Type checkers compare the signatures; what runs here only names them."""

    def whole(store: tierlog.Store, archive: tierlog.Archive) -> list[tierlog.StoreReader]:
        return [store, archive]

    def reading(store: tierlog.StoreReader, querier: tierlog.Querier) -> list[tierlog.MessageReader]:
        return [store, querier]

    assert callable(whole)
    assert callable(reading)


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
