"""What must be true of appends that wait for the bucket, checked from outside after every change and every promise."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.simulation.ledger import BrokenPromiseError
from tests.support.simulation.server import Client, Server
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, LogEntry
from tierlog.tiering.format.record import MAGIC_BLANK, decode_record
from tierlog.tiering.format.tail import Tail, TailKind, decode_tail


def number_of(body: bytes) -> int:
    """The number that a message's body begins with."""
    return int(body.split(b".", 1)[0])


def body_of(number: int, length: int) -> bytes:
    """A body of at least this length that says which message it is."""
    return b"%d" % number + b"." * length


@dataclass
class TailLedger:
    """Watches a server. Raises :class:`BrokenPromiseError` in whoever breaks a promise."""

    server: Server
    keys: ColdKeys
    grace_ms: int
    #: Physical offset of every message in a published segment, by number.
    published: dict[int, int] = field(default_factory=dict)
    #: Numbers of those that were acknowledged as archived.
    promised: set[int] = field(default_factory=set)
    #: Those of them that only tails held when they were acknowledged.
    promised_by_tails: int = 0
    fences: int = 0
    heads: int = 0
    head: Head | None = None

    def __post_init__(self) -> None:
        self._at: dict[int, int] = {}
        self._seen: set[str] = set()
        self._live: set[str] = set()
        self._tails: dict[tuple[str, str], Tail] = {}
        self.server.on_put = self._on_put
        self.server.on_delete = self._on_delete

    def acknowledged(self, numbers: list[int]) -> None:
        """Somebody was told that these survive the loss of the volume: they do, at this moment."""
        lost = set(numbers) - self.published.keys()
        if lost:
            in_tails = self._in_tails()
            self._hold(lost <= in_tails, f"{sorted(lost - in_tails)} acknowledged, and in no tail that counts")
            self.promised_by_tails += len(lost)
        self.promised |= set(numbers)

    def _hold(self, true: bool, what: str) -> None:
        if not true:
            raise BrokenPromiseError(what)

    def _on_delete(self, key: str) -> None:
        self._hold(key != self.keys.head, "the head was deleted")
        first = self.keys.first_of_tail(key)
        found = self.server.objects._objects.get(key)
        if first is None or found is None:
            return
        assert self.head is not None
        self._hold(first < self.head.archived_to, f"tail {first} was deleted, and its segment is not published")
        self._live.discard(key)
        age_ms = self.server.scheduler.now_ms - found[1].modified_ms
        self._hold(age_ms >= self.grace_ms, f"tail {first} was deleted at an age of {age_ms} ms")

    def _on_put(self, client: Client, key: str, data: bytes, note: object) -> None:
        if key == self.keys.head:
            self._on_head(Head.decode(data, path=key))
        elif key.startswith(self.keys.tails):
            self._hold(key not in self._live, f"{key} was replaced")
            self._live.add(key)
            self.fences += decode_tail(data, path=key).head.kind is TailKind.FENCE

    def _on_head(self, head: Head) -> None:
        before, self.head, self.heads = self.head, head, self.heads + 1
        if before is not None:
            self._hold(before.archived_to <= head.archived_to, "archived_to stepped back")
        for entry in head.log:
            if entry.key not in self._seen:
                self._seen.add(entry.key)
                self._on_segment(entry)
        if before is not None and head.log_gaps != before.log_gaps:  # the log of a new volume begins beyond a gap
            lost = self.promised - self.published.keys()
            self._hold(not lost, f"{sorted(lost)} were acknowledged, and a takeover left them behind")

    def _on_segment(self, entry: LogEntry) -> None:
        manifest = ManifestStore(self.server.objects, self.keys, randomness=SeededRandomness(0), options=ColdOptions())
        for position, data in SegmentReader(manifest.reader(), entry).raw_items():
            number = number_of(decode_record(bytes(data), 0).body)
            offset = entry.base + position
            self._hold(number not in self.published, f"message {number} was published twice")
            self._believe(offset, number)
            self.published[number] = offset

    def _believe(self, offset: int, number: int) -> None:
        """A reader takes this for the log: whatever else was taken for it must say the same."""
        said = self._at.setdefault(offset, number)
        self._hold(said == number, f"{offset} holds message {number}, and held {said} for others")

    def _in_tails(self) -> set[int]:
        """Messages in the chain that a restore would follow now; everything in it is believed from now on."""
        assert self.head is not None
        found: set[int] = set()
        position = self.head.archived_to
        while (stored := self.server.objects._objects.get(self.keys.tail(position))) is not None:
            tail = self._tail(stored[1].key, stored[1].etag, stored[0])
            if tail.head.kind is TailKind.FENCE:
                break
            for offset, number in _messages(tail):
                self._believe(offset, number)
                found.add(number)
            position = tail.head.end
        return found

    def _tail(self, key: str, etag: str, data: bytes) -> Tail:
        if (key, etag) not in self._tails:
            self._tails[key, etag] = decode_tail(data, path=key)
        return self._tails[key, etag]


def _messages(tail: Tail) -> list[tuple[int, int]]:
    """Physical offset and number of the messages in a tail."""
    found, at = [], 0
    while at < len(tail.payload):
        size, magic = (int.from_bytes(tail.payload[at + start : at + start + 4]) for start in (0, 4))
        if not size or magic == MAGIC_BLANK & 0xFFFFFFFF:
            break
        found.append((tail.head.first + at, number_of(decode_record(tail.payload, at).body)))
        at += size
    return found
