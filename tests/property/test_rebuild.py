"""An index made again from segments alone answers as the one before, whatever was lost and whatever shape it gets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.index.index_edits import edit_head
from tests.support.index.index_merge import Shape, merge, mergeable
from tests.support.index.item_layouts import NARROW, THIRD
from tests.support.stores.archives import KEYS, TOPICS, build
from tests.support.world import World
from tierlog.index.format.layout import LAYOUTS, TIERLOG, ItemLayout
from tierlog.index.maintenance.check import check_archive_deep
from tierlog.index.maintenance.rebuild import (
    IndexShape,
    RebuildPlan,
    Stretch,
    build_objects,
    plan_rebuild,
    replace_stretch,
)
from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import ConflictError, CorruptionError, InvalidRequestError, ObjectNotFoundError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.checks.findings import Findings
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import IndexEntry
from tierlog.tiering.message.stored_message import StoredMessage

#: Names of objects are used once.
_SEEDS = itertools.count()
SHAPE = IndexShape(25, 40, TIERLOG)
EVER = ((0, 1 << 62),)


@pytest.fixture(scope="module")
def good() -> World:
    return build()


@pytest.fixture
def world(good: World) -> World:
    return good.copy()


Answers = list[tuple[list[StoredMessage], bool]]


@pytest.fixture(scope="module")
def wanted(good: World) -> Answers:
    return answers(good)


def plan_of(
    manifest: ManifestStore, shape: IndexShape, *, everything: bool = False, most_bytes: int = 40_000
) -> RebuildPlan:
    head, reader = manifest.refresh(), manifest.reader()

    def is_right(entry: IndexEntry) -> bool:
        try:
            there = manifest.objects.head(entry.key).size_bytes == entry.size_bytes
        except ObjectNotFoundError:
            there = False
        return not everything and there and (entry.slots, entry.layout) == (shape.slots, shape.layout.name)

    log = list(manifest.log_entries(reader, head))
    index = list(manifest.all_index_entries(reader, head))
    return plan_rebuild(head, log, index, is_right, within=EVER, most_bytes=most_bytes)


def built(manifest: ManifestStore, stretch: Stretch, shape: IndexShape) -> tuple[IndexEntry, ...]:
    head, fs = manifest.refresh(), OverlayFileSystem(LocalFileSystem())
    return tuple(
        entry
        for piece in stretch.pieces
        for entry in build_objects(
            manifest,
            head,
            piece,
            shape=shape,
            fs=fs,
            folder=Path(f"/rebuild/{piece[0]}"),
            randomness=SeededRandomness(next(_SEEDS)),
        )
    )


def rebuild(world: World, shape: IndexShape = SHAPE, *, everything: bool = False) -> tuple[int, int]:
    """All stretches one after the other; commits, and objects that were added."""
    manifest = world.manifest()
    plan = plan_of(manifest, shape, everything=everything)
    commits = added = 0
    for stretch in plan.stretches:
        begun_s = manifest.begin_upload()
        new = built(manifest, stretch, shape)
        if new or stretch.old:
            replace_stretch(manifest, stretch, new, begun_s)
            commits, added = commits + 1, added + len(new)
    return commits, added


def answers(world: World) -> Answers:
    """Every key of every topic, on both axes, in both orders, of all times and of some."""
    cold, now_ms = world.cold(), world.clock.now_ms()
    times = [(0, now_ms), (now_ms - 150_000, now_ms - 60_000)]
    found = []
    for topic in TOPICS:
        for key in KEYS:
            for axis in TimeAxis:
                for order in Order:
                    for low, high in times:
                        answer = cold.query(Query(topic, key, low, high, 500, axis, order))
                        found.append((answer.messages, answer.coverage.complete))
    return found


def check(world: World, layouts: Mapping[int, ItemLayout] = LAYOUTS) -> list[str]:
    findings = Findings()
    check_archive_deep(world.manifest(), None, findings, lambda done, of: None, layouts)
    return findings.lines()


def entries(world: World) -> list[IndexEntry]:
    manifest = world.manifest()
    return list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))


# ---- what is lost


def forget_all(world: World) -> None:
    edit_head(world, lambda head: replace(head, index=(), index_tree=()))


def forget_the_newest(world: World) -> None:
    edit_head(world, lambda head: replace(head, index=()))


def forget_one_and_delete_another(world: World) -> None:
    inline = world.manifest().refresh().index
    del world.objects._objects[inline[-1].key]
    edit_head(world, lambda head: replace(head, index=head.index[1:]))


def delete_every_other(world: World) -> None:
    for entry in entries(world)[::2]:
        del world.objects._objects[entry.key]


def delete_all(world: World) -> None:
    for entry in entries(world):
        del world.objects._objects[entry.key]


LOSSES = [
    forget_all, forget_one_and_delete_another, delete_all,
    *(pytest.param(lose, marks=pytest.mark.slow) for lose in (forget_the_newest, delete_every_other)),
]  # fmt: skip


@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_index_is_made_again(wanted: Answers, world: World, lose: Callable[[World], None]) -> None:
    lose(world)
    kept = {entry.key for entry in entries(world)} & world.objects._objects.keys()
    commits, added = rebuild(world)
    assert commits
    assert added
    assert kept <= {entry.key for entry in entries(world)}, "what was sound stays"
    assert check(world) == []
    assert answers(world) == wanted
    assert rebuild(world) == (0, 0), "nothing is left to do"


@pytest.mark.parametrize(("slots", "items"), [(1, 500), pytest.param(7, 3, marks=pytest.mark.slow), (64, 500)])
def test_another_number_of_slots_and_items(wanted: Answers, world: World, slots: int, items: int) -> None:
    rebuild(world, IndexShape(slots, items, TIERLOG))
    assert {(entry.slots, entry.slot_from, entry.slot_end) for entry in entries(world)} == {(slots, 0, slots)}
    assert check(world) == []
    assert answers(world) == wanted


@pytest.mark.parametrize("layout", [THIRD, pytest.param(NARROW, marks=pytest.mark.slow)])
def test_another_layout_and_back(wanted: Answers, world: World, layout: ItemLayout) -> None:
    layouts = {**LAYOUTS, layout.number: layout}
    rebuild(world, replace(SHAPE, layout=layout))
    assert {entry.layout for entry in entries(world)} == {layout.name}
    assert check(world, layouts) == []
    rebuild(world)
    assert {entry.layout for entry in entries(world)} == {"tierlog"}
    assert check(world) == []
    assert answers(world) == wanted


def test_a_layout_for_export_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="import and export only"):
        rebuild(world, replace(SHAPE, layout=LAYOUTS[1]))


@pytest.mark.parametrize("parts", [1, 3])
def test_merged_objects_become_those_of_their_range(wanted: Answers, world: World, parts: int) -> None:
    for number, run in enumerate(mergeable(world.manifest(), world.manifest().refresh())):
        merge(world.manifest(), run, SeededRandomness(number), Shape(parts=parts, page_bytes=4096))
    merged = [entry for entry in entries(world) if entry.level]
    assert merged
    assert rebuild(world) == (0, 0), "a merge is as right as what it was made of"
    del world.objects._objects[merged[0].key]
    rebuild(world)
    assert not {entry.key for entry in merged if entry.first == merged[0].first} & {each.key for each in entries(world)}
    assert check(world) == []
    assert answers(world) == wanted


def test_everything_again_if_asked_for(wanted: Answers, world: World) -> None:
    before = {entry.key for entry in entries(world)}
    commits, _ = rebuild(world, everything=True)
    assert commits > 1
    assert before.isdisjoint(entry.key for entry in entries(world))
    assert check(world) == []
    assert answers(world) == wanted


@pytest.mark.parametrize("done", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_between_commits_the_next_run_goes_on(wanted: Answers, world: World, done: int) -> None:
    """Objects of the stretch that was not committed are nobody's."""
    manifest, shape = world.manifest(), IndexShape(7, 30, TIERLOG)
    stretches = plan_of(manifest, shape).stretches
    assert len(stretches) > done
    for stretch in stretches[:done]:
        replace_stretch(manifest, stretch, built(manifest, stretch, shape), manifest.begin_upload())
    lost = {entry.key for entry in built(manifest, stretches[done], shape)}
    assert rebuild(world, shape)[0] == len(stretches) - done
    assert lost.isdisjoint(entry.key for entry in entries(world))
    assert check(world) == []
    assert answers(world) == wanted


@pytest.mark.slow
def test_answers_are_the_same_after_every_commit(world: World) -> None:
    """One engine over all of it, so that its catalogue swaps each stretch in."""
    manifest, cold = world.manifest(), world.cold()
    queries = [Query(topic, key, limit=500) for topic in TOPICS for key in KEYS]
    wanted = [cold.query(query).messages for query in queries]
    shape = IndexShape(7, 30, TIERLOG)
    for stretch in plan_of(manifest, shape, most_bytes=1).stretches:
        new = built(manifest, stretch, shape)
        assert [cold.query(query).messages for query in queries] == wanted, "objects without a name are not seen"
        replace_stretch(manifest, stretch, new, manifest.begin_upload())
        world.clock.advance(60_000)  # the engine looks for a newer manifest
        assert [cold.query(query).messages for query in queries] == wanted
    assert {entry.slots for entry in entries(world)} == {7}


# ---- what happens meanwhile


def only_stretch(manifest: ManifestStore) -> Stretch:
    (stretch,) = plan_of(manifest, SHAPE, everything=True, most_bytes=1 << 40).stretches
    return stretch


def test_a_range_that_somebody_rebuilt_is_refused(world: World) -> None:
    manifest = world.manifest()
    stretch = only_stretch(manifest)
    new = built(manifest, stretch, SHAPE)
    rebuild(world, everything=True)
    before = entries(world)
    with pytest.raises(ConflictError):
        replace_stretch(manifest, stretch, new, manifest.begin_upload())
    assert entries(world) == before


def test_a_hole_that_somebody_filled_is_refused(world: World) -> None:
    """Nothing is to be removed, so only the newer objects tell."""
    forget_all(world)
    manifest = world.manifest()
    stretch = only_stretch(manifest)
    assert stretch.old == ()
    new = built(manifest, stretch, SHAPE)
    rebuild(world)
    with pytest.raises(ConflictError):
        replace_stretch(manifest, stretch, new, manifest.begin_upload())
    assert {entry.key for entry in new}.isdisjoint(entry.key for entry in entries(world))


def test_a_range_that_expired_in_part_is_refused(world: World) -> None:
    forget_all(world)
    manifest = world.manifest()
    stretch = only_stretch(manifest)
    new = built(manifest, stretch, SHAPE)
    edit_head(world, lambda head: replace(head, cold_min=2 * 16_384))
    with pytest.raises(ConflictError):
        replace_stretch(manifest, stretch, new, manifest.begin_upload())


def test_a_segment_that_cannot_be_read_is_no_index(world: World) -> None:
    manifest = world.manifest()
    head = manifest.refresh()
    entry = next(manifest.log_entries(manifest.reader(), head))
    data, info = world.objects._objects[entry.key]
    world.objects._objects[entry.key] = (data[:30] + bytes([data[30] ^ 1]) + data[31:], info)
    before = entries(world)
    with pytest.raises(CorruptionError):
        rebuild(world, everything=True)
    assert entries(world) == before


@pytest.mark.slow
def test_removed_records_have_no_items(world: World) -> None:
    engine = world.open()
    engine.removal.erase(Query("orders", KEYS[0]))
    while engine.removal.run_once():
        pass
    engine.close()
    wanted = answers(world)
    assert wanted[0][0] == []
    manifest = world.manifest()
    reader, head = manifest.reader(), manifest.refresh()
    erased = sum(SegmentReader(reader, entry).restore().fillers for entry in manifest.log_entries(reader, head))
    assert erased
    before = sum(entry.items for entry in entries(world))
    rebuild(world, everything=True)
    assert sum(entry.items for entry in entries(world)) < before
    assert answers(world) == wanted
    assert check(world) == []
