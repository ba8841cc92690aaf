"""The tails of one store as objects, and ``tierlog/tails.json``: how far they may reach, known without the bucket.

Tails are made if absent, read, followed from name to name, and removed after grace. The file is::

    {"format": 1, "end": 81920, "confirmed": 65536}

No tail of this volume reaches beyond ``end``: it is durable before a tail is sent. All tails below ``confirmed``
exist. A log that ends below ``end`` at opening has lost bytes that may have been acknowledged as archived (a disk
that lied, damage to the last segment); nothing else may take their places.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tierlog.tiering.base.errors import ObjectNotFoundError, PreconditionFailedError, TornRecordError, UnavailableError
from tierlog.tiering.base.fs import ByteArray, FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import ColdKeys, StorePaths
from tierlog.tiering.format.section import HEADER
from tierlog.tiering.format.tail import Tail, TailHead, TailKind, decode_tail, encode_tail
from tierlog.tiering.objects.object_store import ObjectStore

_HEAD_BYTES = 16 << 10
_FILE = JsonFile[tuple[int, int]](
    decode=lambda document: (int(document["end"]), int(document["confirmed"])),
    encode=lambda marks: {"end": marks[0], "confirmed": marks[1]},
)


@dataclass(frozen=True, slots=True)
class StoredTail:
    """A tail that exists, and when it was made on the server's clock."""

    head: TailHead
    modified_ms: int


class TailObjects:
    """The tails of one store in its bucket. Thread safe."""

    def __init__(self, objects: ObjectStore, keys: ColdKeys) -> None:
        self._objects = objects
        self._keys = keys

    def create(self, head: TailHead, payload: ByteArray | bytes = b"") -> StoredTail:
        """Creates a tail, and returns what now lies under its name: this one (same nonce) or the one that was faster.

        Raises the object store's error if that could not be learnt: calling again with the same head is safe, whatever
        became of the call before.
        """
        key = self._keys.tail(head.first)
        try:
            return StoredTail(head, self._objects.put(key, encode_tail(head, payload), if_absent=True).modified_ms)
        except PreconditionFailedError as error:
            found = self.describe(head.first)
            if found is None:  # the refusal was a conflict of two writes of which neither came to be
                raise UnavailableError("a tail that stood in the way is gone", path=key) from error
            return found

    def describe(self, first: int) -> StoredTail | None:
        """Returns what is said about the tail of this name, or None where there is none."""
        key = self._keys.tail(first)
        try:
            info = self._objects.head(key)
            data = self._objects.get_range(key, 0, min(info.size_bytes, _HEAD_BYTES))
            if len(data) >= HEADER.size:
                needed = HEADER.size + HEADER.unpack_from(data)[2]
                if len(data) < needed <= info.size_bytes:
                    data = self._objects.get_range(key, 0, needed)
        except ObjectNotFoundError:
            return None
        return StoredTail(self._checked(TailHead.decode(data, path=key), first), info.modified_ms)

    def read(self, first: int) -> Tail | None:
        """Returns the tail of this name, every byte verified, or None where there is none."""
        key = self._keys.tail(first)
        try:
            data, _ = self._objects.get(key)
        except ObjectNotFoundError:
            return None
        tail = decode_tail(data, path=key)
        self._checked(tail.head, first)
        return tail

    def follow(self, start: int) -> Iterator[TailHead]:
        """Heads of the chain from the name ``start`` on, a fence last if one ends it."""
        while (found := self.describe(start)) is not None:
            yield found.head
            if found.head.kind is TailKind.FENCE:
                return
            start = found.head.end

    def remove_from(self, offset: int) -> None:
        """Deletes every tail that has anything at or above an offset, the first of them first.

        Killed in here: the chain ends below the offset, or everything is there still.
        """
        firsts = [self._keys.first_of_tail(info.key) for info in self._objects.list(self._keys.tails)]
        known = sorted(first for first in firsts if first is not None)
        doomed = [first for first in known if first >= offset]
        below = [first for first in known if first < offset]
        if below and (found := self.describe(below[-1])) is not None and found.head.end > offset:
            doomed.insert(0, below[-1])
        for first in doomed:
            self._objects.delete(self._keys.tail(first))

    def remove_old(self, below: int, before_ms: int, limit: int) -> int:
        """Deletes up to ``limit`` tails named below ``below`` that were made before ``before_ms`` (server's clock).

        Oldest first, and only as far as all are old, so that a listing costs no more than what it removes. Returns how
        many went.
        """
        removed = 0
        for info in self._objects.list(self._keys.tails):
            first = self._keys.first_of_tail(info.key)
            if removed == limit or first is None or first >= below or info.modified_ms >= before_ms:
                break
            self._objects.delete(info.key)
            removed += 1
        return removed

    def _checked(self, head: TailHead, first: int) -> TailHead:
        if head.first != first or head.store_id != self._keys.store_id:
            raise TornRecordError(
                f"a tail of store {head.store_id} from {head.first} has another's name", path=self._keys.tail(first)
            )
        return head


class TailMark:
    """The marks of one volume, as ``tierlog/tails.json`` has them. Thread safe."""

    def __init__(self, fs: FileSystem, paths: StorePaths) -> None:
        self._fs = fs
        self._paths = paths
        self._lock = threading.Lock()
        self.end, self.confirmed = _FILE.read(fs, paths.tails_json) or (0, 0)

    def lower_to(self, end: int) -> None:
        """Makes durable that no tail reaches beyond ``end`` any more; how far they do is looked up anew."""
        with self._lock:
            if end < self.end:
                _FILE.replace(self._fs, self._paths.tails_json, (end, 0), self._paths.tmp)
                self.end, self.confirmed = end, 0

    def raise_to(self, end: int, confirmed: int, step: AbstractContextManager[object] | None = None) -> None:
        """Makes durable that tails may reach ``end``, and notes how far they are known to; inside ``step`` if given."""
        with self._lock:
            if end <= self.end:
                return
            marks = end, max(confirmed, self.confirmed)
            with step or nullcontext():
                _FILE.replace(self._fs, self._paths.tails_json, marks, self._paths.tmp)
            self.end, self.confirmed = marks
