"""Appends that come at once go together, and each has the answer that it would have had alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Sequence

import numpy as np
import pytest

from tierlog.service.api.application.append_fast_path import AppendBatcher
from tierlog.service.api.lanes import Lanes
from tierlog.service.config.serve import ServeSettings
from tierlog.service.engine.append_results import AppendedColumns
from tierlog.tiering.base.errors import DeadlineError, DiskFullError, InvalidRequestError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message


class _Log:
    """Notes each batch, which waits until it may go on; a body ``bad`` is refused, ``full`` fails."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self._end = 0

    def append(self, messages: Sequence[Message], durability: Durability) -> AppendedColumns:
        self.batches.append([message.body for message in messages])
        self.begun.set()
        assert self.may_go_on.wait(30)
        if b"bad" in self.batches[-1]:
            raise InvalidRequestError("bad")
        if b"full" in self.batches[-1]:
            raise DiskFullError("full")
        first, self._end = self._end, self._end + len(messages)
        offsets = np.arange(first, self._end)
        zeros = np.zeros(len(messages), np.int64)
        return AppendedColumns(100 * offsets, zeros.astype(np.int32), offsets, zeros, [bytes(8)] * len(messages))


#: Of one request.
_Answer = bytes | BaseException | None


def _offsets(answer: _Answer) -> list[int]:
    assert isinstance(answer, bytes)
    return [one["queue_offset"] for one in json.loads(answer)["results"]]


def _run(log: _Log, requests: Sequence[Sequence[bytes]], timeout_ms: int = 30_000) -> list[_Answer]:
    """The answers to a first request and, while that is being appended, all the others."""

    async def ask() -> list[_Answer]:
        gathering = AppendBatcher(log.append, Lanes(ServeSettings(request_timeout_ms=timeout_ms)).append)

        def send(bodies: Sequence[bytes]) -> Awaitable[bytes | None]:
            messages = [Message("orders", body) for body in bodies]
            return asyncio.ensure_future(
                gathering.append(
                    "orders", Durability.ASYNC, len(messages), lambda: None if b"odd" in bodies else messages
                )
            )

        first = send(requests[0])
        await asyncio.to_thread(log.begun.wait, 30)
        others = [send(bodies) for bodies in requests[1:]]
        await asyncio.sleep(0)
        if timeout_ms < 30_000:
            return list(await asyncio.gather(first, *others, return_exceptions=True))
        log.may_go_on.set()
        return list(await asyncio.gather(first, *others, return_exceptions=True))

    return asyncio.run(ask())


def test_what_comes_while_a_group_is_appended_goes_together_and_in_order() -> None:
    log = _Log()
    answers = _run(log, [[b"a"], [b"b", b"c"], [b"d"]])
    assert log.batches == [[b"a"], [b"b", b"c", b"d"]]
    assert [_offsets(answer) for answer in answers] == [[0], [1, 2], [3]]


def test_a_message_that_is_refused_takes_nobody_with_it() -> None:
    log = _Log()
    answers = _run(log, [[b"a"], [b"b"], [b"c", b"bad"], [b"d"]])
    assert isinstance(answers[2], InvalidRequestError)
    assert [_offsets(answers[place]) for place in (0, 1, 3)] == [[0], [1], [2]]


def test_a_body_that_is_not_for_this_is_left_and_the_others_go_on() -> None:
    log = _Log()
    answers = _run(log, [[b"first"], [b"odd"], [b"a"], [b"odd"], [b"b"]])
    assert log.batches == [[b"first"], [b"a", b"b"]]
    assert [None if answer is None else _offsets(answer) for answer in answers] == [[0], None, [1], None, [2]]


def test_what_may_have_been_written_is_not_appended_again() -> None:
    log = _Log()
    answers = _run(log, [[b"a"], [b"full"], [b"b"]])
    assert log.batches == [[b"a"], [b"full", b"b"]]
    assert [type(answer) for answer in answers[1:]] == [DiskFullError, DiskFullError]


def test_a_group_has_a_bound_and_one_large_request_goes_all_the_same() -> None:
    log = _Log()
    _run(log, [[b"a"], [b"b"] * 600, [b"c"] * 600, [b"d"] * 1_200])
    assert [len(batch) for batch in log.batches] == [1, 600, 600, 1_200]


def test_who_waits_for_too_long_is_told_so_and_leaves_the_way_free() -> None:
    log = _Log()
    answers = _run(log, [[b"a"], [b"b"]], timeout_ms=50)
    assert [type(answer) for answer in answers] == [DeadlineError, DeadlineError]
    log.may_go_on.set()


@pytest.mark.parametrize("count", [1, 64])
def test_an_application_that_was_cut_off_gathers_again(count: int) -> None:
    log = _Log()
    gathering = AppendBatcher(log.append, Lanes(ServeSettings()).append)

    async def cut_off() -> None:
        tasks = [
            asyncio.ensure_future(gathering.append("orders", Durability.ASYNC, 1, lambda: [Message("orders", b"a")]))
            for _ in range(count)
        ]
        await asyncio.to_thread(log.begun.wait, 30)
        for task in tasks:
            task.cancel()

    asyncio.run(cut_off())
    log.may_go_on.set()
    answer = asyncio.run(gathering.append("orders", Durability.ASYNC, 1, lambda: [Message("orders", b"b")]))
    assert len(_offsets(answer)) == 1
