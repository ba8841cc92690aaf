"""Is this object store safe for an archive? Asks it, below a prefix of its own, what the contract demands.

Every probe answers one question with one row. What is wrong is a finding; what is merely worth knowing is a note.
Nothing stays behind: the names are remembered, since a store that lists late does not tell them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from tiering.clock import Clock
from tiering.cold.object_store import ObjectInfo, ObjectStore
from tiering.cold.races import Condition, RaceReport, Racers, race
from tiering.errors import ObjectNotFoundError, PreconditionFailedError, StoreError, TornRecordError

#: Where doctors work, below the prefix of an archive; no store id has a slash.
FOLDER = "cluster/doctor-"
# As large as the parts of an upload, so that two of them begin one.
_PART_BYTES = 8 << 20
_SKEW_NOTE_MS = 5_000
_SKEW_FINDING_MS = 60_000
_LEFT_OVER_MS = 6 * 3_600_000
_CLEANERS = 16
_CLEANINGS = 3


class State(StrEnum):
    """How a row is to be taken."""

    OK = "ok"
    NOTE = "note"
    FINDING = "finding"


@dataclass(frozen=True, slots=True)
class Row:
    """One capability."""

    capability: str
    state: State
    detail: str


@dataclass(slots=True)
class Diagnosis:
    """All rows, the races, and latencies in ms by operation as (p50, p99)."""

    rows: list[Row] = field(default_factory=list)
    races: list[RaceReport] = field(default_factory=list)
    latency_ms: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def findings(self) -> list[Row]:
        """What is wrong."""
        return [row for row in self.rows if row.state is State.FINDING]

    @property
    def verdict(self) -> str:
        """One sentence."""
        wrong = [row.capability for row in self.findings]
        if not wrong:
            return "safe: this bucket keeps what tierlog relies on, as far as these probes can tell"
        if any(name.startswith(("put if", "race")) for name in wrong):
            return (
                "not safe: compare-and-swap does not hold here, so that two writers can overwrite each other's archive "
                f"({', '.join(wrong)})"
            )
        return f"not safe: {', '.join(wrong)} not as tierlog relies on"


@runtime_checkable
class ConditionalUploads(Protocol):
    """A store that can make an upload in parts depend on a condition, which the contract does not ask for."""

    def upload_if_absent(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Raises PreconditionFailedError if there is such an object."""
        ...


class Doctor:
    """Probes one store below ``cluster/doctor-<token>/``. Call :meth:`clean` whatever happened."""

    def __init__(self, store: ObjectStore, clock: Clock, token: str) -> None:
        self.folder = f"{FOLDER}{token}"
        self._store = store
        self._clock = clock
        self._names: set[str] = set()
        self._diagnosis = Diagnosis()

    def examine(
        self, racers: Racers | None, *, rounds: int, samples: int, on_row: Callable[[Row], None] = lambda _: None
    ) -> Diagnosis:
        """All probes; ``racers`` None leaves the races out.

        Raises the store's own error if it cannot be reached at all; a probe that fails later is a finding.
        """
        self._store.put(self._name("first"), b"x")
        for capability, probe in (
            ("get, overwrite", self._whole),
            ("ranges", self._ranges),
            ("put if absent", self._if_absent),
            ("put if match", self._if_match),
            ("conditional get", self._conditional_get),
            ("list after write", self._listing),
            ("delete", self._deletion),
            ("upload in parts", self._upload),
            ("pending uploads", self._pending),
            ("clock", self._skew),
        ):
            self._row(capability, probe, on_row)
        store = self._store
        if isinstance(store, ConditionalUploads):
            self._row("upload if absent", lambda: self._upload_if_absent(store), on_row)
        if racers is not None:
            for condition in Condition:
                self._row(f"race {condition}", lambda: self._race(racers, condition, rounds), on_row)  # noqa: B023
        if samples:
            self._row("latency", lambda: self._latency(samples), on_row)
        return self._diagnosis

    def clean(self) -> None:
        """Remove all of it, and what other doctors left long ago; raises the store's error if that is refused."""
        prefix = f"{self.folder}/"
        self._delete_all(self._names)
        self._names.clear()
        for _ in range(_CLEANINGS):  # a put whose answer was lost may still arrive
            found = [info.key for info in self._store.list(prefix)]
            if not found:
                break
            self._delete_all(found)
        for pending in self._store.list_uploads(prefix):
            self._store.abort_upload(pending)
        with contextlib.suppress(StoreError):
            now_ms = self._store.now_ms()
            old = (info.key for info in self._store.list(FOLDER) if now_ms - info.modified_ms > _LEFT_OVER_MS)
            self._delete_all(old)

    def _delete_all(self, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(_CLEANERS) as pool:
            list(pool.map(self._store.delete, names))

    def _name(self, name: str) -> str:
        key = f"{self.folder}/{name}"
        self._names.add(key)
        return key

    def _row(self, capability: str, probe: Callable[[], tuple[State, str]], on_row: Callable[[Row], None]) -> None:
        try:
            state, detail = probe()
        except StoreError as error:
            state, detail = State.FINDING, f"failed: {error.message}"
        row = Row(capability, state, detail)
        self._diagnosis.rows.append(row)
        on_row(row)

    # ------------------------------------------------------------------------------------------------- probes

    def _whole(self) -> tuple[State, str]:
        key = self._name("whole é+%20")
        for body in (b"", b"one", b"second"):
            self._store.put(key, body)
            if self._store.get(key)[0] != body or self._store.head(key).size_bytes != len(body):
                return State.FINDING, "a read gave something else than the write before it"
        if self._store.head(key).crc32 is None:
            return State.NOTE, "the server keeps no CRC-32: every object is read back after it was stored"
        return State.OK, "each read gives the write before it; the server keeps a CRC-32"

    def _ranges(self) -> tuple[State, str]:
        key, data = self._name("ranges"), bytes(range(256)) * 64
        self._store.put(key, data)
        for start, end in ((0, 1), (100, 5_000), (len(data) - 1, len(data))):
            if self._store.get_range(key, start, end) != data[start:end]:
                return State.FINDING, f"[{start}, {end}) gave other bytes"
        if not _raises(TornRecordError, lambda: self._store.get_range(key, 16_000, 20_000)):
            return State.FINDING, "a range beyond the end is not told from a whole one"
        return State.OK, "exact, and refused beyond the end"

    def _if_absent(self) -> tuple[State, str]:
        key = self._name("absent")
        self._store.put(key, b"first", if_absent=True)
        refused = _raises(PreconditionFailedError, lambda: self._store.put(key, b"second", if_absent=True))
        if not refused or self._store.get(key)[0] != b"first":
            return State.FINDING, "an object that exists was replaced"
        self._store.delete(key)
        if _raises(PreconditionFailedError, lambda: self._store.put(key, b"third", if_absent=True)):
            return State.NOTE, "refused for an existing object, and for a deleted one too"
        return State.OK, "refused for an existing object"

    def _if_match(self) -> tuple[State, str]:
        key = self._name("match")
        stale = self._store.put(key, b"one").etag
        if _raises(PreconditionFailedError, lambda: self._store.put(key, b"two", if_match=stale)):
            return State.FINDING, "refused with the etag that the object has"
        refused = _raises(PreconditionFailedError, lambda: self._store.put(key, b"three", if_match=stale))
        if not refused or self._store.get(key)[0] != b"two":
            return State.FINDING, "an object was replaced on the etag of an older version"
        return State.OK, "refused for another version"

    def _conditional_get(self) -> tuple[State, str]:
        key = self._name("watched")
        etag = self._store.put(key, b"one").etag
        silent = self._store.get_if_changed(key, etag) is None
        self._store.put(key, b"two")
        found = self._store.get_if_changed(key, etag)
        if found is None or found[0] != b"two":
            return State.FINDING, "a change was not told"
        if not silent:
            return State.NOTE, "an unchanged object is sent again: watching the archive costs its bytes each time"
        return State.OK, "silent until it changes"

    def _listing(self) -> tuple[State, str]:
        names = [self._name(f"list/{number}") for number in (9, 10, 1, 2, 11)]
        for number, key in enumerate(names, start=1):
            self._store.put(key, b"x")
            found = [info.key for info in self._store.list(f"{self.folder}/list/")]
            if found != sorted(names[:number]):
                return State.FINDING, f"after {number} writes {len(found)} were listed, or in another order"
        ordered = sorted(names)
        if [info.key for info in self._store.list(f"{self.folder}/list/", ordered[1])] != ordered[2:]:
            return State.FINDING, "a listing after a key does not begin there"
        return State.OK, "at once, in byte order, also after a key"

    def _deletion(self) -> tuple[State, str]:
        key = self._name("deleted/x")
        self._store.put(key, b"x")
        self._store.delete(key)
        self._store.delete(key)
        if not _raises(ObjectNotFoundError, lambda: self._store.get(key)):
            return State.FINDING, "a deleted object can be read"
        if list(self._store.list(f"{self.folder}/deleted/")):
            return State.FINDING, "a deleted object is listed"
        return State.OK, "at once, and may be repeated"

    def _upload(self) -> tuple[State, str]:
        key, part = self._name("upload"), bytes(range(256)) * (_PART_BYTES // 256)
        data = part * 2 + b"end"
        info = self._store.upload(key, [part, part, b"end"])
        if info.size_bytes != len(data) or self._store.get(key)[0] != data:
            return State.FINDING, "the object is not what was sent"
        if self._store.head(key).crc32 is None:
            return State.NOTE, "whole; without a CRC-32 of the whole, so that every upload is read back"
        return State.OK, "whole, with a CRC-32 of the whole"

    def _upload_if_absent(self, store: ConditionalUploads) -> tuple[State, str]:
        key, pieces = self._name("upload-absent"), [bytes(_PART_BYTES), b"end"]
        store.upload_if_absent(key, pieces)
        if _raises(PreconditionFailedError, lambda: store.upload_if_absent(key, [bytes(_PART_BYTES), b"other"])):
            return State.OK, "refused for an existing object"
        return State.NOTE, "not refused for an existing object; tierlog gives every upload a name of its own"

    def _pending(self) -> tuple[State, str]:
        seen: list[str] = []

        def pieces() -> Iterable[bytes]:
            for _ in range(3):
                yield bytes(_PART_BYTES)
            seen.extend(pending.key for pending in self._store.list_uploads(f"{self.folder}/"))
            raise _BrokenOffError

        key = self._name("pending/x")
        with contextlib.suppress(_BrokenOffError):
            self._store.upload(key, pieces())
        if list(self._store.list_uploads(f"{self.folder}/")) or not _raises(
            ObjectNotFoundError, lambda: self._store.head(key)
        ):
            return State.FINDING, "an upload that was broken off is still there"
        if seen != [key]:
            return State.NOTE, "not listed: what a killed upload leaves is for a rule of the bucket to remove"
        return State.OK, "listed, and dropped when broken off"

    def _skew(self) -> tuple[State, str]:
        before_ms = self._clock.now_ms()
        server_ms = self._store.now_ms()
        after_ms = self._clock.now_ms()
        # a server states whole seconds
        skew_ms = max(0, before_ms - 1_000 - server_ms) or -max(0, server_ms - after_ms)
        text = f"{abs(skew_ms) / 1000:.1f} s {'behind' if skew_ms > 0 else 'ahead of'} this machine"
        if abs(skew_ms) > _SKEW_FINDING_MS:
            return State.FINDING, f"the server is {text}: objects would outlive, or not reach, their time"
        return (State.NOTE if abs(skew_ms) > _SKEW_NOTE_MS else State.OK), f"the server is {text}"

    def _race(self, racers: Racers, condition: Condition, rounds: int) -> tuple[State, str]:
        report = race(self._store, racers, condition, lambda name: self._name(f"race/{name}"), rounds)
        self._diagnosis.races.append(report)
        run = f"{report.rounds} rounds of {report.writers} writers"
        if report.broken:
            return State.FINDING, f"{report.broken} of {run} broken; {report.violations[0]}"
        return State.OK, f"{run}, one winner each" + (
            f"; {report.unanswered} writes without an answer" if report.unanswered else ""
        )

    def _latency(self, samples: int) -> tuple[State, str]:
        key, data = self._name("latency"), bytes(1024)
        etag = self._store.put(key, data).etag
        for name, call in (
            ("put 1 KiB", lambda: self._store.put(key, data)),
            ("get 1 KiB", lambda: self._store.get(key)),
            ("conditional get", lambda: self._store.get_if_changed(key, etag)),
            ("range of 100 B", lambda: self._store.get_range(key, 100, 200)),
        ):
            self._diagnosis.latency_ms[name] = self._timed(samples, call)
        return State.OK, "p50/p99 ms: " + ", ".join(
            f"{name} {p50:.1f}/{p99:.1f}" for name, (p50, p99) in self._diagnosis.latency_ms.items()
        )

    def _timed(self, samples: int, call: Callable[[], object]) -> tuple[float, float]:
        taken = []
        for _ in range(samples):
            start_s = self._clock.monotonic_s()
            call()
            taken.append((self._clock.monotonic_s() - start_s) * 1000)
        taken.sort()
        return taken[len(taken) // 2], taken[min(len(taken) - 1, len(taken) * 99 // 100)]


class _BrokenOffError(Exception):
    """Ends an upload in the middle."""


def _raises(kind: type[StoreError], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False
