"""How many arguments go by position: few enough that a reader, and a type checker, sees two that were swapped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT
from tests.rules.product import modules

MOST_PARAMETERS = 5
MOST_ARGUMENTS = 8
#: Of ``struct.Struct``, which knows no keywords.
_WITHOUT_KEYWORDS = ("pack", "pack_into")

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _wide_functions(tree: ast.AST) -> Iterator[int]:
    """The lines of functions with too many parameters that can go by position."""
    methods = {item for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body}
    for node in ast.walk(tree):
        if isinstance(node, Function):
            names = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)]
            is_bound = node in methods and names[:1] in (["self"], ["cls"])
            if len(names) - is_bound > MOST_PARAMETERS:
                yield node.lineno


def _wide_calls(tree: ast.AST) -> Iterator[int]:
    """The lines of calls with too many arguments by position; one with a star counts as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > MOST_ARGUMENTS:
            has_keywords = not (isinstance(node.func, ast.Attribute) and node.func.attr in _WITHOUT_KEYWORDS)
            if has_keywords:
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f(a, b, c, d, e): ...", []),
        ("def f(a, b, c, d, e, f): ...", [1]),
        ("def f(a, b, c, d, e, *, f, g): ...", []),
        ("def f(a, b, c, /, d, e, f): ...", [1]),
        ("async def f(a, b, c, d, e, f=1): ...", [1]),
        ("f = lambda a, b, c, d, e, f: a", [1]),
        ("class C:\n    def f(self, a, b, c, d, e): ...", []),
        ("class C:\n    def f(cls, a, b, c, d, e, f): ...", [2]),
        ("def f(self, a, b, c, d, e): ...", [1]),
    ],
)
def test_functions_with_too_many_parameters_are_found(source: str, lines: list[int]) -> None:
    assert list(_wide_functions(ast.parse(source))) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("f(1, 2, 3, 4, 5, 6, 7, 8)", []),
        ("f(1, 2, 3, 4, 5, 6, 7, 8, 9)", [1]),
        ("f(\n    1, 2, 3, 4, 5, 6, 7, 8, *more)", [1]),
        ("f(1, 2, 3, 4, 5, 6, 7, 8, nine=9)", []),
        ("_HEAD.pack(1, 2, 3, 4, 5, 6, 7, 8, 9)", []),
    ],
)
def test_calls_with_too_many_arguments_are_found(source: str, lines: list[int]) -> None:
    assert list(_wide_calls(ast.parse(source))) == lines


def test_no_function_takes_many_arguments_by_position_and_no_call_passes_them() -> None:
    found = []
    for path in modules().values():
        tree = ast.parse(path.read_bytes(), filename=str(path))
        found += [f"{path.relative_to(ROOT)}:{line}: parameters" for line in _wide_functions(tree)]
        found += [f"{path.relative_to(ROOT)}:{line}: arguments" for line in _wide_calls(tree)]
    assert found == []
