"""The deliveries of one queue to one group: which messages were given, until when nobody else gets them, what is done.

A state machine on times and messages that are given from outside; it reads nothing and waits for nothing.

* ``next`` is the first offset that was never looked at. Of those below it, the *open* ones are not done yet; all others
  are acknowledged, given up, or were not meant for the group. The committed offset is the lowest open one.
* An open message is *given*, and invisible until a time, or *held back*: it was looked at and not given, because an
  earlier message of its message group is open, or because it is a retry that another topic's consumers wait for.
* In order (``in_order``), a message is given only if no earlier one of its message group is open. A message without one
  is a group of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tierlog.tiering.base.errors import InvalidHandleError
from tierlog.tiering.format.store_state import OpenMessageState, QueueDeliveryState

#: Open messages of one queue to one group.
MOST_OPEN = 4_096
_NEVER = 1 << 62


@dataclass(slots=True)
class OpenMessage:
    """A message that is not done."""

    attempt: int = 0
    """How often it was given, with what it counted when it came here."""
    visible_ms: int = 0
    """When it may be given again; 0: it is held back, or could not be read."""
    line: int = 0
    """Stands for its message group, 0 for none; two groups that share a number wait for each other needlessly."""
    topic: int = 0
    """Stands for the topic whose consumers it is for, in a retry topic; 0 elsewhere."""
    reason: str = ""
    """What the consumer said that gave it back last."""


class Found(NamedTuple):
    """A message that nobody had: see :class:`OpenMessage`."""

    offset: int
    line: int = 0
    topic: int = 0
    attempts: int = 0


class Given(NamedTuple):
    """A message that is due: the place, and which attempt it is now."""

    offset: int
    attempt: int


class QueueDeliveries:
    """What one group has of one queue. Not thread safe."""

    def __init__(self, start: int, known: QueueDeliveryState | None = None) -> None:
        """``start`` is the committed offset; ``known`` was noted when that was not above it."""
        self.next = start if known is None else max(start, known.next)
        opened = sorted(known.opened) if known is not None else []
        self._open = {
            one.offset: OpenMessage(one.attempt, one.visible_ms, one.line, one.topic, one.reason)
            for one in opened
            if start <= one.offset < self.next
        }
        #: No open message becomes visible before.
        self._due_ms = 0
        #: Rises with whatever makes what was read for this state useless.
        self.epoch = 0
        #: Whether messages were asked for in order the last time.
        self.in_order = False

    @property
    def committed(self) -> int:
        """The first offset that is not done."""
        return next(iter(self._open), self.next)

    @property
    def open(self) -> Mapping[int, OpenMessage]:
        """What is not done, by offset, rising."""
        return self._open

    def state(self, topic: str, queue_id: int) -> QueueDeliveryState:
        """Returns what is to be noted, so that a store that is opened again goes on from it."""
        opened = tuple(
            OpenMessageState(at, one.attempt, one.visible_ms, one.line, one.topic, one.reason)
            for at, one in self._open.items()
        )
        return QueueDeliveryState(topic, queue_id, self.committed, self.next, opened)

    @property
    def room(self) -> int:
        """How many more messages may be open."""
        return MOST_OPEN - len(self._open)

    # what may be given again

    def is_due(self, now_ms: int, topic: int | None = 0) -> bool:
        """Whether an open message may be given now."""
        return next(self._due(now_ms, topic, self.in_order), None) is not None

    def next_due_ms(self, now_ms: int) -> int | None:
        """Returns when the next of the open messages that nobody may have now is visible; None if there is none."""
        return min((one.visible_ms for one in self._open.values() if one.visible_ms > now_ms), default=None)

    def take_due(
        self, now_ms: int, until_ms: int, limit: int, *, topic: int | None = 0, in_order: bool = False
    ) -> list[Given]:
        """Gives messages whose time is over, the oldest first, and those that need not be held back any more.

        ``topic`` stands for the topic whose consumers ask; None gives those of all topics.
        """
        self.in_order = in_order
        if now_ms < self._due_ms:
            return []
        taken: list[Given] = []
        for at in self._due(now_ms, topic, in_order):
            if len(taken) == limit:
                break
            one = self._open[at]
            one.attempt += 1
            one.visible_ms = until_ms
            taken.append(Given(at, one.attempt))
        if len(taken) < limit:
            self._due_ms = min((one.visible_ms for one in self._open.values()), default=_NEVER)
        return taken

    def _due(self, now_ms: int, topic: int | None, in_order: bool) -> Iterator[int]:
        lines: set[int] = set()
        for at, one in self._open.items():
            is_first = not in_order or one.line == 0 or one.line not in lines
            lines.add(one.line)
            if is_first and one.visible_ms <= now_ms and topic in (None, one.topic):
                yield at

    def give_again(self, offset: int, until_ms: int) -> None:
        """Gives once more what was given already, as the same attempt: its answer did not arrive."""
        self._change(self._open[offset], until_ms)

    def put_back(self, given: Iterable[Given], until_ms: int) -> None:
        """Undoes a giving: the messages could not be read."""
        for offset, attempt in given:
            one = self._open.get(offset)
            if one is not None and (one.attempt, one.visible_ms) == (attempt, until_ms):
                one.attempt -= 1
                self._change(one, 0)

    # what is new

    def take_new(
        self,
        found: Iterable[Found],
        next_offset: int,
        until_ms: int,
        *,
        limit: int,
        topic: int | None = 0,
        in_order: bool = False,
    ) -> list[Given]:
        """Looks at the messages, by rising offsets, that were read from ``next`` up to ``next_offset``.

        Those beyond ``limit``, and beyond the room there is, are left for the next time.
        """
        self.in_order = in_order
        taken: list[Given] = []
        lines = {one.line for one in self._open.values()} if in_order else set()
        for offset, line, meant_for, attempts in found:
            is_held = topic not in (None, meant_for) or (in_order and line != 0 and line in lines)
            if self.room <= 0 or (len(taken) == limit and not is_held):
                next_offset = offset
                break
            one = OpenMessage(attempts + (not is_held), 0 if is_held else until_ms, line, meant_for)
            self._open[offset] = one
            self._due_ms = min(self._due_ms, one.visible_ms)
            lines.add(line)
            if not is_held:
                taken.append(Given(offset, one.attempt))
        self.next = max(self.next, next_offset)
        return taken

    # what became of it

    def done(self, offset: int) -> None:
        """Takes a message for done, whoever has it: it is gone, or a dead letter now."""
        if self._open.pop(offset, None) is not None:
            self._due_ms = 0  # a later one of its message group may be due

    def acknowledge(self, offset: int, attempt: int, until_ms: int) -> None:
        """Takes a delivery for done; :class:`InvalidHandleError` unless it is the last one of an open message."""
        self.check(offset, attempt, until_ms)
        self.done(offset)

    def extend(self, offset: int, attempt: int, until_ms: int, new_until_ms: int) -> None:
        """Changes until when a delivery has its message alone."""
        self._change(self.check(offset, attempt, until_ms), new_until_ms)

    def postpone(self, offset: int, visible_ms: int, reason: str | None = None) -> None:
        """Leaves an open message alone until a time, and keeps why, if it is told."""
        one = self._open.get(offset)
        if one is not None:
            if reason is not None:
                one.reason = reason
            self._change(one, visible_ms)

    def check(self, offset: int, attempt: int, until_ms: int) -> OpenMessage:
        """Returns the message of a delivery; :class:`InvalidHandleError` unless it is the last of an open message."""
        one = self._open.get(offset)
        if one is None:
            raise InvalidHandleError("the message is done, or is not delivered any more", hint="receive again")
        if one.attempt != attempt or one.visible_ms != until_ms or until_ms == 0:
            raise InvalidHandleError(
                f"the message was delivered again since (attempt {one.attempt})", hint="use the handle that came last"
            )
        return one

    def _change(self, one: OpenMessage, visible_ms: int) -> None:
        one.visible_ms = visible_ms
        self._due_ms = min(self._due_ms, visible_ms)

    # what others decide

    def restart(self, start: int) -> None:
        """Begins at an offset with nothing done behind it: the group was set back."""
        self.next = start
        self._open.clear()
        self.epoch += 1

    def skip_to(self, start: int) -> None:
        """Takes all below an offset for done: somebody else has committed it for the group."""
        for at in [at for at in self._open if at < start]:
            del self._open[at]
        if start > self.next:
            self.next = start
            self.epoch += 1
        self._due_ms = 0

    def cut(self, end: int) -> None:
        """Forgets what lies at or behind the end of the queue, whose newest messages were lost."""
        for at in [at for at in self._open if at >= end]:
            del self._open[at]
        self.next = min(self.next, end)
        self.epoch += 1
