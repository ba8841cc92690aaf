"""Salvage saves nothing because of one bad byte, or takes such a byte for the place where log and archive part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all, send
from tierlog.service.cli.salvager import SalvageReport, salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import CorruptionError, StoreMismatchError
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.format.record import Record
from tierlog.tiering.hot.identity import StoreIdentity

_SEGMENT = 4096


@pytest.fixture
def world() -> World:
    return World(settings=small_settings())


def lost(world: World) -> dict[int, Record]:
    """Volume a archived messages 0 to 39 and acknowledged 40 to 199 that nobody else has; all its records."""
    old = world.open("a")
    for at in range(0, 40, 4):
        send(old, "orders", at, at + 4, queue_id=0)
    old.archive(everything=True)
    for at in range(40, 200, 4):
        send(old, "orders", at, at + 4, queue_id=0)
    messages = read_all(old, "orders", 0)
    old.close()
    return {number: message.record for number, message in zip(numbers_of(messages), messages, strict=True)}


def run(world: World, new: Store) -> SalvageReport:
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(77), world.objects)
    return salvage(world.place("a"), components, LocalWriter(new), lambda done, of: None)


def overwrite(world: World, name: str, at: int, data: bytes) -> None:
    file = world.fs.open(world.place("a") / name)
    file.write_at(at, data)
    file.close()


def segment_of(record: Record) -> Path:
    return Path("commitlog") / f"{record.physical_offset - record.physical_offset % _SEGMENT:020}"


def numbers(engine: Store) -> list[int]:
    return numbers_of(read_all(engine, "orders", 0))


def test_damage_where_recovery_begins_keeps_none_of_the_others(world: World) -> None:
    """As after a kill: recovery would end there, and refuses what goes on behind it."""
    records = lost(world)
    record = records[60]
    overwrite(world, "checkpoint", 32, record.physical_offset.to_bytes(8, "big"))
    overwrite(world, "abort", 0, b"1")
    overwrite(world, str(segment_of(record)), record.physical_offset % _SEGMENT, bytes(8))
    new = world.open("b", restore=True)
    report = run(world, new)
    assert [(each.offset, each.next) for each in report.not_saved] == [
        (record.physical_offset, record.physical_offset + record.size)
    ]
    assert numbers(new) == [number for number in range(200) if number != 60]
    assert run(world, new).appended == 0


def test_a_segment_that_is_gone_is_named_and_keeps_none_of_the_others(world: World) -> None:
    records = lost(world)
    gone = segment_of(records[100])
    world.fs.unlink(world.place("a") / gone)
    new = world.open("b", restore=True)
    report = run(world, new)
    base = int(gone.name)
    assert [(each.offset, each.next) for each in report.not_saved] == [(base, base + _SEGMENT)]
    assert numbers(new) == [number for number, record in records.items() if segment_of(record) != gone]


@pytest.mark.parametrize("keep", [0, 300])
def test_a_last_segment_that_was_cut_or_emptied_is_named(world: World, keep: int) -> None:
    """Nothing lies behind it; the checkpoint says how far the log went."""
    records = lost(world)
    last = segment_of(records[199])
    data = world.fs.read(world.place("a") / last)
    world.fs.create(world.place("a") / last, keep, prewrite=False)
    overwrite(world, str(last), 0, data[:keep])
    new = world.open("b", restore=True)
    report = run(world, new)
    left = [
        number
        for number, record in records.items()
        if segment_of(record) != last or record.physical_offset % _SEGMENT + record.size <= keep
    ]
    assert numbers(new) == left
    (named,) = report.not_saved
    end = records[199].physical_offset + records[199].size
    assert (named.offset, named.next) == (records[left[-1] + 1].physical_offset, end)


@pytest.mark.parametrize("number", [3, 38])
def test_a_bit_that_no_checksum_covers_does_not_bring_back_what_is_archived(world: World, number: int) -> None:
    record = lost(world)[number]
    at = record.physical_offset % _SEGMENT
    overwrite(world, str(segment_of(record)), at + record.size - 1, b"?")  # of the key
    new = world.open("b", restore=True)
    assert run(world, new).appended == 160
    assert numbers(new) == list(range(200))


@pytest.mark.parametrize("name", ["checkpoint", "tierlog/index.json", "consumequeue/orders/0/" + "0" * 20])
def test_what_is_derived_from_the_log_does_not_matter(world: World, name: str) -> None:
    lost(world)
    overwrite(world, name, 0, b"\xff" * 30)
    new = world.open("b", restore=True)
    assert (run(world, new).appended, numbers(new)) == (160, list(range(200)))


def test_without_its_topics_a_log_is_refused(world: World) -> None:
    """They say what is deleted."""
    lost(world)
    world.fs.unlink(world.place("a") / "tierlog/topics.json")
    new = world.open("b", restore=True)
    with pytest.raises(CorruptionError, match="topics of this log are lost"):
        run(world, new)


def test_a_segment_size_that_is_not_the_archives_is_refused(world: World) -> None:
    """With it no file would count as a segment."""
    lost(world)
    paths = StorePaths(world.place("a"))
    identity = StoreIdentity.read(world.fs, paths)
    assert identity is not None
    replace(identity, segment_bytes=8192).save(world.fs, paths)
    new = world.open("b", restore=True)
    with pytest.raises(StoreMismatchError, match="the archive has segments of 4096 bytes"):
        run(world, new)


def test_a_log_without_a_record_is_salvaged_to_nothing(world: World) -> None:
    first = world.open("first")
    send(first, "orders", 0, 4)
    first.archive(everything=True)
    first.close()
    world.open("a", restore=True).close()
    new = world.open("b", restore=True)
    report = run(world, new)
    assert (report.read, report.not_saved) == (0, [])
