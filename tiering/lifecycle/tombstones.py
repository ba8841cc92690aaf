"""Tombstones and the messages that they hide: those of a topic that were in the log when they were erased.

A tombstone names its topic and bounds; of a key, or of many, it holds only BLAKE2b keyed with a salt, 16 bytes, so
that nobody reads from the manifest whose data went. Erasures that follow each other share a salt, up to so many keys as
one of them may have, so that a reader hashes a key once for all of them. A tombstone speaks of records below the end
that the log had at the time: what is written later is seen, whatever its key. Store times are compared in ms,
``[from_ms, to_ms)``.

A tombstone hides what waits for its topic as well (:mod:`~tiering.message.waiting`): from a delayed message, or half a
transaction, a message of the topic would come, and one that has gone on still holds the body of that.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.times import format_time
from tierlog.tiering.base.types import END_OF_TIME_MS, EVER, TimeBounds
from tierlog.tiering.format.generation import is_numbered, record_topic
from tierlog.tiering.format.manifest import Head, Tombstone
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.record import Record
from tierlog.tiering.message.waiting import WAITING_TOPICS, real_topic

#: Tombstones that may be open at once: each has about 250 bytes in the head, which every process reads.
MAX_OPEN = 200
#: Keys that all open tombstones may have together: each takes 17 bytes of the head, which is to stay under 150 kB. Also
#: how many keys are hashed with one salt.
MAX_KEYS = 5_000
_HASH_BYTES = 16
#: Every id of a tombstone, whole.
TOMBSTONE_ID_PATTERN = "[0-9a-f]{16}"
_Stones = tuple[Tombstone, ...]


class TopicRun(Protocol):
    """Some records of one topic with bounds of their times, as a row of a directory is."""

    @property
    def topic(self) -> str:
        """Their topic."""
        ...

    @property
    def bounds(self) -> TimeBounds:
        """Least and greatest of both times."""
        ...


class ErasureSource(Protocol):
    """A source that knows what is hidden."""

    def current(self) -> Erasures:
        """Returns what is hidden now."""
        ...


def make_tombstone(
    topic: str,
    key: str | None,
    *,
    from_ms: int | None,
    to_ms: int | None,
    end: int,
    randomness: Randomness,
    other_keys: Collection[str] = (),
    beside: Iterable[Tombstone] = (),
) -> Tombstone:
    """A tombstone for what the log holds below ``end``: with the key or one of the others, or without one all of it.

    It shares a salt with those ``beside`` it, which the same readers obey, the newest last. Raises
    :class:`InvalidRequestError` for an empty range of times, and for one generation of a topic.
    """
    if is_numbered(topic):
        raise InvalidRequestError(
            "messages of all generations of a topic are erased together",
            hint=f"name the topic alone: {record_topic(topic)}",
        )
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidRequestError(
            f"nothing lies between {format_time(from_ms)} and {format_time(to_ms)}", hint="the range is [from, to)"
        )
    shared = None if key is None else _shared_salt(beside, len(other_keys) + 1)
    salt = shared or randomness.token_hex(16)
    digest = None if key is None else _keyed_hash(salt, key)
    others = tuple(_keyed_hash(salt, other) for other in other_keys)
    return Tombstone(
        tombstone_id=randomness.token_hex(8),
        topic=topic,
        key_hash=digest,
        salt=salt,
        from_ms=from_ms,
        to_ms=to_ms,
        end=end,
        other_hashes=others,
    )


def is_for(tombstone: Tombstone, topic: str, keys: Collection[str], from_ms: int | None, to_ms: int | None) -> bool:
    """Whether a tombstone was made for exactly this."""
    if (tombstone.topic, tombstone.from_ms, tombstone.to_ms) != (topic, from_ms, to_ms):
        return False
    return len(tombstone.hashes) == len(keys) and set(tombstone.hashes) == {
        _keyed_hash(tombstone.salt, key) for key in keys
    }


def hides_whole_topic(keys: Collection[str | None], from_ms: int | None, to_ms: int | None) -> bool:
    """Whether an erasure that is asked for like this leaves nothing of its topic: who means that says so in a word."""
    return not any(key is not None for key in keys) and not from_ms and to_ms in (None, END_OF_TIME_MS)


def reaching(tombstones: Iterable[Tombstone], topic: str) -> tuple[Tombstone, ...]:
    """Returns those that may hide anything of a topic; what waits in one may be for any other."""
    is_waiting = topic in WAITING_TOPICS
    return tuple(tombstone for tombstone in tombstones if is_waiting or tombstone.topic == topic)


def refuse_too_many(head: Head, more: Tombstone) -> None:
    """Raises :class:`ConflictError` if a head has no room for one more tombstone."""
    keys = sum(len(tombstone.hashes) for tombstone in head.tombstones)
    if len(head.tombstones) >= MAX_OPEN:
        raise ConflictError(f"{MAX_OPEN} erasures are open", hint="wait until some of them are done")
    if keys + len(more.hashes) > MAX_KEYS:
        raise ConflictError(f"open erasures would have more than {MAX_KEYS} keys", hint="wait until some are done")


def _shared_salt(beside: Iterable[Tombstone], keys: int) -> str | None:
    """Returns the newest salt that has room for so many more keys; None if a fresh one is to be drawn."""
    salts = Counter[str]()
    for tombstone in beside:
        if tombstone.key_hash is not None:
            salts[tombstone.salt] += len(tombstone.hashes)
    return next((salt for salt, count in reversed(salts.items()) if count + keys <= MAX_KEYS), None)


def _keyed_hash(salt: str, key: str) -> str:
    return hashlib.blake2b(key.encode(), key=bytes.fromhex(salt), digest_size=_HASH_BYTES).hexdigest()


def may_hide_at(tombstone: Tombstone, bounds: TimeBounds) -> bool:
    """Whether any record with such times may be hidden."""
    return (tombstone.from_ms is None or tombstone.from_ms <= bounds.max_store_ms) and (
        tombstone.to_ms is None or bounds.min_store_ms < tombstone.to_ms
    )


class TombstoneRanges:
    """The ranges of offset and store time of some tombstones.

    At each time, records below the greatest of their ends.
    """

    __slots__ = ("_ends", "_times", "end")

    def __init__(self, tombstones: Iterable[Tombstone]) -> None:
        spans = sorted(
            (
                EVER.from_ms if tombstone.from_ms is None else tombstone.from_ms,
                EVER.to_ms if tombstone.to_ms is None else tombstone.to_ms,
                tombstone.end,
            )
            for tombstone in tombstones
        )
        #: The physical offset from which on nothing is meant.
        self.end = max((end for _, _, end in spans), default=0)
        self._times = sorted({time_ms for span in spans for time_ms in span[:2]} - {EVER.to_ms})
        self._ends: list[int] = []
        """From each of the times on, to the next."""
        begun, at_work = 0, list[tuple[int, int]]()
        for time_ms in self._times:
            while begun < len(spans) and spans[begun][0] <= time_ms:
                heapq.heappush(at_work, (-spans[begun][2], spans[begun][1]))
                begun += 1
            while at_work and at_work[0][1] <= time_ms:
                heapq.heappop(at_work)
            self._ends.append(-at_work[0][0] if at_work else 0)

    def has(self, physical_offset: int, store_ms: int) -> bool:
        """Whether a record is meant."""
        if physical_offset >= self.end:
            return False
        at = bisect_right(self._times, store_ms) - 1
        return at >= 0 and physical_offset < self._ends[at]

    def has_rows(self, physical_offsets: NDArray[np.int64], store_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """:meth:`has` of many records."""
        ends = np.array([0, *self._ends], np.int64)
        found: NDArray[np.bool_] = (
            physical_offsets < ends[np.searchsorted(np.array(self._times, np.int64), store_ms, side="right")]
        )
        return found

    def touches(self, min_ms: int, max_ms: int) -> bool:
        """Whether any record stored in the inclusive ``[min_ms, max_ms]`` may be meant."""
        first, last = bisect_right(self._times, min_ms) - 1, bisect_right(self._times, max_ms)
        return any(self._ends[max(first, 0) : last])


class _TopicErasures:
    """The erasures of one topic."""

    def __init__(self, tombstones: list[Tombstone]) -> None:
        by_hash: dict[str, dict[str, list[Tombstone]]] = {}
        for tombstone in tombstones:
            for digest in tombstone.hashes:
                by_hash.setdefault(tombstone.salt, {}).setdefault(digest, []).append(tombstone)
        self.all = TombstoneRanges(tombstones)
        self.whole = TombstoneRanges(tombstone for tombstone in tombstones if tombstone.key_hash is None)
        self._by_hash = {
            salt: {digest: TombstoneRanges(found) for digest, found in hashes.items()}
            for salt, hashes in by_hash.items()
        }

    def of_key(self, key: str) -> list[TombstoneRanges]:
        """Returns what is meant of a key: it is hashed once for each salt."""
        found = (hashes.get(_keyed_hash(salt, key)) for salt, hashes in self._by_hash.items())
        return [cover for cover in found if cover is not None]

    def hides(self, record: Record) -> bool:
        place = record.physical_offset, record.store_ms
        if not self.all.has(*place):
            return False
        if self.whole.has(*place):
            return True
        return any(cover.has(*place) for key in indexed_keys(record.properties) for cover in self.of_key(key))


class Erasures:
    """The messages that some tombstones hide together. Immutable.

    However many they are, a record costs a look into a dictionary and two searches by time, and one whose keys decide a
    hash of each key for each salt.
    """

    def __init__(self, tombstones: Iterable[Tombstone] = ()) -> None:
        self.tombstones = tuple(tombstones)
        by_topic: dict[str, list[Tombstone]] = {}
        for tombstone in self.tombstones:
            by_topic.setdefault(tombstone.topic, []).append(tombstone)
        self._by_topic = {topic: _TopicErasures(found) for topic, found in by_topic.items()}
        self._everywhere = TombstoneRanges(self.tombstones)
        self._ids = frozenset(tombstone.tombstone_id for tombstone in self.tombstones)
        self._joined: tuple[object, Erasures] | None = None

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def joined(self, tombstones: tuple[Tombstone, ...]) -> Erasures:
        """These and others, of which some may be the same ones; made once for one tuple."""
        made = self._joined
        if made is None or made[0] is not tombstones:
            more = [tombstone for tombstone in tombstones if tombstone.tombstone_id not in self._ids]
            made = self._joined = tombstones, Erasures([*self.tombstones, *more]) if more else self
        return made[1]

    def hides(self, record: Record) -> bool:
        """Whether any tombstone hides the record."""
        found = self._by_topic.get(record.topic)
        if found is not None and found.hides(record):
            return True
        if record.topic not in WAITING_TOPICS or not self._everywhere.has(record.physical_offset, record.store_ms):
            return False
        found = self._by_topic.get(real_topic(record.topic, record.properties) or "")
        return found is not None and found.hides(record)

    def hidden_rows(
        self, topic: str, physical_offsets: NDArray[np.int64], store_ms: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Returns which records of a topic are hidden whatever they say, and of which others keys and properties
        decide."""
        reach, found = self._reach(topic), self._by_topic.get(record_topic(topic))
        nothing = np.zeros(len(store_ms), np.bool_)
        hidden = nothing if found is None else found.whole.has_rows(physical_offsets, store_ms)
        return hidden, nothing if reach is None else reach.has_rows(physical_offsets, store_ms) & ~hidden

    def of_key(self, topic: str, key: str) -> list[TombstoneRanges]:
        """Returns what is hidden of one key of a topic, beside what is hidden whatever the keys."""
        found = self._by_topic.get(record_topic(topic))
        return [] if found is None else found.of_key(key)

    def concerns(self, topic: str) -> bool:
        """Whether anything of a topic may be hidden."""
        return self._reach(topic) is not None

    def end_of(self, topic: str) -> int:
        """Returns the physical offset from which on nothing of a topic is hidden."""
        reach = self._reach(topic)
        return 0 if reach is None else reach.end

    def may_hide(self, run: TopicRun) -> bool:
        """Whether any record of the run may be hidden, by topic and time alone."""
        reach = self._reach(run.topic)
        return reach is not None and reach.touches(run.bounds.min_store_ms, run.bounds.max_store_ms)

    def _reach(self, topic: str) -> TombstoneRanges | None:
        """Returns where records of a topic may be hidden; None for nowhere. What waits in one may be for any other."""
        if topic in WAITING_TOPICS:
            return self._everywhere if self._by_topic else None
        found = self._by_topic.get(record_topic(topic))
        return None if found is None else found.all


class FixedErasures:
    """The erasures of one moment."""

    def __init__(self, erased: Erasures) -> None:
        self._erased = erased

    def current(self) -> Erasures:
        return self._erased


#: Nothing is erased.
NOTHING_ERASED = Erasures()


class HeadSource(Protocol):
    """A source that knows the head last seen."""

    @property
    def head(self) -> Head | None:
        """The head, or None before the first contact."""
        ...


class KnownErasures:
    """The erasures that one reader of a store obeys: those of the newest head, and those whose hot copies remain.

    A tombstone leaves the head once every archived copy is a filler, while hot copies stay until the border passes its
    end. So the store keeps it in ``tierlog/head.json``, with every head it sees, until nothing of the log below its end
    is on the volume. That file also tells after a restart with a dead bucket. Crash argument: an erasure is
    acknowledged once its tombstone is in the file, and only the store itself closes a tombstone, after it was in the
    file; so there is no moment at which a kill could show an acknowledged erasure's messages again.

    Thread safe; ``saved`` is what the file says, ``deleted`` gives the tombstones of topics deleted in the store.
    """

    def __init__(
        self,
        manifest: HeadSource | None,
        saved: Iterable[Tombstone] = (),
        deleted: Callable[[], tuple[Tombstone, ...]] = lambda: (),
    ) -> None:
        """``deleted`` gives the same tuple until something changes."""
        self._manifest = manifest
        self._saved = tuple(saved)
        self._deleted = deleted
        self._made: tuple[_Stones, _Stones, _Stones, Erasures] = ((), (), (), NOTHING_ERASED)

    @property
    def saved_tombstones(self) -> tuple[Tombstone, ...]:
        return self._saved

    def to_save(self, head: Head, log_begin: int) -> tuple[Tombstone, ...]:
        """Returns what the file must say with this head.

        Its tombstones, and earlier ones of which the log holds copies.
        """
        named = {tombstone.tombstone_id for tombstone in head.tombstones}
        kept = [old for old in self._saved if old.tombstone_id not in named and old.end > log_begin]
        return (*kept, *head.tombstones)

    def was_saved(self, tombstones: tuple[Tombstone, ...]) -> None:
        """The file says this now, durably."""
        self._saved = tombstones

    def current(self) -> Erasures:
        """Returns what is hidden now."""
        head = self._manifest.head if self._manifest is not None else None
        saved, named = self._saved, head.tombstones if head is not None else ()
        deleted = self._deleted()
        if not saved and not named and not deleted:
            return NOTHING_ERASED
        made = self._made
        if made[:3] != (saved, named, deleted):  # mostly the very same, which is found in no time
            by_id = {tombstone.tombstone_id: tombstone for tombstone in (*saved, *deleted, *named)}
            made = self._made = saved, named, deleted, Erasures(by_id.values())
        return made[3]
