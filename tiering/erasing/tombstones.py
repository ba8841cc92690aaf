"""What a tombstone hides: messages of a topic that were in the log when they were erased.

A tombstone names its topic and bounds; of a key, or of many, it holds only BLAKE2b keyed with a salt, 16 bytes, so
that nobody reads from the manifest whose data went. Erasures that follow each other share a salt, up to so many keys as
one of them may have, so that a reader hashes a key once for all of them. A tombstone speaks of records below the end
that the log had at the time: what is written later is seen, whatever its key. Store times are compared in ms,
``[from_ms, to_ms)``.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tiering.errors import ConflictError, InvalidRequestError
from tiering.format.manifest import Head, Tombstone
from tiering.format.properties import indexed_keys
from tiering.format.record import Record
from tiering.randomness import Randomness
from tiering.types import EVER, TimeBounds

#: Tombstones that may be open at once: each has about 250 bytes in the head, which every process reads.
MAX_OPEN = 200
#: Keys that all open tombstones may have together: each takes 17 bytes of the head, which is to stay under 150 kB. Also
#: how many keys are hashed with one salt.
MAX_KEYS = 5_000
_HASH_BYTES = 16
#: Every id of a tombstone, whole.
TOMBSTONE_ID_PATTERN = "[0-9a-f]{16}"


class Run(Protocol):
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
    """Who knows what is hidden."""

    def current(self) -> Erasures:
        """What is hidden now."""
        ...


def make_tombstone(
    topic: str,
    key: str | None,
    from_ms: int | None,
    to_ms: int | None,
    end: int,
    randomness: Randomness,
    *,
    other_keys: Collection[str] = (),
    beside: Iterable[Tombstone] = (),
) -> Tombstone:
    """A tombstone for what the log holds below ``end``: with the key or one of the others, or without one all of it.

    It shares a salt with those ``beside`` it, which the same readers obey, the newest last. Raises
    :class:`InvalidRequestError` for an empty range of times.
    """
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidRequestError(f"nothing lies between {from_ms} and {to_ms}", hint="the range is [from, to)")
    shared = None if key is None else _shared_salt(beside, len(other_keys) + 1)
    salt = shared or randomness.token_hex(16)
    digest = None if key is None else _keyed_hash(salt, key)
    others = tuple(_keyed_hash(salt, other) for other in other_keys)
    return Tombstone(randomness.token_hex(8), topic, digest, salt, from_ms, to_ms, end, other_hashes=others)


def is_for(tombstone: Tombstone, topic: str, keys: Collection[str], from_ms: int | None, to_ms: int | None) -> bool:
    """Whether a tombstone was made for exactly this."""
    if (tombstone.topic, tombstone.from_ms, tombstone.to_ms) != (topic, from_ms, to_ms):
        return False
    return len(tombstone.hashes) == len(keys) and set(tombstone.hashes) == {
        _keyed_hash(tombstone.salt, key) for key in keys
    }


def refuse_too_many(head: Head, more: Tombstone) -> None:
    """Raise :class:`ConflictError` if a head has no room for one more tombstone."""
    keys = sum(len(stone.hashes) for stone in head.tombstones)
    if len(head.tombstones) >= MAX_OPEN:
        raise ConflictError(f"{MAX_OPEN} erasures are open", hint="wait until some of them are done")
    if keys + len(more.hashes) > MAX_KEYS:
        raise ConflictError(f"open erasures would have more than {MAX_KEYS} keys", hint="wait until some are done")


def _shared_salt(beside: Iterable[Tombstone], keys: int) -> str | None:
    """The newest salt that has room for so many more keys; None if a fresh one is to be drawn."""
    salts = Counter[str]()
    for stone in beside:
        if stone.key_hash is not None:
            salts[stone.salt] += len(stone.hashes)
    return next((salt for salt, count in reversed(salts.items()) if count + keys <= MAX_KEYS), None)


def _keyed_hash(salt: str, key: str) -> str:
    return hashlib.blake2b(key.encode(), key=bytes.fromhex(salt), digest_size=_HASH_BYTES).hexdigest()


def may_hide_at(tombstone: Tombstone, bounds: TimeBounds) -> bool:
    """Whether any record with such times may be hidden."""
    return (tombstone.from_ms is None or tombstone.from_ms <= bounds.max_store_ms) and (
        tombstone.to_ms is None or bounds.min_store_ms < tombstone.to_ms
    )


class Cover:
    """What some tombstones mean by offset and store time: at each time, records below the greatest of their ends."""

    __slots__ = ("_ends", "_times", "end")

    def __init__(self, tombstones: Iterable[Tombstone]) -> None:
        spans = sorted(
            (
                EVER.from_ms if stone.from_ms is None else stone.from_ms,
                EVER.to_ms if stone.to_ms is None else stone.to_ms,
                stone.end,
            )
            for stone in tombstones
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
    """What is hidden of one topic."""

    def __init__(self, tombstones: list[Tombstone]) -> None:
        by_hash: dict[str, dict[str, list[Tombstone]]] = {}
        for stone in tombstones:
            for digest in stone.hashes:
                by_hash.setdefault(stone.salt, {}).setdefault(digest, []).append(stone)
        self.all = Cover(tombstones)
        self.whole = Cover(stone for stone in tombstones if stone.key_hash is None)
        self._by_hash = {
            salt: {digest: Cover(found) for digest, found in hashes.items()} for salt, hashes in by_hash.items()
        }

    def of_key(self, key: str) -> list[Cover]:
        """What is meant of a key: it is hashed once for each salt."""
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
    """What some tombstones hide together. Immutable.

    However many they are, a record costs a look into a dictionary and two searches by time, and one whose keys decide a
    hash of each key for each salt.
    """

    def __init__(self, tombstones: Iterable[Tombstone] = ()) -> None:
        self.tombstones = tuple(tombstones)
        by_topic: dict[str, list[Tombstone]] = {}
        for tombstone in self.tombstones:
            by_topic.setdefault(tombstone.topic, []).append(tombstone)
        self._by_topic = {topic: _TopicErasures(found) for topic, found in by_topic.items()}
        self._ids = frozenset(tombstone.tombstone_id for tombstone in self.tombstones)
        self._joined: tuple[object, Erasures] | None = None

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def joined(self, tombstones: tuple[Tombstone, ...]) -> Erasures:
        """These and others, of which some may be the same ones; made once for one tuple."""
        made = self._joined
        if made is None or made[0] is not tombstones:
            more = [stone for stone in tombstones if stone.tombstone_id not in self._ids]
            made = self._joined = tombstones, Erasures([*self.tombstones, *more]) if more else self
        return made[1]

    def hides(self, record: Record) -> bool:
        """Whether any tombstone hides the record."""
        found = self._by_topic.get(record.topic)
        return found is not None and found.hides(record)

    def hidden_rows(
        self, topic: str, physical_offsets: NDArray[np.int64], store_ms: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which records of a topic are hidden whatever their keys, and of which others their keys decide."""
        found = self._by_topic.get(topic)
        if found is None:
            return np.zeros(len(store_ms), np.bool_), np.zeros(len(store_ms), np.bool_)
        hidden = found.whole.has_rows(physical_offsets, store_ms)
        return hidden, found.all.has_rows(physical_offsets, store_ms) & ~hidden

    def of_key(self, topic: str, key: str) -> list[Cover]:
        """What is hidden of one key of a topic, beside what is hidden whatever the keys."""
        found = self._by_topic.get(topic)
        return [] if found is None else found.of_key(key)

    def concerns(self, topic: str) -> bool:
        """Whether anything of a topic is hidden."""
        return topic in self._by_topic

    def end_of(self, topic: str) -> int:
        """The physical offset from which on nothing of a topic is hidden."""
        found = self._by_topic.get(topic)
        return 0 if found is None else found.all.end

    def may_hide(self, run: Run) -> bool:
        """Whether any record of the run may be hidden, by topic and time alone."""
        found = self._by_topic.get(run.topic)
        return found is not None and found.all.touches(run.bounds.min_store_ms, run.bounds.max_store_ms)


class FixedErasures:
    """What was hidden at one moment."""

    def __init__(self, erased: Erasures) -> None:
        self._erased = erased

    def current(self) -> Erasures:
        """The same always."""
        return self._erased


#: Nothing is erased.
NOTHING_ERASED = Erasures()
