"""Messages that are looked at together become the batch, or the error, that they become one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tiering.message.test_arrow_batch import outcome
from tierlog.tiering.message.batch import BORN_END_MS, MAX_QUEUES, Message, MessageBatch

_TEXT = st.one_of(
    st.text(st.sampled_from("abü€😀 \x00\x01\x02\x7f\xa0"), max_size=4),
    st.sampled_from(["\ud800", "k" * 40_000, "\0" * 512]),
)
_GOOD = st.text(st.sampled_from("abü€😀"), min_size=1, max_size=6)
_MESSAGE = st.builds(
    Message,
    st.sampled_from(["t", "u", "orders", "bad topic", ""]),
    st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from([b"", b"x" * 101])),
    st.lists(st.one_of(_GOOD, _TEXT), max_size=3),
    st.one_of(_GOOD, _TEXT, st.just("")),
    st.dictionaries(st.one_of(_GOOD, _TEXT, st.just("KEYS")), st.one_of(_GOOD, _TEXT), max_size=2),
    st.sampled_from([None, 0, 5, -1, BORN_END_MS - 1, BORN_END_MS]),
    st.sampled_from([-1, 0, 3, MAX_QUEUES - 1, MAX_QUEUES, -2]),
)
_GOOD_MESSAGE = st.builds(
    Message,
    st.sampled_from(["t", "u", "%RETRY%group"]),
    st.binary(min_size=1, max_size=12),
    st.lists(_GOOD, max_size=3),
    st.one_of(_GOOD, st.just("")),
    st.dictionaries(_GOOD, _GOOD, max_size=2),
    st.sampled_from([None, 0, BORN_END_MS - 1]),
    st.sampled_from([-1, 0, MAX_QUEUES - 1]),
)


def _outcome(make: Callable[..., MessageBatch], messages: list[Message]) -> Any:
    return outcome(lambda: make(messages, now_ms=7, max_body_bytes=100))


@given(messages=st.one_of(st.lists(_GOOD_MESSAGE, max_size=5), st.lists(_GOOD_MESSAGE | _MESSAGE, max_size=5)))
def test_the_outcome_is_that_of_one_message_after_another(messages: list[Message]) -> None:
    assert _outcome(MessageBatch.of, messages) == _outcome(MessageBatch.one_by_one, messages)


@given(messages=st.lists(_GOOD_MESSAGE, min_size=1, max_size=5))
def test_ordinary_messages_are_not_looked_at_one_by_one(messages: list[Message]) -> None:
    assert MessageBatch._at_a_glance(messages, 7, 100) is not None
