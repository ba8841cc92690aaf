"""Small appends that come at once go into the log together: one hop to a thread, one append, one flush for all.

While a group is being appended, the next one gathers; so a request that is alone waits for nobody, and of many each
waits for one group at most before its own. Nothing is known of requests but their messages: one that is refused is
appended by itself then, so that each has its own answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.api.lanes import Lane
from service.appended import AppendedColumns
from service.appended_forms import appended_rows, results_json
from tiering.batch import Message
from tiering.errors import InvalidRequestError
from tiering.types import Durability

#: What a group has at most, so that the last of many does not wait for all.
_MOST_MESSAGES = 1_000

#: What appends a batch.
Append = Callable[[Sequence[Message], Durability], AppendedColumns]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """One request."""

    messages: list[Message]
    answer: asyncio.Future[bytes]


class Gathering:
    """Groups of one application. Used on the event loop only."""

    def __init__(self, append: Append, lane: Lane) -> None:
        self._append = append
        self._lane = lane
        self._waiting: dict[tuple[str, Durability], list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, topic: str, durability: Durability, messages: list[Message]) -> bytes:
        """The answer's JSON, once the messages, all of the topic, are as durable as asked for.

        Raises what the append raises, and :class:`DeadlineError` like :meth:`Lane.run`.
        """
        one = _Waiting(messages, asyncio.get_running_loop().create_future())
        key = topic, durability
        gathered = self._waiting.get(key)
        if gathered is None:
            self._waiting[key] = [one]
            # in a context of its own: it goes on with what others sent
            task = asyncio.get_running_loop().create_task(self._run(key), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            gathered.append(one)
        return await self._lane.in_time(one.answer)

    async def _run(self, key: tuple[str, Durability]) -> None:
        """Append group by group until nobody waits."""
        try:
            while waiting := self._waiting[key]:
                group = _first(waiting)
                self._waiting[key] = waiting[len(group) :]
                await self._answer(group, key[1])
        finally:
            del self._waiting[key]

    async def _answer(self, group: list[_Waiting], durability: Durability) -> None:
        try:
            answers: Sequence[bytes | Exception] = await self._lane.run(
                lambda: self._answers(group, durability), is_timed=False
            )
        except Exception as error:
            answers = [error] * len(group)
        for one, answer in zip(group, answers, strict=True):
            if one.answer.done():  # it waited for too long
                continue
            if isinstance(answer, Exception):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)

    def _answers(self, group: list[_Waiting], durability: Durability) -> list[bytes | Exception]:
        """On a thread. Of a group in which a message is wrong nothing is appended: then each goes by itself."""
        messages = group[0].messages if len(group) == 1 else [message for one in group for message in one.messages]
        try:
            rows = appended_rows(self._append(messages, durability))
        except InvalidRequestError as error:
            if len(group) == 1:
                return [error]
            return [answer for one in group for answer in self._answers([one], durability)]
        found: list[bytes | Exception] = []
        place = 0
        for one in group:
            end = place + len(one.messages)
            found.append(results_json(rows[place:end]))
            place = end
        return found


def _first(waiting: list[_Waiting]) -> list[_Waiting]:
    messages = 0
    for number, one in enumerate(waiting):
        messages += len(one.messages)
        if messages > _MOST_MESSAGES and number:
            return waiting[:number]
    return waiting
