"""What is said of messages that would go, whatever the store answers, and what is taken for a yes."""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any, cast

import pytest

from tierlog.index.search.query import Query
from tierlog.service.cli.removal_guard import extent, is_agreed, refuse_whole_topic
from tierlog.service.cli.targets import Writer
from tierlog.tiering.base.errors import (
    ForbiddenError,
    InvalidRequestError,
    ObjectStoreUnavailableError,
    StoreError,
    TopicNotFoundError,
)
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import Order

ORDERS = Query("orders")


class Answers:
    """A target that answers a dry run, a question for one message, and for topics, or refuses each."""

    def __init__(self, matched: object = None, stored: object = None, ends: object = None) -> None:
        self._matched, self._stored, self._ends = matched, stored, ends

    def erase(self, query: Query, *, dry_run: bool, **_: object) -> Any:
        assert dry_run, "nothing is erased to be counted"
        return {"matched": _told(self._matched)}

    def query(self, query: Query) -> Any:
        first, last = cast("tuple[str, str]", _told(self._stored))
        return {"messages": [{"store_ms": parse_time(first if query.order is Order.OLDEST else last)}]}

    def topics(self) -> Any:
        return [{"topic": "orders", "messages": 7}, {"topic": "t", "messages": 0}]


def _told(answer: object) -> object:
    if isinstance(answer, StoreError):
        raise answer
    return answer


def target(*answers: object) -> Writer:
    return cast("Writer", Answers(*answers))


STORED = ("2026-03-01", "2026-03-02T10:00:00Z")
BETWEEN = "stored from 2026-03-01T00:00:00.000Z to 2026-03-02T10:00:00.000Z"


@pytest.mark.parametrize(
    ("matched", "stored", "said"),
    [
        ({"hot": 4000, "cold": 1, "complete": True}, STORED, f"4,001 messages, {BETWEEN}"),
        ({"hot": 1, "cold": 0, "complete": True}, STORED, f"1 message, {BETWEEN}"),
        ({"hot": 5, "cold": 9, "complete": False}, STORED, f"at least 14 messages, {BETWEEN}"),
        ({"hot": 0, "cold": 0, "complete": True}, STORED, "no messages"),
        ({"hot": 2, "cold": 0, "complete": True}, ForbiddenError("no right to read"), "2 messages"),
        (InvalidRequestError("no cold tier"), STORED, f"7 messages, {BETWEEN}"),
        (
            ObjectStoreUnavailableError("it is down"), ObjectStoreUnavailableError("it is down"),
            "how many messages cannot be told (it is down)",
        ),
    ],
)  # fmt: skip
def test_what_would_go_is_told_as_far_as_the_store_tells_it(matched: object, stored: object, said: str) -> None:
    assert extent(target(matched, stored), ORDERS) == said
    with pytest.raises(InvalidRequestError) as refused:
        refuse_whole_topic(target(matched, stored), "orders", would="erases", hint="--all")
    assert refused.value.message == f"this erases topic 'orders' as a whole: {said}"


def test_a_topic_that_is_not_there_is_named_instead() -> None:
    with pytest.raises(TopicNotFoundError):
        refuse_whole_topic(target(TopicNotFoundError("no such topic")), "orders", would="erases", hint="--all")


@pytest.mark.parametrize(
    ("typed", "is_agreed_to"),
    [("y\n", True), (" YES \n", True), ("\n", False), ("n\n", False), ("yess\n", False), ("", False)],
)
def test_only_a_yes_is_one(
    typed: str, is_agreed_to: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal(typed, monkeypatch)
    asked = target({"hot": 3, "cold": 0, "complete": True}, STORED)
    assert is_agreed(asked, ORDERS, argparse.Namespace(yes=False), will="this erases all") == is_agreed_to
    said = capsys.readouterr().err
    assert f"this erases all: 3 messages, {BETWEEN}." in said
    assert ("nothing was removed" in said) != is_agreed_to


def test_a_deletion_that_the_archive_was_not_told_of_can_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has no such topic any more, and only the deletion itself knows that there is something left to do."""
    at_terminal("", monkeypatch)
    gone = target(TopicNotFoundError("no such topic"))
    assert is_agreed(gone, ORDERS, argparse.Namespace(yes=False), will="this deletes")


def at_terminal(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard = io.StringIO(typed)
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
