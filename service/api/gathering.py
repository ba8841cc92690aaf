"""Small appends that come at once go into the log together: one hop to a thread, one append, one flush for all.

While a group is being appended, the next one gathers; so a request that is alone waits for nobody, and of many each
waits for one group at most before its own. Nothing is known of requests but their messages, which are taken out of
their bodies on that thread: one that is refused is appended by itself then, so that each has its own answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise

from service.api.lanes import Lane
from service.appended import AppendedColumns
from service.appended_forms import appended_rows, results_json
from tiering.batch import Message
from tiering.errors import InvalidRequestError
from tiering.types import Durability

#: What a group has at most, so that the last of many does not wait for all.
_MOST_MESSAGES = 1_000

#: Takes messages out of a body; None for a body that is not for this.
Read = Callable[[], list[Message] | None]
#: What appends a batch.
Append = Callable[[Sequence[Message], Durability], AppendedColumns]


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that are appended together."""

    requests: list[tuple[Read, asyncio.Future[bytes | None]]] = field(default_factory=list)
    messages: int = 0
    timer: asyncio.TimerHandle | None = None


class Gathering:
    """Groups of one application. Used on the event loop only."""

    def __init__(self, append: Append, lane: Lane) -> None:
        self._append = append
        self._lane = lane
        #: Those that wait, in their order; a key is there as long as a task appends for it.
        self._waiting: dict[tuple[str, Durability], deque[_Group]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, topic: str, durability: Durability, most: int, read: Read) -> bytes | None:
        """The answer's JSON, once the messages, all of the topic, are as durable as asked for.

        ``read`` gives the messages, ``most`` at most, on a thread; None if it gives None, and then
        nothing is appended. Raises what the append raises, and :class:`DeadlineError` if it is not done in the lane's
        time, counted from the first request of the group.
        """
        loop, key = asyncio.get_running_loop(), (topic, durability)
        answer: asyncio.Future[bytes | None] = loop.create_future()
        groups = self._waiting.get(key)
        if groups is None:
            groups = self._waiting[key] = deque()
            # in a context of its own: it goes on with what others sent
            task = loop.create_task(self._run(key), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not groups or groups[-1].messages + most > _MOST_MESSAGES:
            groups.append(_Group())
            if self._lane.timeout_s is not None:  # one for all: a timer for each would cost more than the rest here
                groups[-1].timer = loop.call_later(self._lane.timeout_s, self._give_up, groups[-1])
        groups[-1].requests.append((read, answer))
        groups[-1].messages += most
        return await answer

    async def _run(self, key: tuple[str, Durability]) -> None:
        """Append group by group until nobody waits."""
        groups = self._waiting[key]
        try:
            while groups:
                await self._answer(groups.popleft(), key[1])
        finally:
            del self._waiting[key]

    async def _answer(self, group: _Group, durability: Durability) -> None:
        reads = [read for read, _ in group.requests]
        try:
            found: Sequence[bytes | Exception | None] = await self._lane.run(
                lambda: self._read(reads, durability), is_timed=False
            )
        except Exception as error:
            found = [error] * len(reads)
        if group.timer is not None:
            group.timer.cancel()
        for (_, answer), one in zip(group.requests, found, strict=True):
            if answer.done():  # it waited for too long, or is not waited for any more
                continue
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)

    def _give_up(self, group: _Group) -> None:
        for _, answer in group.requests:
            if not answer.done():
                answer.set_exception(self._lane.too_late())

    def _read(self, reads: list[Read], durability: Durability) -> list[bytes | Exception | None]:
        """On a thread: the answers to those whose bodies are read here."""
        batches = [read() for read in reads]
        there = [batch for batch in batches if batch is not None]
        answers = iter(self._answers(there, durability) if there else ())
        return [None if batch is None else next(answers) for batch in batches]

    def _answers(self, batches: list[list[Message]], durability: Durability) -> list[bytes | Exception]:
        """Of a group in which a message is wrong nothing is appended: then each goes by itself."""
        messages = batches[0] if len(batches) == 1 else list(chain.from_iterable(batches))
        try:
            rows = appended_rows(self._append(messages, durability))
        except InvalidRequestError as error:
            if len(batches) == 1:
                return [error]
            return [answer for batch in batches for answer in self._answers([batch], durability)]
        ends = list(accumulate(map(len, batches), initial=0))
        return [results_json(rows[start:end]) for start, end in pairwise(ends)]
