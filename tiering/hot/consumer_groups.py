"""``tierlog/groups.json``: the committed offsets and the generation of every consumer group.

Primary data: what a call returns from is durable. Calls that come while the file is being written share the next
write (:mod:`~tiering.base.shared_writes`).

::

    {"format": 1, "groups": [{"name": "billing", "generation": 7, "offsets": {"orders": {"0": 17}}}]}

``offsets`` are those of the store's own queues. A group that reads queues of other stores of its cluster too has also
``"elsewhere": {"store-b": {"orders": {"0": 4}}}``, which versions before clusters ignore, and forget when they write.

A store that follows a RocketMQ broker, or did, has ``"delay_offsets": {"3": 17}`` as well: up to where the broker had
sent on what waited at each level of delay, when that was copied last.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from tierlog.tiering.base.errors import (
    ClosedError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    ReadOnlyError,
    StaleGenerationError,
)
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.shared_writes import SharedChange, SharedWrites

_FORMAT = 1
#: Every legal group name, whole.
GROUP_PATTERN = "[A-Za-z0-9_%|-]{1,255}"
_NAME = re.compile(GROUP_PATTERN)
MAX_GROUPS = 1_000
#: Over all groups: the file is written whole.
MAX_OFFSETS = 100_000

#: Topic, the store whose queue it is, and queue id.
Queue = tuple[str, str, int]


def validate_group(name: str) -> str:
    """Returns a legal group name (RocketMQ's rule) or raises :class:`InvalidRequestError`."""
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"bad group name {name[:300]!r}", hint="use 1 to 255 ASCII letters, digits and _ - % |"
        )
    return name


class GroupPosition(NamedTuple):
    """Where a group is in one queue, and how often it was set back or forward there since the store was opened."""

    offset: int | None
    resets: int = 0


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group as it is on disk; an offset is that of the next message to consume."""

    generation: int = 0
    offsets: Mapping[Queue, int] = field(default_factory=dict)


_Groups = dict[str, GroupState]


class _Kept(NamedTuple):
    """What the file holds."""

    groups: Mapping[str, GroupState]
    delay_offsets: Mapping[int, int]


@dataclass(slots=True, eq=False)
class _Change(SharedChange):
    apply: Callable[[_Groups], None]
    delay_offsets: Mapping[int, int] = field(default_factory=dict)


class GroupOffsets:
    """The groups of one store. Thread safe; what a reader sees is durable, and so is every change that returned."""

    def __init__(
        self,
        fs: FileSystem,
        paths: StorePaths,
        store_id: str,
        read_only_reason: Callable[[], str | None],
        max_groups: int = MAX_GROUPS,
    ) -> None:
        """``store_id`` is the own one; ``read_only_reason`` says why nothing may be written now, or None."""
        self._max_groups = max_groups
        self._fs = fs
        self._paths = paths
        self._store_id = store_id
        self._read_only_reason = read_only_reason
        self._is_closed = False
        #: Whether a write failed and the file may hold what nobody was told of.
        self._is_doubtful = False
        #: The highest generation of a removed group: one made anew begins above it, for a late commit of the old one.
        self._forgotten = 0
        self._resets: Counter[tuple[str, Queue]] = Counter()
        self._writing = threading.Lock()
        self._changes = SharedWrites(self._write, self._writing)
        self._texts: dict[str, tuple[GroupState, str]] = {}
        self._file = JsonFile(partial(_decode_kept, store_id=store_id), self._document, (_FORMAT,))
        kept = self._file.read(fs, paths.groups_json) or _Kept({}, {})
        self._groups: _Groups = dict(kept.groups)
        self._delay_offsets = kept.delay_offsets

    def all(self) -> dict[str, GroupState]:
        """Returns every group by name."""
        return dict(self._groups)

    def get(self, name: str) -> GroupState:
        """One group, or :class:`NotFoundError`."""
        found = self._groups.get(name)
        if found is None:
            raise NotFoundError(f"no such group {name!r}")
        return found

    @property
    def delay_offsets(self) -> Mapping[int, int]:
        """The next offset that the followed broker had to send on, of each level of delay, as copied last."""
        return self._delay_offsets

    def raise_generation(self, name: str) -> int:
        """Begins the group's next generation, making the group if it is new; the generation begun."""

        def apply(groups: _Groups) -> None:
            state = self._found_or_new(groups, name)
            groups[name] = replace(state, generation=max(state.generation, self._forgotten) + 1)

        self._make_durable(_Change(apply))
        return self._groups[name].generation

    def commit(self, name: str, offsets: Mapping[Queue, int], *, generation: int, reset: bool = False) -> None:
        """Commits offsets, all of them or none, making the group if it is new.

        Raises :class:`StaleGenerationError` unless the group is at ``generation`` (0 for one without a member so far),
        :class:`InvalidRequestError` for an offset below the committed one, which ``reset`` allows.
        """

        def apply(groups: _Groups) -> None:
            state = self._found_or_new(groups, name)
            if state.generation != generation:
                raise StaleGenerationError(f"group {name!r} is at generation {state.generation}, not {generation}")
            for queue, offset in offsets.items():
                before = state.offsets.get(queue, 0)
                if offset < before and not reset:
                    raise InvalidRequestError(
                        f"offset {offset} of {named(queue, self._store_id)} is below the committed {before}",
                        hint="going back needs a reset",
                    )
            self._add(groups, name, state, offsets)
            if reset:
                self._resets.update((name, queue) for queue in offsets)

        self._make_durable(_Change(apply))

    def copy(
        self,
        copied: Mapping[str, Mapping[Queue, int]],
        delay_offsets: Mapping[int, int],
        *,
        made_again: Callable[[str], bool] = lambda topic: False,
    ) -> dict[str, InvalidRequestError | ConflictError]:
        """Sets groups to what a followed broker has, making those that are new, and levels of delay: in one write.

        Offsets may fall; in own queues of a topic that was ``made_again`` those that are not copied go. Returns the
        groups that are left out, and why.
        """
        odd: dict[str, InvalidRequestError | ConflictError] = {}

        def apply(groups: _Groups) -> None:
            room = MAX_OFFSETS - sum(len(each.offsets) for each in groups.values())
            for name, offsets in copied.items():
                try:
                    state = self._found_or_new(groups, validate_group(name))
                except (InvalidRequestError, ConflictError) as error:
                    odd[name] = error
                    continue
                moved = {queue: offset for queue, offset in offsets.items() if state.offsets.get(queue) != offset}
                room -= len(moved.keys() - state.offsets.keys())
                if room < 0:
                    odd[name] = _too_many_offsets()
                    room += len(moved.keys() - state.offsets.keys())
                    continue
                kept = {
                    queue: offset
                    for queue, offset in state.offsets.items()
                    if queue in offsets or queue[1] != self._store_id or not made_again(queue[0])
                }
                if moved or len(kept) < len(state.offsets) or name not in groups:
                    groups[name] = replace(state, offsets={**kept, **moved})
                    self._resets.update((name, queue) for queue in moved)

        self._make_durable(_Change(apply, delay_offsets))
        return odd

    def position(self, name: str, queue: Queue) -> GroupPosition:
        """Returns where a group is in a queue; its offset is None if it has committed none."""
        state = self._groups.get(name)
        return GroupPosition(state.offsets.get(queue) if state else None, self._resets[name, queue])

    def advance(self, name: str, moves: Mapping[Queue, tuple[GroupPosition, int]]) -> None:
        """Commits how far deliveries have come, making the group if it is new, whatever its generation.

        A queue in which the group is not any more where its move begins stays where it is.
        """

        def apply(groups: _Groups) -> None:
            state = self._found_or_new(groups, name)
            offsets = {
                queue: offset
                for queue, (before, offset) in moves.items()
                if before == GroupPosition(state.offsets.get(queue), self._resets[name, queue])
            }
            self._add(groups, name, state, offsets)

        self._make_durable(_Change(apply))

    def _add(self, groups: _Groups, name: str, state: GroupState, offsets: Mapping[Queue, int]) -> None:
        groups[name] = replace(state, offsets={**state.offsets, **offsets})
        if sum(len(each.offsets) for each in groups.values()) > MAX_OFFSETS:
            groups[name] = state
            raise _too_many_offsets()

    def remove(self, name: str) -> None:
        """Forgets a group; one that is not there is no error."""

        def apply(groups: _Groups) -> None:
            state = groups.pop(name, GroupState())
            self._forgotten = max(self._forgotten, state.generation)

        self._make_durable(_Change(apply))

    def close(self) -> None:
        """Waits for a write under way; every change from now on is a :class:`ClosedError`."""
        with self._writing:
            self._is_closed = True

    def check_room(self, name: str) -> None:
        """Raises :class:`ConflictError` if the group would be one too many."""
        self._found_or_new(self._groups, name)

    def _found_or_new(self, groups: _Groups, name: str) -> GroupState:
        if name not in groups and len(groups) >= self._max_groups:
            raise ConflictError(
                f"there are {self._max_groups} groups already",
                hint="remove one that nobody uses; max_groups is the limit",
            )
        return groups.get(name, GroupState())

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the store is closed")

    def _make_durable(self, change: _Change) -> None:
        reason = self._read_only_reason()
        if reason is not None:
            raise ReadOnlyError(f"the store is read-only: {reason}")
        self._changes.make(change)

    def _write(self, batch: list[_Change]) -> None:
        groups, delay_offsets = dict(self._groups), self._delay_offsets
        for change in batch:
            delay_offsets = {**delay_offsets, **change.delay_offsets}
            try:
                change.apply(groups)
            except Exception as error:  # whatever it is, it is not that of the others in the batch
                change.error = error
        if (groups, delay_offsets) == (self._groups, self._delay_offsets) and not self._is_doubtful:
            return
        self._check_open()
        self._is_doubtful = True
        self._file.replace(self._fs, self._paths.groups_json, _Kept(groups, delay_offsets), self._paths.tmp)
        self._groups, self._delay_offsets = groups, delay_offsets
        self._is_doubtful = False

    def _document(self, kept: _Kept) -> bytes:
        """Returns the file's text, a group a line; only groups that changed are put into words again."""
        self._texts = {
            name: known
            if (known := self._texts.get(name)) and known[0] is state
            else (state, _encode(name, state, self._store_id))
            for name, state in kept.groups.items()
        }
        return _document_of([text for _, text in self._texts.values()], kept.delay_offsets)


def _too_many_offsets() -> ConflictError:
    return ConflictError(f"there are {MAX_OFFSETS} committed offsets already")


def named(queue: Queue, own_store: str) -> str:
    """Returns a queue in words."""
    topic, store_id, queue_id = queue
    return f"{topic}/{queue_id}" + ("" if store_id == own_store else f" of store {store_id}")


def groups_file(store_id: str) -> JsonFile[Mapping[str, GroupState]]:
    """``groups.json`` of a store."""

    def encode(groups: Mapping[str, GroupState]) -> bytes:
        return _document_of([_encode(name, state, store_id) for name, state in groups.items()])

    return JsonFile(partial(_decode, store_id=store_id), encode, (_FORMAT,))


def _document_of(texts: list[str], delay_offsets: Mapping[int, int] | None = None) -> bytes:
    lines = ",\n".join(texts)
    levels = {str(level): offset for level, offset in sorted((delay_offsets or {}).items())}
    more = f', "delay_offsets": {json.dumps(levels)}' if levels else ""
    return f'{{"format": {_FORMAT}, "groups": [\n{lines}\n]{more}}}\n'.encode()


_Topics = dict[str, dict[str, int]]


def _encode(name: str, state: GroupState, store_id: str) -> str:
    own: _Topics = {}
    elsewhere: dict[str, _Topics] = {}
    for (topic, store, queue_id), offset in sorted(state.offsets.items()):
        topics = own if store == store_id else elsewhere.setdefault(store, {})
        topics.setdefault(topic, {})[str(queue_id)] = offset
    document = {"name": name, "generation": state.generation, "offsets": own}
    return json.dumps({**document, "elsewhere": elsewhere} if elsewhere else document)


def _decode(document: Any, store_id: str) -> _Groups:
    found: _Groups = {}
    for entry in document["groups"]:
        offsets = {
            (topic, store, int(queue_id)): int(offset)
            for store, topics in ((store_id, entry["offsets"]), *entry.get("elsewhere", {}).items())
            for topic, queues in topics.items()
            for queue_id, offset in queues.items()
        }
        found[entry["name"]] = GroupState(int(entry["generation"]), offsets)
    return found


def _decode_kept(document: Any, store_id: str) -> _Kept:
    levels = document.get("delay_offsets", {})
    return _Kept(_decode(document, store_id), {int(level): int(offset) for level, offset in levels.items()})
