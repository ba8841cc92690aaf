"""The doctor finds each way in which a store breaks its word, and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.support.objects import broken_cas
from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.objects.doctor import FOLDER, CheckState, Diagnosis, Doctor
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.races import Condition, RaceReport, ThreadRacers, WriteAnswer, body_of, writer_of


def examine(store: ObjectStore, *, rounds: int = 5) -> Diagnosis:
    racers = ThreadRacers(store, 8)
    doctor = Doctor(store, ManualClock(), "0123")
    try:
        return doctor.examine(racers, rounds=rounds, samples=3)
    finally:
        racers.close()
        doctor.clean()


def test_a_store_that_keeps_its_word_is_safe() -> None:
    store = MemoryObjectStore(ManualClock())
    store.put("other/head", b"x")
    found = examine(store)
    assert [row for row in found.rows if row.state is not CheckState.OK] == []
    assert found.verdict.startswith("safe")
    assert [(race.rounds, race.broken) for race in found.races] == [(5, 0), (5, 0)]
    assert set(found.latency_ms) == {"put 1 KiB", "get 1 KiB", "conditional get", "range of 100 B"}
    assert [info.key for info in store.list("")] == ["other/head"]


@pytest.mark.parametrize(
    ("broken", "capabilities"),
    [
        (broken_cas.IgnoresIfAbsent, {"put if absent", "race if absent"}),
        (broken_cas.IgnoresIfMatch, {"put if match", "race if match"}),
        (broken_cas.ChecksThenWrites, {"race if absent", "race if match"}),
        (broken_cas.LosersWriteToo, {"race if absent", "race if match"}),
        (broken_cas.ListsLate, {"list after write"}),
        (broken_cas.ClockOff, {"clock"}),
        (broken_cas.ReadsOld, {"get, overwrite"}),
    ],
)
def test_each_way_of_being_broken_is_found(broken: type[MemoryObjectStore], capabilities: set[str]) -> None:
    store = broken(ManualClock())
    found = examine(store)
    assert capabilities <= {row.capability for row in found.findings}
    assert found.verdict.startswith("not safe")
    assert any(name in found.verdict for name in capabilities)
    assert store._objects == {}


def test_nothing_stays_behind_when_it_is_interrupted() -> None:
    """Even on a store that lists late, and with an upload under way."""
    for operation in ("put", "get", "upload", "list", "list_uploads", "get_if_changed", "delete"):
        inner = broken_cas.ListsLate(ManualClock())
        store = FaultyObjectStore(inner)
        doctor = Doctor(store, ManualClock(), "0123")
        interrupt = store.hold(operation)
        interrupt.stop_here = _interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            doctor.examine(None, rounds=1, samples=1)
        doctor.clean()
        assert inner._objects == {}, operation
        assert inner._uploads == {}, operation


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_what_a_killed_doctor_left_is_removed_by_the_next_one_much_later() -> None:
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    store.put(f"{FOLDER}dead/race/match", b"x")
    examine(store)
    assert len(list(store.list(""))) == 1  # it may still be at work
    clock.advance(7 * 3_600_000)
    examine(store)
    assert list(store.list("")) == []


def test_a_dead_store_is_a_failure_and_no_finding() -> None:
    store = FaultyObjectStore(MemoryObjectStore(ManualClock()))
    store.die()
    with pytest.raises(ObjectStoreUnavailableError):
        Doctor(store, ManualClock(), "0123").examine(None, rounds=1, samples=1)


def test_a_probe_that_fails_is_a_finding_and_the_others_go_on() -> None:
    store = FaultyObjectStore(MemoryObjectStore(ManualClock()))
    store.fail_before("get_range", times=None)
    found = examine(store)
    assert [row.capability for row in found.findings] == ["ranges", "latency"]


@pytest.mark.parametrize(
    ("outcomes", "holder", "broken"),
    [
        ("WLL", 0, False),
        ("LWL", 1, False),
        ("WWL", 0, True),
        ("WLL", 1, True),
        ("LLL", 1, False),  # its own retry met its first try
        ("LUL", 1, False),
        ("WUL", 1, True),
        ("WLL", None, True),
    ],
)
def test_a_round_is_judged_by_what_its_writers_were_told(outcomes: str, holder: int | None, broken: bool) -> None:
    told = {"W": WriteAnswer.WON, "L": WriteAnswer.LOST, "U": WriteAnswer.UNKNOWN}
    body = b"mixture" if holder is None else body_of("k", None, holder)
    assert writer_of(body) == holder
    report = RaceReport(Condition.ABSENT, 3)
    report.judge([told[letter] for letter in outcomes], body)
    assert report.broken == broken
    assert len(report.violations) == broken
