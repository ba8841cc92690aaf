"""The sweep: what nobody names goes a grace period later, and nothing else, whoever commits or dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.objects.priced_store import PricedStore
from tests.tiering.cold.manifest.test_manifest_store import KEYS, OWNER, SEGMENT, entry, index_entry
from tests.tiering.cold.manifest.test_manifest_tree import OPTIONS, Archive
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ClosedError,
    ConflictError,
    FencedError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
)
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest import sweep as sweep_module
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.cold.manifest.sweep import NameSet, Sweep, SweepReport
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore, PendingUpload

G = OPTIONS.grace_ms


class Swept(Archive):
    """An archive whose owner sweeps through a store that a test may disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.faulty = FaultyObjectStore(self.objects)
        self.manifest.objects = self.faulty
        self.going_on: Callable[[], None] = lambda: None
        self.sweeping = Sweep(self.manifest, self.clock, lambda: self.going_on())

    def sweep(self, manifest: ManifestStore | None = None, clock: ManualClock | None = None) -> SweepReport:
        """One sweep by the owner, or by another manifest of the same store."""
        if manifest or clock or self.sweeping.manifest is not self.manifest:
            self.sweeping = Sweep(manifest or self.manifest, clock or self.clock, lambda: self.going_on())
        report = self.sweeping.run(lambda: None)
        self.head = self.manifest.refresh()
        return report

    def other(self, objects: ObjectStore | None = None) -> ManifestStore:
        """What another process has of the manifest."""
        return ManifestStore(
            objects or self.objects, KEYS, randomness=SeededRandomness(8), options=OPTIONS, clock=self.clock
        )

    def check_named(self) -> None:
        """Every entry is there once, and everything the head leads to is in the bucket."""
        fresh = self.other()
        head, reader = fresh.refresh(), fresh.reader()
        log, index = list(fresh.log_entries(reader, head)), list(fresh.all_index_entries(reader, head))
        assert [(each.base, each.key) for each in log] == sorted(self.log.items())
        assert sorted(each.key for each in index) == sorted(self.index)
        named = (
            {ref.key for ref in fresh.pages(reader, head)} | {each.key for each in log} | {each.key for each in index}
        )
        assert named <= self.names()

    def names(self) -> set[str]:
        """Everything in the bucket."""
        return {info.key for info in self.objects.list("")}

    def later(self, ms: int) -> None:
        """Time passes everywhere."""
        self.clock.advance(ms)


@pytest.fixture
def archive() -> Swept:
    archive = Swept()
    archive.publish(12)
    return archive


def come_to_rest(archive: Swept) -> None:
    for _ in range(9):
        archive.later(G)
        if archive.sweep() == SweepReport():
            return
    raise AssertionError("the sweep goes on and on")


def removed_names(archive: Swept) -> list[tuple[str, int]]:
    return list(archive.manifest.removed_names(archive.manifest.reader(), archive.head))


def test_names_that_left_stay_for_the_grace_period_and_go_after_it(archive: Swept) -> None:
    come_to_rest(archive)
    archive.replace(3 * SEGMENT, 1)
    archive.merge(slice(0, 4))
    left = {key for key, _ in removed_names(archive)} & archive.names()
    archive.later(G - 1)
    assert archive.sweep() == SweepReport()
    assert left <= archive.names()
    archive.later(1)
    assert archive.sweep().removed == len(left)
    assert not left & archive.names()
    archive.check_named()


def test_a_sweep_comes_to_rest(archive: Swept) -> None:
    archive.replace(3 * SEGMENT, 1)
    come_to_rest(archive)
    version = archive.head.version
    for _ in range(5):
        archive.later(G)
        assert archive.sweep() == SweepReport()
    assert archive.head.version == version
    assert not {key for key, _ in removed_names(archive)} & archive.names()


def test_orphans_go_when_they_are_older_than_the_grace_period(archive: Swept) -> None:
    orphans = [f"store/{folder}" for folder in ("log/x.zst", "index/L0/y.idx", "manifest/rows-1", "state/z")]
    kept = ["store/tail/1", "store/other", "store2/log/x", "cluster/log/x"]
    for key in orphans + kept:
        archive.objects.put(key, b"?")
    archive.later(G - 1)
    archive.objects.put("store/log/young", b"?")
    archive.later(1)
    archive.sweep()
    assert not archive.names() & set(orphans)
    assert {*kept, "store/log/young", "store/head"} <= archive.names()
    archive.check_named()


class DuringTheListing(FaultyObjectStore):
    """Runs something when a listing ends."""

    then: Callable[[], object] | None = None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        yield from super().list(prefix, after)
        if self.then is not None and prefix.endswith("/log/"):
            then, self.then = self.then, None
            then()


def test_the_head_is_read_after_the_listing(archive: Swept) -> None:
    archive.objects.put("store/log/late", b"?")
    archive.later(G)
    listed = DuringTheListing(archive.objects)
    archive.manifest.objects = listed

    def name_it() -> None:
        late = replace(entry(12 * SEGMENT), key="store/log/late")
        archive.other().commit_other(ManifestChange(log=(late,)))

    listed.then = name_it
    archive.sweep()
    assert "store/log/late" in archive.names()


class PausedBeforeTheHead(FaultyObjectStore):
    """A committer that loses the processor for long between its last look and its commit."""

    def __init__(self, inner: ObjectStore, pause: Callable[[], object]) -> None:
        super().__init__(inner)
        self._pause: Callable[[], object] | None = pause

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        if key == KEYS.head and self._pause is not None:
            pause, self._pause = self._pause, None
            pause()
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


def test_a_slow_uploader_whose_object_is_older_than_the_grace_period_does_not_name_it(archive: Swept) -> None:
    def sleep_while_the_owner_sweeps() -> None:
        archive.later(G + 1)
        assert archive.sweep().orphans > 0

    slow = archive.other(PausedBeforeTheHead(archive.objects, sleep_while_the_owner_sweeps))
    slow.refresh()
    begun_s = slow.begin_upload()
    merged = replace(index_entry(0, 2 * SEGMENT), key="store/index/merged")
    inputs = tuple(each for each in archive.index_entries() if each.next <= 2 * SEGMENT)
    slow.objects.put(merged.key, b"merged")
    with pytest.raises(ConflictError, match="quarter of the grace"):
        slow.commit_other(ManifestChange(index=(merged,), remove=inputs, begun_s=begun_s))
    assert merged.key not in archive.names()
    archive.check_named()


def test_a_listing_that_shows_what_is_long_gone_or_was_younger_does_no_harm(archive: Swept) -> None:
    archive.replace(3 * SEGMENT, 1)
    archive.objects.put("store/log/orphan", b"?")
    before = list(archive.objects.list("store/"))
    archive.later(G)
    archive.sweep()
    archive.publish(3)
    archive.later(G)

    class Stale(FaultyObjectStore):
        def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
            return (info for info in before if info.key.startswith(prefix) and info.key > after)

    archive.manifest.objects = Stale(archive.objects)
    archive.sweep()
    archive.check_named()


def test_nothing_is_deleted_before_the_commit_that_fences_others_is_known_to_have_landed(archive: Swept) -> None:
    archive.replace(3 * SEGMENT, 1)
    archive.objects.put("store/log/orphan", b"?")
    archive.later(G)
    before = archive.names()
    archive.faulty.fail_before("put", "*/head", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        archive.sweep()
    archive.faulty.heal()
    archive.faulty.fail_before("get_if_changed", "*/head", times=None)
    with pytest.raises(ObjectStoreUnavailableError):
        archive.sweep()
    assert archive.names() == before
    archive.faulty.heal()
    archive.sweep()
    assert "store/log/orphan" not in archive.names()


def test_who_lost_the_store_sweeps_nothing(archive: Swept) -> None:
    archive.objects.put("store/log/orphan", b"?")
    archive.later(G)
    new = archive.other()
    new.claim(Ownership(OWNER.volume_id, "open-2", (*OWNER.head_open_ids, "open-2")), log_begin=0, log_end=1 << 40)
    with pytest.raises(FencedError):
        archive.sweep()
    assert "store/log/orphan" in archive.names()
    archive.sweep(new)
    assert "store/log/orphan" not in archive.names()


class Killed(BaseException):
    """The process is gone."""


class KillingStore(FaultyObjectStore):
    """Ends the process at the n-th call, before or after it is done."""

    def __init__(self, inner: ObjectStore, number: int, *, after: bool) -> None:
        super().__init__(inner)
        self.left, self._after = number, after

    def _begin(self, operation: str, key: str) -> None:
        self.left -= 1
        if self.left == 0 and not self._after:
            raise Killed

    def _end(self, operation: str, key: str) -> None:
        if self.left == 0:
            raise Killed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_request_the_next_sweep_finishes(after: bool) -> None:
    number = struck = 0
    while True:
        number += 1
        archive = Swept()
        archive.publish(8)
        archive.replace(3 * SEGMENT, 1)
        archive.merge(slice(0, 3))
        archive.objects.put("store/log/orphan", b"?")
        archive.later(G)
        archive.manifest.objects = KillingStore(archive.objects, number, after=after)
        try:
            archive.sweep()
        except Killed:
            struck += 1
        archive.manifest = archive.other()
        archive.head = archive.manifest.claim(OWNER, log_begin=0, log_end=1 << 40)
        archive.check_named()
        come_to_rest(archive)
        archive.check_named()
        assert not {key for key, _ in removed_names(archive)} & archive.names()
        assert "store/log/orphan" not in archive.names()
        if struck < number:
            break
    assert struck > 20


def test_unfinished_uploads_are_aborted_when_they_are_old(archive: Swept) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"slow"
        (pending,) = archive.objects.list_uploads("store/")
        assert pending.key == "store/log/slow"
        archive.later(G - 1)
        assert archive.sweep().uploads == 0
        archive.later(1)
        assert archive.sweep().uploads == 1
        yield b"er"

    with pytest.raises(ObjectStoreUnavailableError, match="aborted"):
        archive.objects.upload("store/log/slow", pieces())
    with pytest.raises(ObjectNotFoundError):
        archive.objects.head("store/log/slow")


def test_uploads_elsewhere_are_left_alone(archive: Swept) -> None:
    uploads = [PendingUpload(f"{folder}/x", "1", 0) for folder in ("store/tail", "store2/log", "elsewhere")]
    archive.objects._uploads.update({pending.key: pending for pending in uploads})
    archive.later(G)
    assert archive.sweep().uploads == 0


def test_the_clock_of_this_machine_decides_nothing(archive: Swept) -> None:
    archive.objects.put("store/log/orphan", b"?")
    archive.replace(3 * SEGMENT, 1)
    mine = ManualClock(archive.clock.now_ms() + 100 * G)
    assert archive.sweep(clock=mine) == SweepReport()
    archive.later(G)
    mine.step(-300 * G)
    assert archive.sweep(clock=mine).orphans > 0


def test_a_name_on_the_removed_list_that_is_named_all_the_same_is_kept_and_reported(archive: Swept) -> None:
    named = archive.segment(5 * SEGMENT)
    archive.manifest.commit_other(ManifestChange(remove=(named,)))
    archive.manifest.commit_other(ManifestChange(log=(replace(named, rows=None),)))
    archive.later(G)
    assert archive.sweep().kept == (named.key,)
    assert named.key in archive.names()


def test_many_orphans_go_in_more_than_one_sweep(archive: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    come_to_rest(archive)
    monkeypatch.setattr(sweep_module, "_MAX_ORPHANS", 10)
    for number in range(25):
        archive.objects.put(f"store/log/orphan-{number}", b"?")
    archive.later(G)
    reports = [archive.sweep() for _ in range(3)]
    assert [(report.orphans, report.is_whole) for report in reports] == [(10, False), (10, False), (5, True)]


def test_deleting_stops_when_the_store_closes_or_a_quarter_of_the_grace_period_is_over(archive: Swept) -> None:
    come_to_rest(archive)
    for number in range(9):
        archive.objects.put(f"store/log/orphan-{number}", b"?")
    archive.later(G)
    asked = iter(range(3))

    def going_on() -> None:
        if next(asked, None) is None:
            raise ClosedError("the store is closing")

    archive.going_on = going_on
    with pytest.raises(ClosedError):
        archive.sweep()
    assert sum("orphan" in key for key in archive.names()) == 6
    archive.going_on = lambda: archive.later(G // 10)
    report = archive.sweep()
    assert (report.orphans, report.is_whole) == (3, False)


def test_a_sweep_with_nothing_to_do_writes_nothing_and_reads_each_page_once(archive: Swept) -> None:
    archive.publish(60)
    come_to_rest(archive)
    priced = PricedStore(archive.objects)
    archive.manifest.objects = priced
    assert archive.sweep() == SweepReport()
    assert priced.requests["put"] == priced.requests["delete"] == 0
    assert priced.requests["list"] == priced.requests["list_uploads"] == 4
    pages = sum(1 for ref in archive.manifest.pages(archive.manifest.reader(), archive.head) if "rows" not in ref.key)
    assert priced.requests["get_range"] <= pages


def test_a_set_of_names_takes_eight_bytes_each() -> None:
    names = NameSet(f"store/log/{number:020d}-1-abcdef01.zst" for number in range(50_000))
    assert names._prints.nbytes == 8 * 50_000
    assert f"store/log/{49_999:020d}-1-abcdef01.zst" in names
    assert f"store/log/{50_000:020d}-1-abcdef01.zst" not in names
    assert "x" not in NameSet([])
