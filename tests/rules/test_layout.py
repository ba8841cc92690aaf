"""The rules of the layout: how large folders and modules are, and which module stands alone.

Which folder may import which is checked by the import contracts in ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.rules.product import modules

MOST_FILES = 562
MOST_MODULES_IN_A_FOLDER = 21
#: A module a command; two folders would only hide half of them.
LARGER_FOLDERS = {"service/cli/commands": 28}
MOST_LINES = 800
#: Where the parts of a store are put together, and by which function.
COMPOSITION = "tierlog.service.engine.opening", "_open_once"
MOST_LINES_TO_COMPOSE = 59
#: Modules that only one other imports, and why each is not a part of that one.
REASONS = Path(__file__).with_name("single_importers.toml")


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports of the product, wherever in its text."""
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        taken: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                taken.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    taken.add(inner if inner in modules() else node.module)
        found[name] = {other for other in taken if other in modules() and other != name}
    return found


def is_package(name: str) -> bool:
    return modules()[name].name == "__init__.py"


def test_the_product_has_few_enough_files() -> None:
    assert len(modules()) <= MOST_FILES


def test_a_folder_holds_no_more_than_can_be_seen_at_once() -> None:
    folders = Counter(
        path.parent.relative_to(ROOT).as_posix() for path in modules().values() if path.stem != "__init__"
    )
    most = dict.fromkeys(folders, MOST_MODULES_IN_A_FOLDER) | LARGER_FOLDERS
    assert {folder: count for folder, count in folders.items() if count > most[folder]} == {}


def test_a_module_can_be_read_in_one_sitting() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_a_store_is_put_together_by_one_short_function_that_leaves_each_part_to_another() -> None:
    module, root = COMPOSITION
    functions = [node for node in ast.parse(modules()[module].read_bytes()).body if isinstance(node, ast.FunctionDef)]
    lines = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert root in lines
    assert {name: count for name, count in lines.items() if count > MOST_LINES_TO_COMPOSE} == {}


def test_a_module_with_one_importer_has_a_reason() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for name, taken in imports().items():
        for other in taken:
            importers[other].add(name)
    alone = {name for name in modules() if not is_package(name) and len(importers[name]) == 1}
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    told = {f"tierlog.{name}" for name in reasons}
    folders = {name for name in told if name in modules() and is_package(name)}
    without = {name for name in alone - told if name.rpartition(".")[0] not in folders}
    assert sorted(without) == [], "these join the module that imports them, or get a reason"
    assert sorted(told - alone - folders) == [], "these are imported by none or by several, and need no reason"


def order(graph: dict[str, set[str]]) -> list[str]:
    """Modules, each behind what it imports; fails on a circle, and names it."""
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_no_modules_import_each_other() -> None:
    """Be it inside a function or for types alone."""
    assert order(imports())


def test_a_circle_is_found_and_named() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"index\.a"):
        order({"index.a": {"index.b"}, "index.b": {"index.a"}})
