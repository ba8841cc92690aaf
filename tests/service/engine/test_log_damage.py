"""Damage in the hot log: whoever meets it, the store says so, remembers it, and the archive gives the log back."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.objects.damage import flipped, remove
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.service.served import served
from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all, send
from tierlog.client import Client
from tierlog.index.maintenance.repair import RepairReport
from tierlog.index.search.query import Query
from tierlog.service.api.application.app import create_app
from tierlog.service.engine.checks import remember_damage, repair_local, repair_log
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import (
    ChecksumMismatchError,
    CorruptionError,
    FencedError,
    ObjectStoreUnavailableError,
    StoreLockedError,
)
from tierlog.tiering.base.fs import FileSystem, flush_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Durability, Order
from tierlog.tiering.hot.commit_log import Segment
from tierlog.tiering.hot.damage import LogDamage, LostMessages
from tierlog.tiering.hot.log_files import ReadableSegment, read_segment
from tierlog.tiering.message.batch import Message

COUNT = 90


@pytest.fixture
def world() -> World:
    return World(settings=small_settings())


def filled(world: World, *, archive: bool = True) -> Store:
    """Messages of two topics in several segments, all still hot; of ``secret`` nothing goes to the archive."""
    engine = world.open()
    engine.create_topic("secret", 1)
    topics = engine._hot.topics
    topics.set_options(topics.get("secret"), archive=False, cold_retention_ms=None, hold=False)
    for number in range(COUNT):
        send(engine, "orders", number, number + 1, queue_id=0)
        if number % 3 == 0:
            send(engine, "secret", number, number + 1)
    engine.flush()
    if archive:
        engine.archive(everything=True)
    return engine


def place_of(engine: Store, topic: str, number: int) -> int:
    """The physical offset of a message's record."""
    return next(
        message.record.physical_offset
        for message in read_all(engine, topic, 0)
        if numbers_of([message]) == [number]
    )  # fmt: skip


def flip(fs: FileSystem, root: Path, offset: int, count: int = 1, segment_bytes: int = 4096) -> None:
    """Turns bytes of the log over, as a disk does: for good."""
    path = StorePaths(root).segment(offset - offset % segment_bytes)
    data = fs.map_write(path)
    data[offset % segment_bytes : offset % segment_bytes + count] ^= np.uint8(0xFF)
    flush_file(fs, path)


def damaged(world: World, topic: str = "orders", number: int = 20, *, archive: bool = True) -> int:
    """A store, closed, of which one record is damaged; where."""
    engine = filled(world, archive=archive)
    offset = place_of(engine, topic, number)
    engine.close()
    flip(world.fs, world.root, offset + 100)
    return offset


def put_back(world: World, *, dry_run: bool = False, fs: FileSystem | None = None, objects: Any = None) -> RepairReport:
    components = Components(
        world.settings, world.clock, fs or world.fs, SeededRandomness(7), objects or world.objects
    )  # fmt: skip
    return repair_log(world.root, components, dry_run=dry_run, progress=lambda done, of: None)


def pulled_over(engine: Store) -> None:
    with pytest.raises(CorruptionError):
        read_all(engine, "orders", 0)


def queried_by_key(engine: Store) -> None:
    assert not engine.query(Query("orders", "key-20")).coverage.complete


def queried_by_time(engine: Store) -> None:
    assert not engine.query(Query("orders", None, limit=200)).coverage.complete


def archived(engine: Store) -> None:
    with pytest.raises(CorruptionError):
        engine.archive(everything=True)


def checked(engine: Store) -> None:
    assert [line for line in engine.check() if line.startswith("I1 log:")]


@pytest.mark.parametrize("met", [pulled_over, queried_by_key, queried_by_time, archived, checked])
def test_damage_below_the_checkpoint_is_told_by_whoever_meets_it_and_at_every_later_start(
    met: Any, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    offset = damaged(world, archive=False)
    engine = world.open()
    assert engine.damage is None, "opening reads from the checkpoint on"
    met(engine)
    engine._hot.verify_damage()
    (found,) = engine.damaged_ranges
    assert found.first == offset
    assert found.messages == (LostMessages("orders", 0, 20, 21),)
    for again in (engine, world.reopen()):
        assert f"the log cannot be read in [{offset}, " in (again.damage or "")
        assert "orders/0 queue offsets [20, 21)" in (again.damage or "")
        assert "tierlog repair" in (again.damage or "")
        stats = again.stats()
        assert (stats["damaged_ranges"], stats["damaged_bytes"]) == (1, found.next - found.first)
        assert stats["damage"] == again.damage
    assert sum("the log cannot be read" in record.message for record in caplog.records) == 2, "found, and at the start"
    send(world.engine, "orders", 100, 101, queue_id=0)
    assert numbers_of(read_all(world.engine, "orders", 0, 21))[-1] == 100, "all else goes on"


def assert_names_message_20(error: CorruptionError, place: int) -> None:
    assert error.message.startswith("message 20 of queue orders/0 cannot be read: ")
    assert (error.path, error.position) == ("commitlog/00000000000000004096", place - 4096)
    assert "`tierlog repair`" in str(error.hint)
    assert "a pull from 21 on passes over this message" in str(error.hint)


@pytest.mark.parametrize("way", ["pull", "pull_batch", "pull_records"])
def test_a_pull_of_a_damaged_message_names_it_its_place_and_the_next_step(way: str, world: World) -> None:
    place = damaged(world, archive=False)
    engine = world.open()

    def pulled(offset: int) -> Any:
        with contextlib.ExitStack() as stack:
            found: Any = getattr(engine, way)("orders", 0, offset, 50)
            return stack.enter_context(found) if way == "pull_records" else found

    assert pulled(0).next_offset == 20, "what lies before it is answered"
    with pytest.raises(ChecksumMismatchError) as raised:
        pulled(20)
    assert_names_message_20(raised.value, place)
    assert pulled(21).next_offset > 21, "as the hint says"


def test_a_pull_of_a_damaged_frame_names_the_message_the_object_and_the_next_step(world: World) -> None:
    filled(world)
    world.engine.archive(everything=True, drop_hot=True)
    key = next(iter(world.objects.list("store/log/"))).key
    world.objects.put(key, flipped(world.objects.get(key)[0], 40))  # in its first frame
    failed: dict[int, CorruptionError] = {}
    for offset in range(COUNT):
        try:
            world.cold().pull("orders", 0, offset, 1)
        except CorruptionError as error:
            failed[offset] = error
    assert 0 < len(failed) < COUNT
    for offset, told in failed.items():
        assert told.message.startswith(f"message {offset} of queue orders/0 cannot be read: ")
        assert told.path == key
        assert f"a pull from {offset + 1} on" in str(told.hint)


def test_a_service_tells_a_client_which_message_is_damaged_and_the_next_step(world: World) -> None:
    place = damaged(world, archive=False)
    with served(world.open(), world.settings) as url, Client(url) as client:
        with pytest.raises(ChecksumMismatchError) as raised:
            client.pull("orders", 0, 20)
        assert_names_message_20(raised.value, place)
        assert client.pull("orders", 0, 21).messages


@pytest.mark.parametrize("order", list(Order))
def test_a_damaged_message_hides_no_others_of_a_query(order: Order, world: World) -> None:
    damaged(world, archive=False)
    answer = world.open().query(Query("orders", None, limit=200, order=order))
    assert sorted(numbers_of(answer.messages)) == [number for number in range(COUNT) if number != 20]
    assert not answer.coverage.complete
    assert len(answer.coverage.failures) == 1


def test_a_look_at_a_segment_finds_what_nobody_has_met_and_keeps_no_suspicion_waiting(world: World) -> None:
    offset = damaged(world)
    engine = world.open()
    for segment in engine._hot.log.segments():
        engine._hot.look_for_damage(segment.base_offset)
    (found,) = engine.damaged_ranges
    assert found.first == offset
    sound = offset - offset % 4096 + 4096
    flip(world.fs, world.root, sound + 100)
    engine._hot.damage.suspect(sound)
    engine._hot.verify_damage()
    assert [each.first for each in engine.damaged_ranges] == [offset, sound]
    engine._hot.look_for_damage(1 << 40)  # a segment that is gone


def test_a_service_with_damage_is_ready_and_says_so(world: World) -> None:
    damaged(world)
    engine = world.open()
    client = TestClient(create_app(engine, world.settings), "http://localhost")
    assert client.get("/readyz").json()["damage"] is None
    assert "tierlog_log_damaged_ranges 0.0" in client.get("/metrics").text
    notes = client.post("/v1/admin/check").json()["notes"]
    assert any("orders/0 queue offsets [20, 21)" in note["text"] for note in notes)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert "orders/0 queue offsets [20, 21)" in answer.json()["damage"]
    assert "tierlog_log_damaged_ranges 1.0" in client.get("/metrics").text


def test_what_is_suspected_without_damage_is_scanned_once_a_minute_and_never_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = filled(world)
    scanned = []

    def counted(segment: Segment, *arguments: Any, **named: Any) -> ReadableSegment:
        scanned.append(segment.base_offset)
        return read_segment(segment, *arguments, **named)

    monkeypatch.setattr("tierlog.tiering.hot.damage.read_segment", counted)
    for _ in range(5):
        engine._hot.damage.suspect(100)
        engine._hot.verify_damage()
    assert len(scanned) == 1
    world.clock.advance(60_000)
    engine._hot.damage.suspect(100)
    engine._hot.verify_damage()
    assert len(scanned) == 2
    assert engine.damage is None
    assert not world.fs.exists(StorePaths(world.root).damage_json)


def test_damage_that_is_met_right_after_a_sound_scan_is_found_when_its_time_has_come(world: World) -> None:
    engine = filled(world)
    offset = place_of(engine, "orders", 20)
    engine._hot.damage.suspect(offset)
    engine._hot.verify_damage()
    flip(world.fs, world.root, offset + 100)
    world.clock.advance(30_000)
    engine._hot.damage.suspect(offset)
    engine._hot.verify_damage()
    assert not engine._hot.damage.news.is_set(), "nobody spins on what has to wait"
    assert engine.damage is None
    world.clock.advance(30_000)
    engine._hot.verify_damage()
    assert [each.first for each in engine.damaged_ranges] == [offset]


def test_what_could_not_be_verified_stays_suspected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = filled(world)
    offsets = [place_of(engine, "orders", number) for number in (20, 60)]
    for offset in offsets:
        flip(world.fs, world.root, offset + 100)
        engine._hot.damage.suspect(offset)

    def broken(*arguments: Any, **named: Any) -> ReadableSegment:
        raise OSError("the disk is gone for a moment")

    with monkeypatch.context() as patched:
        patched.setattr("tierlog.tiering.hot.damage.read_segment", broken)
        with pytest.raises(OSError, match="for a moment"):
            engine._hot.verify_damage()
    engine._hot.verify_damage()
    assert [each.first for each in engine.damaged_ranges] == offsets


class _ToldLock:
    """A lock that says when somebody is about to wait for it."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.asked = inner, threading.Event()
        self.is_watched = False

    def __enter__(self) -> None:
        if self.is_watched:
            self.asked.set()
        self._inner.acquire()

    def __exit__(self, *raised: object) -> None:
        self._inner.release()


def test_a_check_waits_for_the_scan_that_is_under_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = filled(world)
    offset = place_of(engine, "orders", 20)
    flip(world.fs, world.root, offset + 100)
    known = engine._hot.damage
    lock = _ToldLock(known.verifying)
    monkeypatch.setattr(known, "verifying", lock)
    scanning = threading.Event()

    def slow(segment: Segment, *arguments: Any, **named: Any) -> ReadableSegment:
        lock.is_watched = True
        scanning.set()
        lock.asked.wait(10)
        return read_segment(segment, *arguments, **named)

    monkeypatch.setattr("tierlog.tiering.hot.damage.read_segment", slow)
    # what the check itself meets would be news to it
    monkeypatch.setattr("tierlog.service.engine.checks.check_store", lambda hot: [])
    known.suspect(offset)
    thread = threading.Thread(target=engine._hot.verify_damage)
    thread.start()
    assert scanning.wait(10)
    try:
        notes = engine.check_report().notes
    finally:
        lock.asked.set()
        thread.join()
    assert any("orders/0 queue offsets [20, 21)" in str(note) for note in notes)


def test_a_message_id_that_somebody_made_up_suspects_nothing(world: World) -> None:
    engine = filled(world)
    good = read_all(engine, "orders", 0)[3].record.message_id
    made_up = good[:-4] + f"{int(good[-4:], 16) + 8:04X}"
    with pytest.raises(Exception, match="no message"):
        engine.message(made_up)
    assert not engine._hot.damage.news.is_set()


def test_nothing_is_remembered_by_a_store_that_was_closed(world: World) -> None:
    """Verifying may take longer than a stop waits for it, and another process may have the store by then."""
    damaged(world)
    engine = world.open()
    with engine._hot.snapshot() as snapshot:
        engine.close()
        engine._hot.damage.suspect(0)
        engine._hot.damage.verify(snapshot, ["orders", "secret"], lambda first, end: ())
        engine._hot.damage._replace(0, 4096, [LogDamage(1, 2, 3)])
    assert not world.fs.exists(StorePaths(world.root).damage_json)


def test_damage_goes_with_its_segment(world: World) -> None:
    damaged(world)
    engine = world.open()
    engine.check()
    assert engine.damage is not None
    world.clock.advance(1000)
    engine.archive(everything=True, drop_hot=True)
    assert engine.damage is None
    assert world.reopen().damage is None
    assert numbers_of(read_all(world.engine, "orders", 0)) == list(range(COUNT)), "the archive has it"


def test_a_note_that_cannot_be_read_makes_all_of_the_log_suspected(world: World) -> None:
    damaged(world)
    world.open().check()
    world.engine.close()
    note = StorePaths(world.root).damage_json
    file = world.fs.open(note)
    file.write_at(3, b"\xff\xff")
    file.close()
    engine = world.open()
    assert "is not known" in (engine.damage or "")
    engine._hot.verify_damage()
    assert "orders/0 queue offsets [20, 21)" in (engine.damage or "")
    assert "orders/0 queue offsets [20, 21)" in (world.reopen().damage or "")


def test_what_a_check_found_beside_no_service_is_told_at_the_next_start(world: World) -> None:
    damaged(world)
    looking = world.open(read_only=True)
    looking.check()
    found = looking.damaged_ranges
    looking.close()
    assert not world.fs.exists(StorePaths(world.root).damage_json), "reading writes nothing"
    remember_damage(world.fs, world.root, found)
    engine = world.open()
    assert engine.damage is not None
    remember_damage(world.fs, world.root, ())
    assert world.fs.exists(StorePaths(world.root).damage_json), "a store in use is left alone"
    assert world.reopen().damage is not None


def test_a_damaged_log_is_the_only_finding_and_nothing_is_removed_that_it_cannot_give_again(world: World) -> None:
    """Queues and index are right, and could not be derived from this log: without them the store would not open."""
    damaged(world)
    engine = world.open()
    lines = engine.check()
    assert [line.partition(":")[0] for line in lines] == ["I1 log"]
    engine.close()
    assert repair_local(world.fs, world.root, [*lines, "I3 index: made up"], dry_run=False) == []
    assert world.open().damage is not None


# The archive gives it back.


def test_a_damaged_segment_is_put_back_byte_for_byte(world: World) -> None:
    engine = filled(world)
    paths = StorePaths(world.root)
    offsets = [place_of(engine, "orders", number) for number in (20, 21, 60)]
    engine.close()
    bases = sorted({offset - offset % 4096 for offset in offsets})
    before = {base: world.fs.read(paths.segment(base)) for base in bases}
    for offset in offsets:
        flip(world.fs, world.root, offset, 90)
    world.open().check()
    assert world.engine.stats()["damaged_ranges"] == 2
    world.engine.close()
    would = put_back(world, dry_run=True)
    assert (len(would.done), would.left) == (2, [])
    assert world.fs.read(paths.segment(bases[0])) != before[bases[0]], "a dry run does nothing"
    report = put_back(world)
    assert (len(report.done), report.left) == (2, [])
    assert {base: world.fs.read(paths.segment(base)) for base in bases} == before
    engine = world.open()
    engine._hot.verify_damage()
    assert engine.damage is None
    assert engine.check(deep=True) == []
    assert numbers_of(read_all(engine, "orders", 0)) == list(range(COUNT))
    assert world.reopen().damage is None
    world.engine.close()
    assert put_back(world).done == [], "and nothing is done twice"


def test_what_only_the_log_holds_stays_and_what_nobody_holds_is_named(world: World) -> None:
    engine = filled(world)
    orders, secret = place_of(engine, "orders", 30), place_of(engine, "secret", 30)
    base = orders - orders % 4096
    assert base == secret - secret % 4096
    kept = [number for number in range(0, COUNT, 3) if number != 30]
    engine.close()
    flip(world.fs, world.root, orders + 100)
    flip(world.fs, world.root, secret + 100)
    report = put_back(world)
    assert len(report.done) == len(report.left) == 1
    assert "in neither tier" in report.left[0].text
    engine = world.open()
    engine.check()
    (left,) = engine.damaged_ranges
    assert (left.first, left.messages) == (secret, (LostMessages("secret", 0, 10, 11),))
    assert numbers_of(read_all(engine, "orders", 0)) == list(range(COUNT))
    found = numbers_of(read_all(engine, "secret", 0, 11))
    assert found == [number for number in kept if number > 30]
    (said,) = engine.damage_left(tried=True)
    assert "secret/0 queue offsets [10, 11)" in said.text
    assert "could not give it back" in said.text


def test_what_the_archive_lacks_is_left_and_the_next_step_is_said(world: World) -> None:
    damaged(world, archive=False)
    engine = world.open()
    engine.check()
    (said,) = engine.damage_left(tried=False)
    assert "orders/0 queue offsets [20, 21); the archive does not have it" in said.text
    assert "docs/disaster.md" in said.text
    engine.close()


def test_a_plain_repair_says_that_the_archive_has_it_or_that_nobody_knows(world: World) -> None:
    damaged(world)
    faulty = FaultyObjectStore(world.objects)
    engine = world.open(objects=faulty)
    engine.check()
    (said,) = engine.damage_left(tried=False)
    assert "the archive has it: `tierlog repair --root DIR --from-archive`" in said.text
    faulty.die()
    (said,) = engine.damage_left(tried=False)
    assert "whether the archive has it is not known" in said.text


def test_a_log_that_opening_refuses_is_put_back_too(world: World) -> None:
    """The checkpoint is old: the damage lies above it, below a segment that has been written."""
    engine = filled(world)
    offset = place_of(engine, "orders", 20)
    engine.close()
    flip(world.fs, world.root, offset, 90)
    world.fs.unlink(StorePaths(world.root).checkpoint)
    with pytest.raises(CorruptionError, match="repair --root DIR --from-archive"):
        world.open()
    world.fs.kill()
    assert put_back(world).left == []
    engine = world.open()
    assert numbers_of(read_all(engine, "orders", 0)) == list(range(COUNT))
    assert engine.check(deep=True) == []


def test_a_log_that_is_not_the_archives_is_left_as_it_is(world: World) -> None:
    """A record that can be read here and is another one there: nobody knows which is right."""
    engine = filled(world)
    offset, other = place_of(engine, "orders", 20), place_of(engine, "orders", 22)
    engine.close()
    flip(world.fs, world.root, offset + 100)
    flip(world.fs, world.root, other + 50)  # a byte of a host, which no checksum of this store covers
    before = world.fs.read(StorePaths(world.root).segment(offset - offset % 4096))
    report = put_back(world)
    assert report.done == []
    assert "nothing was changed" in report.left[0].text
    assert world.fs.read(StorePaths(world.root).segment(offset - offset % 4096)) == before
    assert list(world.fs.list_dir(StorePaths(world.root).tmp)) == []


def test_a_damaged_object_puts_nothing_back(world: World) -> None:
    offset = damaged(world)
    entry = next(each for each in world.entries() if each.base == offset - offset % 4096)
    data, _ = world.objects.get(entry.key)
    world.objects.put(entry.key, data[:60] + bytes([data[60] ^ 1]) + data[61:])
    report = put_back(world)
    assert report.done == []
    assert len(report.left) == 1
    assert world.open().check() != []


def test_a_lost_object_is_reported_and_the_other_segments_are_put_back(world: World) -> None:
    engine = filled(world)
    offsets = [place_of(engine, "orders", number) for number in (20, 60)]
    engine.close()
    for offset in offsets:
        flip(world.fs, world.root, offset, 90)
    entry = next(each for each in world.entries() if each.base == offsets[0] - offsets[0] % 4096)
    remove(world.objects, entry.key)
    report = put_back(world)
    assert (len(report.done), len(report.left)) == (1, 1)
    assert "the archive names it, and the object is not there" in report.left[0].text
    assert list(world.fs.list_dir(StorePaths(world.root).tmp)) == []


def test_a_repair_that_is_ended_by_an_error_leaves_no_file_beside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(world)

    def broken(*arguments: Any) -> None:
        raise ObjectStoreUnavailableError("gone")

    monkeypatch.setattr("tierlog.tiering.lifecycle.log_repair._keep_what_is_here", broken)
    with pytest.raises(ObjectStoreUnavailableError):
        put_back(world)
    assert list(world.fs.list_dir(StorePaths(world.root).tmp)) == []


def test_a_bucket_that_does_not_answer_a_store_in_use_and_a_fenced_one_are_refused(world: World) -> None:
    damaged(world)
    faulty = FaultyObjectStore(world.objects)
    faulty.die()
    with pytest.raises(ObjectStoreUnavailableError):
        put_back(world, objects=faulty)
    engine = world.open()
    with pytest.raises(StoreLockedError):
        put_back(world)
    engine.close()
    world.open("other", restore=True).close()
    with pytest.raises(FencedError, match="salvage"):
        put_back(world)


@pytest.mark.parametrize("lose_everything", [False, True])
def test_a_repair_that_is_cut_off_anywhere_leaves_the_damaged_segment_or_the_whole_one(
    world: World, lose_everything: bool
) -> None:
    engine = filled(world)
    paths = StorePaths(world.root)
    offsets = [place_of(engine, "orders", number) for number in (20, 60)]
    engine.close()
    bases = [offset - offset % 4096 for offset in offsets]
    whole = [world.fs.read(paths.segment(base)) for base in bases]
    for offset in offsets:
        flip(world.fs, world.root, offset, 90)
    remember_damage(world.fs, world.root, [LogDamage(offset, offset + 90, 1) for offset in offsets])
    hurt = [world.fs.read(paths.segment(base)) for base in bases]
    seen, cut_at = set(), 0
    while True:
        cut_at += 1
        fs: CrashFileSystem = world.fs.crash(cut_at, cut_at=cut_at)
        try:
            put_back(world, fs=fs)
        except PowerCut:
            pass
        else:
            break
        after = fs.crash(cut_at, lose_everything=lose_everything)
        found = [after.read(paths.segment(base)) for base in bases]
        assert all(each in (old, new) for each, old, new in zip(found, hurt, whole, strict=True)), cut_at
        seen.add(tuple(each == new for each, new in zip(found, whole, strict=True)))
        assert put_back(world, fs=after).left == []
        again = world.open(fs=after)
        again._hot.verify_damage()
        assert again.damage is None
        assert numbers_of(read_all(again, "orders", 0)) == list(range(COUNT))
        assert again.check() == []
        again.close()
    assert seen - {(True, True)} == {(False, False), (True, False)}, "one by one"


def test_acknowledged_messages_are_appended_while_the_log_is_damaged(world: World) -> None:
    damaged(world)
    engine = world.open()
    engine.check()
    engine.append([Message("orders", b"x", queue_id=0)], Durability.FLUSHED)
    assert engine.readiness_problem is None
