"""Finds out whether an object store is safe for an archive, by requests below a prefix of its own.

:class:`Doctor` asks all that the contract demands; :func:`broken_condition` only whether compare-and-swap holds. Every
probe answers one question with one row. What is wrong is a finding; what is merely worth knowing is a note. Nothing
stays behind: the names are remembered, since a store that lists late does not tell them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ObjectNotFoundError, PreconditionFailedError, StoreError, TornRecordError
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore
from tierlog.tiering.objects.races import Condition, RaceReport, Racers, ThreadRacers, race

#: Where doctors work, below the prefix of an archive; no store id has a slash.
FOLDER = "cluster/doctor-"
# As large as the parts of an upload, so that two of them begin one.
_PART_BYTES = 8 << 20
_SKEW_NOTE_MS = 5_000
_SKEW_FINDING_MS = 60_000
_LEFT_OVER_MS = 6 * 3_600_000
_CLEANERS = 16
_CLEANINGS = 3
#: Of the short race.
_WRITERS = 8
_ROUNDS = 2


class CheckState(StrEnum):
    """The weight of a row."""

    OK = "ok"
    NOTE = "note"
    FINDING = "finding"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One capability."""

    capability: str
    state: CheckState
    detail: str


@dataclass(slots=True)
class Diagnosis:
    """All rows, the races, and latencies in ms by operation as (p50, p99)."""

    rows: list[CheckRow] = field(default_factory=list)
    races: list[RaceReport] = field(default_factory=list)
    latency_ms: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def findings(self) -> list[CheckRow]:
        return [row for row in self.rows if row.state is CheckState.FINDING]

    @property
    def verdict(self) -> str:
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

    def reach(self) -> None:
        """Writes a first object: raises the store's own error if it cannot be reached, before more is made ready."""
        self._store.put(self._name("first"), b"x")

    def examine(
        self, racers: Racers | None, *, rounds: int, samples: int, on_row: Callable[[CheckRow], None] = lambda _: None
    ) -> Diagnosis:
        """Runs all probes; ``racers`` None leaves the races out.

        Raises the store's own error if it cannot be reached at all; a probe that fails later is a finding.
        """
        self.reach()
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
        """Removes all of it, and what other doctors left long ago; raises the store's error if that is refused."""
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

    def _row(
        self, capability: str, probe: Callable[[], tuple[CheckState, str]], on_row: Callable[[CheckRow], None]
    ) -> None:
        try:
            state, detail = probe()
        except StoreError as error:
            state, detail = CheckState.FINDING, f"failed: {error.message}"
        row = CheckRow(capability, state, detail)
        self._diagnosis.rows.append(row)
        on_row(row)

    # ------------------------------------------------------------------------------------------------- probes

    def _whole(self) -> tuple[CheckState, str]:
        key = self._name("whole é+%20")
        for body in (b"", b"one", b"second"):
            self._store.put(key, body)
            if self._store.get(key)[0] != body or self._store.head(key).size_bytes != len(body):
                return CheckState.FINDING, "a read gave something else than the write before it"
        if self._store.head(key).crc32 is None:
            return CheckState.NOTE, "the server keeps no CRC-32: every object is read back after it was stored"
        return CheckState.OK, "each read gives the write before it; the server keeps a CRC-32"

    def _ranges(self) -> tuple[CheckState, str]:
        key, data = self._name("ranges"), bytes(range(256)) * 64
        self._store.put(key, data)
        for start, end in ((0, 1), (100, 5_000), (len(data) - 1, len(data))):
            if self._store.get_range(key, start, end) != data[start:end]:
                return CheckState.FINDING, f"[{start}, {end}) gave other bytes"
        if not _raises(TornRecordError, lambda: self._store.get_range(key, 16_000, 20_000)):
            return CheckState.FINDING, "a range beyond the end is not told from a whole one"
        return CheckState.OK, "exact, and refused beyond the end"

    def _if_absent(self) -> tuple[CheckState, str]:
        key = self._name("absent")
        self._store.put(key, b"first", if_absent=True)
        refused = _raises(PreconditionFailedError, lambda: self._store.put(key, b"second", if_absent=True))
        if not refused or self._store.get(key)[0] != b"first":
            return CheckState.FINDING, "an object that exists was replaced"
        self._store.delete(key)
        if _raises(PreconditionFailedError, lambda: self._store.put(key, b"third", if_absent=True)):
            return CheckState.NOTE, "refused for an existing object, and for a deleted one too"
        return CheckState.OK, "refused for an existing object"

    def _if_match(self) -> tuple[CheckState, str]:
        key = self._name("match")
        stale = self._store.put(key, b"one").etag
        if _raises(PreconditionFailedError, lambda: self._store.put(key, b"two", if_match=stale)):
            return CheckState.FINDING, "refused with the etag that the object has"
        refused = _raises(PreconditionFailedError, lambda: self._store.put(key, b"three", if_match=stale))
        if not refused or self._store.get(key)[0] != b"two":
            return CheckState.FINDING, "an object was replaced on the etag of an older version"
        return CheckState.OK, "refused for another version"

    def _conditional_get(self) -> tuple[CheckState, str]:
        key = self._name("watched")
        etag = self._store.put(key, b"one").etag
        silent = self._store.get_if_changed(key, etag) is None
        self._store.put(key, b"two")
        found = self._store.get_if_changed(key, etag)
        if found is None or found[0] != b"two":
            return CheckState.FINDING, "a change was not told"
        if not silent:
            return CheckState.NOTE, "an unchanged object is sent again: watching the archive costs its bytes each time"
        return CheckState.OK, "silent until it changes"

    def _listing(self) -> tuple[CheckState, str]:
        names = [self._name(f"list/{number}") for number in (9, 10, 1, 2, 11)]
        for number, key in enumerate(names, start=1):
            self._store.put(key, b"x")
            found = [info.key for info in self._store.list(f"{self.folder}/list/")]
            if found != sorted(names[:number]):
                return CheckState.FINDING, f"after {number} writes {len(found)} were listed, or in another order"
        ordered = sorted(names)
        if [info.key for info in self._store.list(f"{self.folder}/list/", ordered[1])] != ordered[2:]:
            return CheckState.FINDING, "a listing after a key does not begin there"
        return CheckState.OK, "at once, in byte order, also after a key"

    def _deletion(self) -> tuple[CheckState, str]:
        key = self._name("deleted/x")
        self._store.put(key, b"x")
        self._store.delete(key)
        self._store.delete(key)
        if not _raises(ObjectNotFoundError, lambda: self._store.get(key)):
            return CheckState.FINDING, "a deleted object can be read"
        if list(self._store.list(f"{self.folder}/deleted/")):
            return CheckState.FINDING, "a deleted object is listed"
        return CheckState.OK, "at once, and may be repeated"

    def _upload(self) -> tuple[CheckState, str]:
        key, part = self._name("upload"), bytes(range(256)) * (_PART_BYTES // 256)
        data = part * 2 + b"end"
        info = self._store.upload(key, [part, part, b"end"])
        if info.size_bytes != len(data) or self._store.get(key)[0] != data:
            return CheckState.FINDING, "the object is not what was sent"
        if self._store.head(key).crc32 is None:
            return CheckState.NOTE, "whole; without a CRC-32 of the whole, so that every upload is read back"
        return CheckState.OK, "whole, with a CRC-32 of the whole"

    def _upload_if_absent(self, store: ConditionalUploads) -> tuple[CheckState, str]:
        key, pieces = self._name("upload-absent"), [bytes(_PART_BYTES), b"end"]
        store.upload_if_absent(key, pieces)
        if _raises(PreconditionFailedError, lambda: store.upload_if_absent(key, [bytes(_PART_BYTES), b"other"])):
            return CheckState.OK, "refused for an existing object"
        return CheckState.NOTE, "not refused for an existing object; tierlog gives every upload a name of its own"

    def _pending(self) -> tuple[CheckState, str]:
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
            return CheckState.FINDING, "an upload that was broken off is still there"
        if seen != [key]:
            return CheckState.NOTE, "not listed: what a killed upload leaves is for a rule of the bucket to remove"
        return CheckState.OK, "listed, and dropped when broken off"

    def _skew(self) -> tuple[CheckState, str]:
        before_ms = self._clock.now_ms()
        server_ms = self._store.now_ms()
        after_ms = self._clock.now_ms()
        # a server states whole seconds
        skew_ms = max(0, before_ms - 1_000 - server_ms) or -max(0, server_ms - after_ms)
        text = f"{abs(skew_ms) / 1000:.1f} s {'behind' if skew_ms > 0 else 'ahead of'} this machine"
        if abs(skew_ms) > _SKEW_FINDING_MS:
            return CheckState.FINDING, f"the server is {text}: objects would outlive, or not reach, their time"
        return (CheckState.NOTE if abs(skew_ms) > _SKEW_NOTE_MS else CheckState.OK), f"the server is {text}"

    def _race(self, racers: Racers, condition: Condition, rounds: int) -> tuple[CheckState, str]:
        report = race(self._store, racers, condition, lambda name: self._name(f"race/{name}"), rounds)
        self._diagnosis.races.append(report)
        run = f"{report.rounds} rounds of {report.writers} writers"
        if report.broken:
            return CheckState.FINDING, f"{report.broken} of {run} broken; {report.violations[0]}"
        return CheckState.OK, f"{run}, one winner each" + (
            f"; {report.unanswered} writes without an answer" if report.unanswered else ""
        )

    def _latency(self, samples: int) -> tuple[CheckState, str]:
        key, data = self._name("latency"), bytes(1024)
        etag = self._store.put(key, data).etag
        for name, call in (
            ("put 1 KiB", lambda: self._store.put(key, data)),
            ("get 1 KiB", lambda: self._store.get(key)),
            ("conditional get", lambda: self._store.get_if_changed(key, etag)),
            ("range of 100 B", lambda: self._store.get_range(key, 100, 200)),
        ):
            self._diagnosis.latency_ms[name] = self._timed(samples, call)
        return CheckState.OK, "p50/p99 ms: " + ", ".join(
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


def broken_condition(store: ObjectStore, token: str) -> str | None:
    """Returns what is wrong with conditional writes, or None: about 50 requests, once.

    Raises the store's error if it cannot be asked. One after another first, which finds servers that know no
    conditions, then a short race. What is written lies where doctors work, and is removed.
    """
    names: list[str] = []

    def name(text: str) -> str:
        names.append(f"{FOLDER}{token}/{text}")
        return names[-1]

    racers = ThreadRacers(store, _WRITERS)
    try:
        for problem in (_absent_is_ignored(store, name("absent")), _match_is_ignored(store, name("stale"))):
            if problem is not None:
                return problem
        for condition in Condition:
            report = race(store, racers, condition, name, _ROUNDS)
            if report.broken:
                return f"put {condition}, raced by {_WRITERS} writers: {report.violations[0]}"
        return None
    finally:
        racers.close()
        for key in dict.fromkeys(names):
            store.delete(key)


def _absent_is_ignored(store: ObjectStore, key: str) -> str | None:
    store.put(key, b"first", if_absent=True)
    try:
        store.put(key, b"second", if_absent=True)
    except PreconditionFailedError:
        return None
    return "put if absent replaced an object"


def _match_is_ignored(store: ObjectStore, key: str) -> str | None:
    stale = store.put(key, b"one").etag
    store.put(key, b"two")
    try:
        store.put(key, b"three", if_match=stale)
    except PreconditionFailedError:
        return None
    return "put if match replaced another version"
