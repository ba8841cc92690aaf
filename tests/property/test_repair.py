"""``repair`` restores what can be derived, says what cannot, makes nothing worse, and can be run again or killed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from tests.property.test_check_names_damage import drop_an_item, drop_index, edit_rows, shift_count
from tests.support.index.index_edits import edit_head
from tests.support.objects.damage import Damage, bytes_of, changed, flipped, remove
from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.archives import KEYS, TOPICS, Named, build
from tests.support.world import ROOT, World
from tierlog.index.format.object_sections import FILTER
from tierlog.index.maintenance.repair import RepairReport
from tierlog.index.search.query import Query
from tierlog.service.engine.checks import repair_local
from tierlog.tiering.base.errors import UnavailableError
from tierlog.tiering.format.manifest import Head, ObjectRef, PageNode, encode_page
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.object_store import ObjectStore

Wanted = list[list[StoredMessage]]


@pytest.fixture(scope="module")
def good() -> World:
    return build()


@pytest.fixture
def world(good: World) -> World:
    return good.copy()


@pytest.fixture(scope="module")
def wanted(good: World) -> Wanted:
    return answers(good)


def answers(world: World) -> Wanted:
    cold = world.cold()
    queries = [Query(topic, key, limit=1000) for topic in TOPICS for key in (None, *KEYS)]
    return [cold.query(query).messages for query in queries]


def repaired(world: World, *, hot: bool = False, objects: ObjectStore | None = None) -> RepairReport:
    if not hot:
        return world.cold(objects).repair()
    engine = world.open(objects=objects)
    try:
        return engine.repair()
    finally:
        engine.close()


DAMAGES: dict[str, Damage] = {"missing": remove, "a bit": changed(lambda data: flipped(data, len(data) // 2))}


@pytest.mark.parametrize(
    "kind", ["rows", "companion", "index object", "log page 0", "log page 1", "index page 0", "index page 1"]
)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, -1])
def test_what_the_archive_alone_restores(wanted: Wanted, world: World, kind: str, damage: str, number: int) -> None:
    key = Named.of(world.manifest()).kinds[kind][number]
    DAMAGES[damage](world.objects, key)
    report = repaired(world)
    assert [each.object for each in report.done] == [key]
    assert report.left == []
    assert answers(world) == wanted
    assert repaired(world) == RepairReport()


@pytest.mark.parametrize("kind", ["segment", "state"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_the_hot_tier_restores(wanted: Wanted, world: World, kind: str, damage: str) -> None:
    key = Named.of(world.manifest()).kinds[kind][-1]
    DAMAGES[damage](world.objects, key)
    assert {each.object for each in repaired(world).left} == {key}, "the archive alone cannot"
    report = repaired(world, hot=True)
    assert [each.object for each in report.done] == [key]
    assert report.left == []
    assert answers(world) == wanted


def test_a_segment_without_another_copy_is_said_to_be_lost(good: World, world: World) -> None:
    key = Named.of(world.manifest()).kinds["segment"][0]
    changed(partial(flipped, position=40))(world.objects, key)
    before = dict(world.objects._objects)
    report = repaired(world, hot=True)
    assert report.done == []
    (left,) = report.left
    assert left.object == key
    assert "queue offsets [" in left.text
    assert {name: data for name, (data, _) in world.objects._objects.items() if name in before} == {
        name: data for name, (data, _) in before.items() if name != "store/head"
    } | {"store/head": world.objects._objects["store/head"][0]}


@pytest.mark.parametrize("kind", ["log page 0", "index page 0"])
def test_a_page_is_made_again_only_if_it_is_certain_what_it_held(world: World, kind: str) -> None:
    manifest = world.manifest()
    head, named = manifest.refresh(), Named.of(manifest).kinds
    key = named[kind][0]
    held = named["segment" if kind.startswith("log") else "index object"][0]
    remove(world.objects, key)
    world.objects.put(held.replace("-1-", "-9-"), world.objects.get(held)[0])
    report = repaired(world)
    assert report.done == []
    assert {each.object for each in report.left} == {key}
    assert world.manifest().refresh().version == head.version


def test_all_at_once(wanted: Wanted, world: World) -> None:
    named = Named.of(world.manifest()).kinds
    for kind in ("rows", "state", "segment"):
        remove(world.objects, named[kind][-1])
    for key in (*named["index object"], *named["companion"]):
        remove(world.objects, key)
    report = repaired(world, hot=True)
    assert report.left == []
    assert answers(world) == wanted


@pytest.mark.parametrize("edit", [drop_index, drop_an_item, edit_rows(shift_count)])
def test_sound_objects_that_say_what_is_not_so(wanted: Wanted, world: World, edit: Callable[[World], str]) -> None:
    edit(world)
    report = repaired(world)
    assert report.left == []
    assert report.done
    assert answers(world) == wanted


def test_the_companion_of_a_page_that_cannot_come_out_the_same(wanted: Wanted, world: World) -> None:
    """Another release of zstd packs the same rows into other bytes."""
    manifest = world.manifest()
    node = manifest.refresh().log_tree[0]
    leaf = manifest.leaves(manifest.reader(), node)[0]
    assert leaf.rows is not None
    remove(world.objects, leaf.rows.key)
    other = replace(leaf, rows=replace(leaf.rows, crc32=leaf.rows.crc32 ^ 1))
    rewrite_page(
        world, node.ref.key, [other if each == leaf else each for each in manifest.leaves(manifest.reader(), node)]
    )
    report = repaired(world)
    assert [each.object for each in report.done] == [leaf.rows.key]
    assert report.left == []
    assert answers(world) == wanted


def rewrite_page(world: World, key: str, items: list[PageNode]) -> None:
    data = encode_page("log", 1, items)
    world.objects.put(key, data)

    def change(head: Head) -> Head:
        nodes = [
            replace(node, ref=ObjectRef(key, len(data), zlib.crc32(data), 0)) if node.ref.key == key else node
            for node in head.log_tree
        ]
        return replace(head, log_tree=tuple(nodes))

    edit_head(world, change)


def test_a_damaged_key_filter_is_made_again(wanted: Wanted, world: World) -> None:
    entry = world.manifest().refresh().index[0]
    place = entry.sections[FILTER].position + entry.sections[FILTER].length - 5
    changed(lambda data: flipped(data, place))(world.objects, entry.key)
    assert answers(world) == wanted
    report = repaired(world)
    assert [finding.object for finding in report.done] == [entry.key]
    assert report.left == []
    assert answers(world) == wanted


def test_a_dry_run_writes_nothing(world: World) -> None:
    named = Named.of(world.manifest()).kinds
    remove(world.objects, named["index object"][0])
    remove(world.objects, named["segment"][-1])
    before = dict(world.objects._objects)
    cold = world.cold().repair(dry_run=True)
    engine = world.open(read_only=True)
    hot = engine.repair(dry_run=True)
    engine.close()
    assert world.objects._objects == before
    assert [each.object for each in cold.done] == [named["index object"][0]]
    assert [each.object for each in hot.done] == [named["segment"][-1], named["index object"][0]]
    assert {each.object for each in hot.left} >= {named["segment"][-1], named["index object"][0]}


@pytest.mark.slow
def test_killed_at_every_write(good: World, wanted: Wanted) -> None:
    def damaged() -> World:
        world = good.copy()
        named = Named.of(world.manifest()).kinds
        for kind in ("index object", "companion", "rows"):
            bytes_of("store/head")(world.objects, named[kind][-1])
        return world

    writes = [call for call in calls_of(damaged()) if call in ("put", "upload")]
    assert len(writes) >= 5
    for number in range(len(writes)):
        world = damaged()
        with suppress(UnavailableError):
            repaired(world, objects=DiesAtWrite(world.objects, number))
        report = repaired(world)
        assert report.left == [], f"write {number}"
        assert answers(world) == wanted, f"write {number}"


class DiesAtWrite(FaultyObjectStore):
    """Answers nothing any more from the n-th write on."""

    def __init__(self, inner: ObjectStore, number: int) -> None:
        super().__init__(inner)
        self._left = number

    def _begin(self, operation: str, key: str) -> None:
        if operation in ("put", "upload"):
            if self._left == 0:
                self.die()
            self._left -= 1
        super()._begin(operation, key)


def calls_of(world: World) -> Iterator[str]:
    store = FaultyObjectStore(world.objects)
    repaired(world, objects=store)
    return (call.operation for call in store.calls)


def test_damaged_queue_and_index_files_are_derived_again(world: World) -> None:
    before = answers(world)
    engine = world.open()
    view = engine._hot.queue_views(engine._hot.topics.get("orders"))[0]
    offset = view.first_at_or_above(engine._hot.border)
    engine.close()
    units = ROOT / "consumequeue" / "orders" / "0"
    base = offset - offset % 60
    file = world.fs.open(units / f"{base * 20:020d}")
    file.write_at((offset - base) * 20 + 8, b"\x00\x00\x00\x07")
    file.flush()
    file.close()
    for folder in ("sealed", "compacted", "uploaded"):
        for name in world.fs.list_dir(ROOT / "index" / folder):
            index_file = world.fs.open(ROOT / "index" / folder / name)
            index_file.write_at(3000, b"\x55\x55")
            index_file.flush()
            index_file.close()
    engine = world.open(read_only=True)
    lines = engine.check()
    engine.close()
    assert any(line.startswith("I3 queue orders/0") for line in lines)
    world.fs.kill()
    done = repair_local(world.fs, ROOT, lines, dry_run=False)
    assert done
    engine = world.open()
    assert engine.check(deep=True) == []
    engine.close()
    assert answers(world) == before
