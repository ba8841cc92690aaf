"""The error tree is the one its docstring draws."""

from __future__ import annotations

import re

import pytest

from tierlog.tiering.base import errors
from tierlog.tiering.base.errors import StoreError


def classes() -> dict[str, type[StoreError]]:
    found = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    return {name: each for name, each in found.items() if issubclass(each, StoreError)}


def drawn() -> dict[str, str]:
    """Class name to parent's name, from the drawing."""
    assert errors.__doc__ is not None
    parents, stack = {}, [(0, "StoreError")]
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ([│ ]*)(?:├──|└──) (\w+)", line)
        if match:
            depth = len(match[1]) // 4 + 1
            stack = [item for item in stack if item[0] < depth]
            parents[match[2]] = stack[-1][1]
            stack.append((depth, match[2]))
    return parents


def test_drawing_is_the_tree() -> None:
    parents = {
        name: next(base.__name__ for base in each.__bases__ if issubclass(base, StoreError))
        for name, each in classes().items()
        if each is not StoreError
    }
    assert drawn() == parents


def test_only_what_passes_is_worth_another_try() -> None:
    assert {name for name, each in classes().items() if each.retryable} == {
        "UnavailableError", "ObjectStoreUnavailableError", "ThrottledError", "OutOfResourcesError", "OverloadedError",
        "DeadlineError",
        "RequestUnderWayError", "InFlightError",
    }  # fmt: skip


def test_builtin_kin() -> None:
    assert issubclass(errors.InvalidRequestError, ValueError)
    assert issubclass(errors.ObjectNotFoundError, LookupError)
    assert not issubclass(StoreError, (ValueError, OSError))


@pytest.mark.parametrize("name", classes())
def test_place_and_hint_are_kept_apart(name: str) -> None:
    error = classes()[name]("what is wrong", path="a/b", position=7, hint="do this")
    assert str(error) == "what is wrong [a/b at 7]; do this"
    assert (error.message, error.path, error.position, error.hint) == ("what is wrong", "a/b", 7, "do this")
    assert str(classes()[name]("plain")) == "plain"
    assert str(classes()[name]("with path", path="p")) == "with path [p]"
    assert classes()[name].__doc__
