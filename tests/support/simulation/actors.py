"""The processes of a simulated archive: stores that write, a merge job, readers. Each lives with its failures."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from tests.support.simulation.ledger import Intent, Ledger, rows_of
from tests.support.simulation.scheduler import Process, Scheduler, SimClock, SimLock
from tests.support.simulation.server import GRACE_MS, HOUR_MS, MINUTE_MS, Client, Server, Weather
from tests.support.simulation.simulation import Simulation
from tierlog.tiering.base.errors import (
    ConflictError,
    FencedError,
    ObjectNotFoundError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.cold.manifest.sweep import Sweep
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry, ObjectRef, Tombstone
from tierlog.tiering.format.queue_rows import QUEUE_ROW, encode_queue_rows
from tierlog.tiering.format.store_state import StoreState
from tierlog.tiering.objects.transfer import put_verified, verify_object

SEGMENT = 4096
KEYS = ColdKeys("store")
#: Small pages, so that a day of commits makes a tree of two levels.
OPTIONS = ColdOptions(max_inline_entries=4, page_entries=4, grace_ms=GRACE_MS)


@dataclass
class Volume:
    """A disk: whose it is, and which open ids the head may hold."""

    volume_id: str
    head_open_ids: tuple[str, ...] = ()
    opens: int = 0


class SimManifest(ManifestStore):
    """A manifest whose calls say what they mean, and are held to what they report."""

    def __init__(self, simulation: ArchiveSimulation, client: Client, clock: SimClock) -> None:
        randomness = SeededRandomness(simulation.chance.getrandbits(60))
        super().__init__(client, KEYS, randomness=randomness, options=OPTIONS, clock=clock)
        self.randomness = randomness
        self._client = client
        self._scheduler = simulation.scheduler
        self._lock = SimLock(simulation.scheduler)  # type: ignore[assignment]

    def claimed(self, epoch: int) -> None:
        """Another manifest of this process has claimed the store."""
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        """The epoch that this process claimed."""
        return self._epoch or 0

    def hold_up(self) -> None:
        """Maybe take hours between an upload and its commit."""
        self._client.hold_up()

    def claim(self, owner: Ownership, *, log_begin: int, log_end: int) -> Head:
        with self._means(Intent("claim", ManifestChange(), None)):
            return super().claim(owner, log_begin=log_begin, log_end=log_end)

    def take_over(self, owner: Ownership, change: ManifestChange, expected: Head) -> Head:
        with self._means(Intent("take_over", change, None)):
            return super().take_over(owner, change, expected)

    def commit(self, change: ManifestChange, expected: Head) -> Head:
        with self._means(Intent("commit", change, self._epoch)):
            return super().commit(change, expected)

    def commit_other(
        self, change: ManifestChange, *, owned: bool = False, refuse: Callable[[Head], None] | None = None
    ) -> Head:
        with self._means(Intent("other", change, self._epoch if owned else None)):
            return super().commit_other(change, owned=owned, refuse=refuse)

    @contextmanager
    def _means(self, intent: Intent) -> Iterator[None]:
        self._client.notes[self._scheduler.running] = intent
        try:
            yield
        except (ConflictError, FencedError):
            assert not intent.landed, f"a {intent.kind} that landed was reported as refused"
            raise
        assert intent.landed or intent.kind == "claim", f"a {intent.kind} was reported and did not land"


class ArchiveSimulation(Simulation):
    """One simulated archive, and a ledger of what must be true of it."""

    def __init__(self, scheduler: Scheduler, server: Server, ledger: Ledger, weather: Weather) -> None:
        super().__init__(scheduler, server, weather)
        self.ledger = ledger


def open_store(simulation: ArchiveSimulation, volume: Volume, *, takes_over: bool = False, after_ms: int = 0) -> None:
    """Begin a process that writes with a volume; when killed it is opened again."""
    process = simulation.process("store")
    store = StoreProcess(simulation, volume, process, takes_over=takes_over)
    simulation.scheduler.spawn(process.name, process, store.run, after_ms=after_ms)
    simulation.when_killed(process, lambda: open_store(simulation, store.volume), after_ms=after_ms)


def start_job(simulation: ArchiveSimulation, kind: str, body: Callable[[ArchiveSimulation, Process], None]) -> None:
    """Begin a process that writes with no volume, or not at all; when killed it is begun again."""
    process = simulation.process(kind)
    simulation.scheduler.spawn(process.name, process, lambda: body(simulation, process))
    simulation.when_killed(process, lambda: start_job(simulation, kind, body))


class StoreProcess:
    """A store's way to its archive: claim, archive, index, expire, erase; and its sweep beside it."""

    def __init__(self, simulation: ArchiveSimulation, volume: Volume, process: Process, *, takes_over: bool) -> None:
        self._simulation, self._process, self._takes_over = simulation, process, takes_over
        self._clock = simulation.clock()
        self._chance = simulation.chance
        self.volume = volume

    def run(self) -> None:
        """Open, then work until fenced."""
        self.volume = replace(self.volume, opens=self.volume.opens + 1)
        open_id = f"{self.volume.volume_id}-{self._process.name}"
        self.volume = replace(self.volume, head_open_ids=(*self.volume.head_open_ids, open_id))
        self._manifest = SimManifest(self._simulation, self._simulation.client(self._process), self._clock)
        owner = Ownership(self.volume.volume_id, open_id, self.volume.head_open_ids)
        try:
            if self._takes_over:
                self._until_answered(lambda: self._take_over(owner))
                self._simulation.count("took over")
            else:
                self._until_answered(lambda: self._manifest.claim(owner, log_begin=0, log_end=1 << 60))
            self.volume = replace(self.volume, head_open_ids=(open_id,))
            name = f"{self._process.name}.sweep"
            self._simulation.scheduler.spawn(name, self._process, self._sweep)
            while True:
                self._until_answered(self._work)
                is_idle = self._chance.random() < 0.03
                self._simulation.sleep(2 * GRACE_MS if is_idle else 30 * MINUTE_MS)
        except (FencedError, StoreMismatchError):
            self._simulation.count("fenced")

    def _until_answered(self, step: Callable[[], object]) -> None:
        while True:
            try:
                step()
            except StoreMismatchError:
                raise
            except (UnavailableError, ConflictError, ObjectNotFoundError):
                self._simulation.sleep(MINUTE_MS)
            else:
                return

    def _work(self) -> None:
        head = self._manifest.refresh()
        if head.epoch != self._manifest.epoch:
            raise FencedError("taken over")
        steps = (self._archive, self._archive, self._index, self._index, self._expire, self._erase, self._state)
        self._chance.choice(steps)(head)

    def _archive(self, head: Head) -> None:
        begun_s = self._manifest.begin_upload()
        entry = upload_segment(self._manifest, head.archived_to)
        change = ManifestChange(log=(entry,), archived_to=entry.next, begun_s=begun_s)
        self._manifest.commit(change, head)
        self._simulation.count("archived")

    def _index(self, head: Head) -> None:
        if head.indexed_to >= head.archived_to:
            return
        following = min(head.archived_to, head.indexed_to + self._chance.choice((SEGMENT, SEGMENT // 2, 2 * SEGMENT)))
        change = ManifestChange(indexed_to=following)
        if self._chance.random() < 0.9 and not any(first < following for first, _ in head.log_gaps[-1:]):
            begun_s = self._manifest.begin_upload()
            entry = upload_index(self._manifest, 0, head.indexed_to, following)
            change = replace(change, index=(entry,), begun_s=begun_s)
        self._manifest.commit(change, head)
        self._simulation.count("indexed")

    def _expire(self, head: Head) -> None:
        first = head.cold_min + SEGMENT * self._chance.randrange(1, 4)
        if first <= head.indexed_to - 6 * SEGMENT:
            self._manifest.commit_other(ManifestChange(cold_min=first), owned=True)
            self._simulation.count("expired")

    def _erase(self, head: Head) -> None:
        reader = self._manifest.reader()
        entries = list(self._manifest.log_entries(reader, head))
        if not entries:
            return
        old = self._chance.choice(entries)
        stone = Tombstone(self._manifest.randomness.token_hex(4), "orders", None, "", None, None, old.next)
        self._manifest.commit_other(ManifestChange(add_tombstones=(stone,)), owned=True)
        begun_s = self._manifest.begin_upload()
        new = upload_segment(self._manifest, old.base, with_rows=self._chance.random() < 0.5)
        change = ManifestChange(
            log=(new,), remove=(old,), close_tombstones=(stone.tombstone_id,), begun_s=begun_s
        )  # fmt: skip
        self._manifest.commit_other(change, owned=True)
        self._simulation.count("erased")

    def _state(self, head: Head) -> None:
        begun_s = self._manifest.begin_upload()
        data = StoreState().encode()
        key = KEYS.state(self._manifest.randomness.token_hex(8))
        ref = ObjectRef(key, len(data), put_verified(self._manifest.objects, key, data), len(data))
        self._manifest.commit_other(ManifestChange(state=ref, begun_s=begun_s), owned=True)

    def _take_over(self, owner: Ownership) -> None:
        head = self._manifest.refresh()
        if head.open_id == owner.open_id:  # an earlier try landed after all
            self._manifest.claim(owner, log_begin=0, log_end=1 << 60)
            return
        start = head.archived_to + 5 * SEGMENT
        begun_s = self._manifest.begin_upload()
        index: tuple[IndexEntry, ...] = ()
        if head.indexed_to < head.archived_to:
            index = (upload_index(self._manifest, 0, head.indexed_to, head.archived_to),)
        change = ManifestChange(
            index=index, archived_to=start, indexed_to=start, log_gaps=((head.archived_to, start),), begun_s=begun_s
        )  # fmt: skip
        self._manifest.take_over(owner, change, head)

    def _sweep(self) -> None:
        # a manifest of its own: readers of one wait for each other's fetches, which is no place where others go on here
        manifest = SimManifest(self._simulation, self._simulation.client(self._process), self._clock)
        manifest.claimed(self._manifest.epoch)
        sweep = Sweep(manifest, self._clock, lambda: None)
        while True:
            self._simulation.sleep(GRACE_MS // 4)
            try:
                report = sweep.run(lambda: None)
            except FencedError:
                return
            except (UnavailableError, ConflictError, ObjectNotFoundError):
                continue
            assert not report.kept, report.kept
            if report.removed or report.orphans:
                self._simulation.count("swept")


def upload_segment(manifest: SimManifest, base: int, *, with_rows: bool = True) -> LogEntry:
    """Store a sorted segment and its queue rows."""
    key = KEYS.segment(base, manifest.epoch, manifest.randomness.token_hex(4))
    data = b"segment %d" % base
    manifest.objects.upload(key, [data[:4], data[4:]])
    verify_object(manifest.objects, key, len(data), zlib.crc32(data))
    rows = None
    if with_rows:
        rows_key = KEYS.queue_rows(base, manifest.epoch, manifest.randomness.token_hex(4))
        encoded, section = encode_queue_rows(np.array(rows_of(base, SEGMENT), QUEUE_ROW), rows_key)
        crc = put_verified(manifest.objects, rows_key, encoded)
        rows = ObjectRef(rows_key, len(encoded), crc, section.head_length)
    manifest.hold_up()
    return LogEntry(key, base, SEGMENT, len(data), zlib.crc32(data), 9, 1, bounds_of(base), {}, rows)


def upload_index(manifest: SimManifest, level: int, first: int, following: int) -> IndexEntry:
    """Store an index object."""
    key = KEYS.index(
        level, begin_ms=first, first_physical=first, epoch=manifest.epoch, nonce=manifest.randomness.token_hex(4)
    )
    data = b"index %d" % first
    manifest.objects.upload(key, [data])
    verify_object(manifest.objects, key, len(data), zlib.crc32(data))
    manifest.hold_up()
    bounds = bounds_of(first)
    return IndexEntry(key, level, first, following, 0, len(data), zlib.crc32(data), 1, 9, 0, 9, "tierlog", bounds, {})


def bounds_of(offset: int) -> TimeBounds:
    """Times that rise with the offset."""
    number = offset // SEGMENT
    return TimeBounds(number * 1000, number * 1000 + 999, number * 1000, number * 1000 + 999)


def run_merges(simulation: ArchiveSimulation, process: Process) -> None:
    """A job of its own: several neighbouring index objects become one."""
    manifest = SimManifest(simulation, simulation.client(process), simulation.clock())
    while True:
        simulation.sleep(2 * HOUR_MS)
        try:
            head = manifest.refresh()
            entries = sorted(manifest.all_index_entries(manifest.reader(), head), key=lambda entry: entry.first)
            if len(entries) < 3:
                continue
            start = simulation.chance.randrange(len(entries) - 1)
            inputs = tuple(entries[start : start + simulation.chance.randrange(2, 5)])
            begun_s = manifest.begin_upload()
            merged = upload_index(manifest, 1, inputs[0].first, inputs[-1].next)
            manifest.commit_other(ManifestChange(index=(merged,), remove=inputs, begun_s=begun_s))
            simulation.count("merged")
        except (UnavailableError, ConflictError, ObjectNotFoundError):
            simulation.count("merge refused")


def run_reader(simulation: ArchiveSimulation, process: Process) -> None:
    """Reads everything below one head over hours, and what it holds within the grace period must be there."""
    while True:
        simulation.sleep(2 * HOUR_MS)
        manifest = SimManifest(simulation, simulation.client(process), simulation.clock())
        reader = manifest.reader()
        read_at_ms, had_head = simulation.scheduler.now_ms, simulation.ledger.head is not None
        key = KEYS.head
        try:
            head = manifest.refresh()
            for page in manifest.pages(reader, head):
                key = page.key
                manifest.objects.head(key)
                if simulation.chance.random() < 0.1:
                    simulation.sleep(GRACE_MS // 3)
            for segment in manifest.log_entries(reader, head):
                key = segment.key
                manifest.objects.get_range(key, 0, 5)
            for items in manifest.all_index_entries(reader, head):
                key = items.key
                manifest.objects.get_range(key, 0, 5)
            simulation.count("read")
        except ObjectNotFoundError as error:
            missing = error.path or key
            if missing != KEYS.head or had_head:  # the first one may come while the answer is on its way
                simulation.ledger.judge_missing(missing, read_at_ms)
            simulation.count("read too late")
        except UnavailableError:
            simulation.count("read given up")
