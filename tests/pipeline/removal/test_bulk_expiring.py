"""Expiry in bulk is the store's own: the same marks, the same segments, the same holds."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from tests.support.pipeline.removal_jobs import expiry_of, unseen
from tests.support.stores.removal_world import RemovalWorld, WatchedStore
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.format.store_state import StoreState
from tierlog.tiering.lifecycle.expiry import ConfiguredRules, GivenRules

HOUR_MS = 3_600_000


def archived(count: int = 90) -> tuple[RemovalWorld, Store]:
    """Messages of two topics a second apart, archived in several segments and gone from the volume."""
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, count, ("t", "t", "t", "u"))
    engine.archive(everything=True, drop_hot=True)
    engine.archive()  # the archive is told where the log begins now
    return world, engine


def look(engine: Store) -> None:
    assert engine._manifest is not None
    engine._manifest.refresh()


def check(world: RemovalWorld, engine: Store) -> None:
    look(engine)
    world.verify(engine)
    assert engine.check(deep=True) == []


def test_the_retention_of_topics_is_the_rule_when_none_is_given() -> None:
    world, engine = archived()
    engine.removal.configure("t", cold_retention_ms=HOUR_MS)
    middle = world.sent[40]
    world.clock.advance(middle.store_ms + HOUR_MS - world.clock.now_ms())
    job = expiry_of(world, ConfiguredRules())
    planned, report = job.plan(), job.run(unseen)
    assert report.topics == planned.topics == {"t": middle.store_ms}
    assert report.to_json() == planned.to_json()
    check(world, engine)
    gone = [one for one in world.sent if world.has_expired(engine, one)]
    assert len(gone) == 30
    assert not any(world.bucket_holds(one.message.body) for one in gone[:20])
    assert report.segments_rewritten > 0


def test_the_job_does_what_the_store_would() -> None:
    heads = []
    for by_job in (False, True):
        world, engine = archived()
        engine.removal.configure("t", cold_retention_ms=HOUR_MS)
        world.clock.advance(world.sent[60].store_ms + HOUR_MS - world.clock.now_ms())
        if by_job:
            expiry_of(world, ConfiguredRules()).run(unseen)
            look(engine)
        else:
            while engine.removal.run_once():
                pass
        assert engine._manifest is not None
        head, reader = engine._manifest.refresh(), engine._manifest.reader()
        sizes = [(entry.base, entry.size_bytes) for entry in engine._manifest.log_entries(reader, head)]
        heads.append((head.expired, head.cold_min, sizes))
    assert heads[0] == heads[1]


def test_twice_is_as_once() -> None:
    world, engine = archived()
    rules = GivenRules(before_ms=world.sent[50].store_ms, topics=("t",))
    first = expiry_of(world, rules).run(unseen)
    assert first.messages_overwritten > 0
    again = expiry_of(world, rules, seed=2001).run(unseen)
    assert (again.topics, again.segments_rewritten, again.segments_dropped) == ({}, 0, 0)
    check(world, engine)


def test_whole_segments_leave_by_the_age_of_their_newest_message() -> None:
    world, engine = archived()
    newest_ms = max(one.store_ms for one in world.sent if one.offset < 2 * world.segment_bytes)
    world.clock.advance(HOUR_MS)
    assert expiry_of(world, GivenRules(before_ms=newest_ms)).run(unseen).cold_min == world.segment_bytes
    age_ms = world.clock.now_ms() - newest_ms - 1
    report = expiry_of(world, GivenRules(age_ms), seed=2001).run(unseen)
    assert (report.cold_min, report.segments_dropped) == (2 * world.segment_bytes, 1)
    assert report.bytes_dropped > 0
    check(world, engine)


def test_what_is_still_hot_stays_in_the_archive() -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 60)
    engine.archive(everything=True)
    rules = GivenRules(0)
    world.clock.advance(HOUR_MS)
    assert expiry_of(world, rules).run(unseen).cold_min == 0
    engine.archive(drop_hot=True)
    engine.archive()  # the archive is told where the log begins now
    assert expiry_of(world, rules).run(unseen).cold_min == engine._hot.border > 0
    check(world, engine)


def test_an_archive_that_does_not_tell_what_is_hot_is_refused_unless_there_is_no_volume() -> None:
    world, engine = archived()
    engine.close()
    world.clock.advance(HOUR_MS)
    job = expiry_of(world, GivenRules(0))
    state = job.view.state()
    job.view.state = lambda head=None: StoreState(state.topics, segment_bytes=4096)  # type: ignore[method-assign]
    with pytest.raises(InvalidRequestError, match="still hot"):
        job.run(unseen)
    report = expiry_of(world, GivenRules(0), has_volume=False).run(unseen)
    assert report.cold_min == report.cold_min_before + 4096 * report.segments_dropped > 0


def test_a_hold_keeps_its_topic_and_every_segment_from_its_first_message_on() -> None:
    world, engine = archived()
    engine.removal.configure("u", hold=True)
    world.clock.advance(HOUR_MS)
    report = expiry_of(world, GivenRules(0)).run(unseen)
    assert (report.cold_min, report.held_at) == (0, 0)
    report = expiry_of(world, GivenRules(0, topics=("t", "u")), seed=2001).run(unseen)
    assert report.topics.keys() == {"t"}
    check(world, engine)
    assert all(world.bucket_holds(one.message.body) for one in world.sent if one.message.topic == "u")


def test_a_clock_that_is_ahead_of_the_servers_is_not_believed() -> None:
    world, engine = archived()
    job = expiry_of(world, GivenRules(HOUR_MS))
    now_ms = job._manifest.objects.now_ms()
    job._clock = _Ahead(now_ms + 1000 * HOUR_MS)  # type: ignore[assignment]
    assert job.run(unseen).cold_min == 0
    check(world, engine)


class _Ahead:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


def beside(world: RemovalWorld, engine: Store) -> None:
    """What a running store may do at the same moment: archive, erase, let expire by its own rules."""
    world.append(engine, 5)
    engine.archive(everything=True)
    world.erase(engine, "t", "k1")
    for _ in range(3):
        with contextlib.suppress(ConflictError):
            engine.removal.run_once()


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_running_store_beside_it_at_any_request(stride: int) -> None:
    world, _ = archived(60)
    watched = WatchedStore(world.objects)
    expiry_of(world, GivenRules(0, topics=("t",)), watched).run(unseen)
    for number in range(1, watched.requests + 1, stride):
        world, engine = archived(60)
        watched = WatchedStore(world.objects)
        rules = GivenRules(before_ms=world.sent[40].store_ms, topics=("t",))
        watched.before = partial(_at, world, engine, watched, number)
        expiry_of(world, rules, watched).run(unseen)
        watched.before = lambda *_: None
        look(engine)
        world.verify(engine)
        world.finish(engine)
        check(world, engine)
        for at, one in enumerate(world.sent):
            if world.is_erased(at):
                assert not world.bucket_holds(one.message.body), f"request {number}"


def _at(world: RemovalWorld, engine: Store, watched: WatchedStore, wanted: int, request: int, *_: object) -> None:
    if request == wanted:
        watched.before = lambda *_: None
        beside(world, engine)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_hold_that_begins_at_any_request_keeps_everything_that_has_not_gone_by_then(stride: int) -> None:
    world, _ = archived(60)
    watched = WatchedStore(world.objects)
    expiry_of(world, GivenRules(0, topics=("t",)), watched).run(unseen)
    kept_some = 0
    for number in range(1, watched.requests + 1, stride):
        world, engine = archived(60)
        watched, kept = WatchedStore(world.objects), list[bytes]()
        watched.before = partial(_hold_at, world, engine, watched, number, kept)
        expiry_of(world, GivenRules(0, topics=("t",)), watched).run(unseen)
        assert all(map(world.bucket_holds, kept)), f"request {number}"
        kept_some += bool(kept)
        check(world, engine)
    assert kept_some > 1


def _hold_at(
    world: RemovalWorld, engine: Store, watched: WatchedStore, wanted: int, kept: list[bytes], request: int, *_: object
) -> None:
    if request == wanted:
        watched.before = lambda *_: None
        engine.removal.configure("t", hold=True)
        mine = (one.message.body for one in world.sent if one.message.topic == "t")
        kept += [body for body in mine if world.bucket_holds(body)]
