"""``check --deep`` names each damaged object of an archive, whatever the damage, and nothing else in a sound one."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.support.index.index_edits import changed_object, edit_head, items_of, with_filter
from tests.support.objects.damage import Damage, bytes_of, changed, cut, flipped, overwrite, remove
from tests.support.stores.archives import Named
from tests.support.world import World
from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.layout import Items
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, IndexEntry, LogEntry, ObjectRef, PageNode
from tierlog.tiering.format.queue_rows import QueueRows, decode_queue_rows_head, decode_rows_page, encode_queue_rows
from tierlog.tiering.format.store_state import StoreState
from tierlog.tiering.objects.object_store import PendingUpload

DAY_MS = 24 * 3_600_000


def findings(world: World) -> list[str]:
    return world.cold().check(deep=True)


def objects_named(world: World) -> set[str | None]:
    return {finding.object for finding in world.cold().check_report(deep=True).found}


def test_a_sound_archive_has_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object) -> None:
        raise AssertionError("sums of sound items differ")

    monkeypatch.setattr("tierlog.index.maintenance.check._Comparison._report", told)
    assert findings(world) == []
    engine = world.open(read_only=True)
    assert engine.check(deep=True) == []
    engine.close()


KINDS = (
    "state", "segment", "index object", "rows", "companion",
    "log page 0", "log page 1", "index page 0", "index page 1",
)  # fmt: skip
DAMAGES: dict[str, Damage] = {
    "missing": remove,
    "cut": changed(lambda data: cut(data, len(data) - 7)),
    "a bit in the middle": changed(lambda data: flipped(data, len(data) // 2)),
    "a bit at the start": changed(lambda data: flipped(data, 3, 2)),
    "a bit at the end": changed(lambda data: flipped(data, len(data) - 2)),
    "zeros": changed(lambda data: bytes(len(data))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bytes(world: World, kind: str, damage: str) -> None:
    key = Named.of(world.manifest()).kinds[kind][0]
    DAMAGES[damage](world.objects, key)
    named = objects_named(world)
    assert key in named
    if kind in ("segment", "index object", "rows", "companion", "index page 0", "index page 1"):
        assert named == {key}


@pytest.mark.parametrize("kind", ["segment", "index object", "companion", "log page 0", "index page 0"])
def test_the_bytes_of_another_object(world: World, kind: str) -> None:
    key, other, *_ = Named.of(world.manifest()).kinds[kind]
    bytes_of(other)(world.objects, key)
    assert key in objects_named(world)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_head(world: World, damage: str) -> None:
    cold = world.cold()
    DAMAGES[damage](world.objects, "store/head")
    assert {finding.object for finding in cold.check_report(deep=True).found} == {"store/head"}
    engine = world.open(read_only=True)
    assert "store/head" in "\n".join(engine.check(deep=True))
    engine.close()


flips = pytest.mark.parametrize("flips", [5, pytest.param(25, marks=pytest.mark.slow)])


@flips
@pytest.mark.parametrize("section", ["offset_map", "directory", "seek_table", "frame"])
def test_every_bit_of_a_segment_matters(world: World, section: str, seed: int, flips: int) -> None:
    chance = random.Random(seed)
    entry = log_entry(world, 2)
    first, last = 0, entry.sections["offset_map"].position
    if section != "frame":
        ref = entry.sections[section]
        first, last = ref.position - 8, ref.position + ref.length
    for _ in range(flips):
        damaged = world.copy()
        changed(lambda data: flipped(data, chance.randrange(first, last), chance.randrange(8)))(
            damaged.objects, entry.key
        )
        assert objects_named(damaged) == {entry.key}


@flips
@pytest.mark.parametrize("section", ["pages", "directory", "filter", "meta", "tail"])
def test_every_bit_of_an_index_object_matters(world: World, section: str, seed: int, flips: int) -> None:
    chance = random.Random(seed)
    entry = index_entry(world)
    first, last = entry.size_bytes - 16, entry.size_bytes
    if section != "tail":
        first, last = (
            entry.sections[section].position,
            entry.sections[section].position + entry.sections[section].length,
        )
    for _ in range(flips):
        damaged = world.copy()
        changed(lambda data: flipped(data, chance.randrange(first, last), chance.randrange(8)))(
            damaged.objects, entry.key
        )
        assert objects_named(damaged) == {entry.key}


def test_a_damaged_frame_tells_which_offsets_are_lost(world: World) -> None:
    entry = log_entry(world, 1)
    changed(lambda data: flipped(data, 40))(world.objects, entry.key)
    (line,) = findings(world)
    assert line.startswith(f"{entry.key}: frame 0 is damaged")
    assert "orders/0 queue offsets [" in line


# ---- objects that are sound, and say what is not so


def log_entry(world: World, number: int) -> LogEntry:
    manifest = world.manifest()
    return list(manifest.log_entries(manifest.reader(), manifest.refresh()))[number]


def index_entry(world: World) -> IndexEntry:
    return world.manifest().refresh().index[0]


def replaced(world: World, change: Callable[[Items], Items]) -> str:
    """The first inline index object with changed items."""
    entry = changed_object(world, index_entry(world), change, "store/index/L0/other.idx")
    edit_head(world, lambda head: replace(head, index=(entry, *head.index[1:])))
    return entry.key


def filter_of(keys: Callable[[Items], Items], spare: int = 0) -> Callable[[World], list[str]]:
    """The findings about an object whose filter is that of other keys, and says ``spare`` keys more."""

    def edit(world: World) -> list[str]:
        entry = index_entry(world)
        items = keys(items_of(world, entry))

        def change(old: KeyFilter) -> KeyFilter:
            new = old.empty_like()
            new.keys += spare
            new.add(items["hash"].astype(np.int64), items["hash_high"].astype(np.int64))
            return new

        other = with_filter(world, entry, change, "store/index/L0/other.idx")
        edit_head(world, lambda head: replace(head, index=(other, *head.index[1:])))
        return findings(world)

    return edit


def one_more(items: Items) -> Items:
    extra = items[:1].copy()
    extra["hash_high"] ^= 0xFFFFFFFF
    return np.concatenate((items, extra))


def test_filter_is_the_one_of_the_items(world: World) -> None:
    name = "store/index/L0/other.idx"
    assert filter_of(lambda items: items)(world.copy()) == []
    first = items_of(world, index_entry(world))[0]
    missing = filter_of(lambda items: items[items["hash"] != first["hash"]])(world.copy())
    (count,) = {int(match[1]) for line in missing if (match := re.search(r"rules out (\d+) items that it holds", line))}
    assert 1 <= count <= np.count_nonzero(items_of(world, index_entry(world))["hash"] == first["hash"])
    assert filter_of(one_more)(world.copy()) == [f"{name}: its key filter has bits of keys that it does not hold"]
    (line,) = filter_of(lambda items: items, spare=1)(world.copy())
    assert re.fullmatch(rf"{name}: its key filter says (\d+) keys, it holds (\d+)", line)


def test_object_may_have_no_filter(world: World) -> None:
    other = with_filter(world, index_entry(world), lambda _: None, "store/index/L0/other.idx")
    edit_head(world, lambda head: replace(head, index=(other, *head.index[1:])))
    assert findings(world) == []


def narrower(bounds: TimeBounds | None) -> TimeBounds:
    assert bounds is not None
    return replace(bounds, max_born_ms=bounds.max_born_ms - 1)


def drop_index(world: World) -> str:
    entry = index_entry(world)
    edit_head(world, lambda head: replace(head, index=head.index[1:]))
    manifest = world.manifest()
    found = manifest.segment_of(manifest.reader(), manifest.refresh(), entry.first)
    assert found is not None
    return found.key


def drop_an_item(world: World) -> str:
    return replaced(world, lambda items: items[1:])


def an_item_too_many(world: World) -> str:
    def change(items: Items) -> Items:
        extra = items[:1].copy()
        extra["hash"] += 1
        return np.concatenate((items, extra))

    return replaced(world, change)


def set_field(name: str, by: int) -> Callable[[World], str]:
    def edit(world: World) -> str:
        def change(items: Items) -> Items:
            items = items.copy()
            items[name][len(items) // 2] += by
            return items

        return replaced(world, change)

    return edit


def an_item_of_another_segment(world: World) -> str:
    def change(items: Items) -> Items:
        extra = items[:1].copy()
        extra["offset"] = 5 * 16_384 + 17
        return np.concatenate((items, extra))

    return replaced(world, change)


def an_item_of_no_segment(world: World) -> str:
    def change(items: Items) -> Items:
        extra = items[:1].copy()
        extra["offset"] = 1 << 40
        return np.concatenate((items, extra))

    return replaced(world, change)


def two_objects_for_one_range(world: World) -> str:
    entry = index_entry(world)
    other = changed_object(world, entry, lambda items: items, "store/index/L0/other.idx")
    edit_head(world, lambda head: replace(head, index=(*head.index, other)))
    first = int(items_of(world, entry)["offset"].min())
    manifest = world.manifest()
    found = manifest.segment_of(manifest.reader(), manifest.refresh(), first)
    assert found is not None
    return found.key


def narrow_index_bounds(world: World) -> str:
    entry = replace(index_entry(world), bounds=narrower(index_entry(world).bounds))
    edit_head(world, lambda head: replace(head, index=(entry, *head.index[1:])))
    return entry.key


def narrow_segment_bounds(world: World) -> str:
    entry = world.manifest().refresh().log[-1]
    edit_head(world, lambda head: replace(head, log=(*head.log[:-1], replace(entry, bounds=narrower(entry.bounds)))))
    return entry.key


def narrow_page_bounds(world: World) -> str:
    def change(node: PageNode) -> PageNode:
        return replace(node, bounds=narrower(node.bounds))

    node = world.manifest().refresh().log_tree[0]
    edit_head(world, lambda head: replace(head, log_tree=(change(node), *head.log_tree[1:])))
    return node.ref.key


def edit_rows(change: Callable[[QueueRows], QueueRows]) -> Callable[[World], str]:
    def edit(world: World) -> str:
        entry = world.manifest().refresh().log[-1]
        assert entry.rows is not None
        data, key = world.objects._objects[entry.rows.key][0], entry.rows.key
        head = decode_queue_rows_head(data, path=key)
        rows = np.concatenate(
            [decode_rows_page(data[page.position :][: page.length], page, path=key) for page in head.pages]
        )
        data, section = encode_queue_rows(change(rows.copy()), key)
        overwrite(world.objects, key, data)
        ref = ObjectRef(key, len(data), zlib.crc32(data), section.head_length)
        edit_head(world, lambda head: replace(head, log=(*head.log[:-1], replace(entry, rows=ref))))
        return key

    return edit


def shift_count(rows: QueueRows) -> QueueRows:
    rows["count"][0] -= 1
    return rows


def shift_time(rows: QueueRows) -> QueueRows:
    rows["min_store_ms"][1] += 1
    return rows


def drop_a_segment(world: World) -> str:
    edit_head(world, lambda head: replace(head, log=()))
    return "store/head"


def lift(**watermarks: int) -> Callable[[World], str]:
    def edit(world: World) -> str:
        def change(head: Head) -> Head:
            return replace(head, **{name: getattr(head, name) + by for name, by in watermarks.items()})

        edit_head(world, change)
        return "store/head"

    return edit


def name_twice(world: World) -> str:
    edit_head(world, lambda head: replace(head, index=(*head.index, head.index[-1])))
    return "store/head"


def forget_a_topic(world: World) -> str:
    key = "store/state/other"
    manifest = world.manifest()
    state = manifest.state(manifest.reader(), manifest.refresh())
    data = replace(state, topics=tuple(topic for topic in state.topics if topic.name != "rare")).encode()
    assert isinstance(state, StoreState)
    world.objects.put(key, data)
    edit_head(world, lambda head: replace(head, state=ObjectRef(key, len(data), zlib.crc32(data), len(data))))
    manifest = world.manifest()
    for entry in manifest.log_entries(manifest.reader(), manifest.refresh()):
        if SegmentReader(manifest.reader(), entry).directory_rows("rare"):
            return entry.key
    raise AssertionError


def leave_an_orphan(world: World) -> str:
    world.objects.put("store/log/orphan", b"x")
    world.clock.advance(2 * DAY_MS)
    return "store/log/orphan"


def leave_a_removed_name(world: World) -> str:
    manifest = world.manifest()
    removed = next(key for key, _ in manifest.removed_names(manifest.reader(), manifest.refresh()))
    world.clock.advance(2 * DAY_MS)
    return removed


def leave_an_upload(world: World) -> str:
    pending = PendingUpload("store/log/upload", "1", world.clock.now_ms())
    world.objects._uploads["1"] = pending
    world.clock.advance(2 * DAY_MS)
    return pending.key


EDITS: dict[str, Callable[[World], str]] = {
    "an index object that nobody names": drop_index,
    "an item is missing": drop_an_item,
    "an item of no key": an_item_too_many,
    "an item with another hash_high": set_field("hash_high", 1),
    "an item of another record": set_field("offset", 3),
    "an item with another topic": set_field("topic_id", 1),
    "an item with another queue": set_field("queue_id", 1),
    "an item with another size": set_field("size", 1),
    "an item with another time": set_field("seconds", 5),
    "an item of another segment": an_item_of_another_segment,
    "an item of no segment": an_item_of_no_segment,
    "two objects for one range": two_objects_for_one_range,
    "index bounds too narrow": narrow_index_bounds,
    "segment bounds too narrow": narrow_segment_bounds,
    "page bounds too narrow": narrow_page_bounds,
    "a queue row is missing": edit_rows(lambda rows: rows[1:]),
    "a queue row counts less": edit_rows(shift_count),
    "a queue row with narrow times": edit_rows(shift_time),
    "segments are missing": drop_a_segment,
    "archived_to too high": lift(archived_to=16_384),
    "indexed_to above archived_to": lift(indexed_to=1 << 20),
    "cold_min too high": lift(cold_min=16_384),
    "an object is named twice": name_twice,
    "a topic is not in the state": forget_a_topic,
    "an old orphan": leave_an_orphan,
    "a removed name that is still there": leave_a_removed_name,
    "an old upload": leave_an_upload,
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_not_so(world: World, edit: str) -> None:
    key = EDITS[edit](world)
    assert key in objects_named(world)


def lines_of(world: World) -> Iterator[str]:
    report = world.cold().check_report(deep=True)
    yield from (str(note) for note in report.notes)


def test_what_is_young_is_no_finding(world: World) -> None:
    world.objects.put("store/log/young", b"x")
    world.objects.put("store/somebody-else", b"x")
    world.objects._uploads["1"] = PendingUpload("store/log/upload", "1", world.clock.now_ms())
    assert findings(world) == []
    notes = "\n".join(lines_of(world))
    assert "store/log/young: is named by nobody" in notes
    assert "store/somebody-else: is no object of tierlog" in notes
    assert "store/log/upload: an upload of it has been pending" in notes


def test_a_hot_copy_that_differs(world: World) -> None:
    engine = world.open(read_only=True)
    segment = engine._hot.log.segments()[0]
    body = bytes(segment.data[:2000]).find(b"-2")
    copy = segment.data.copy()
    copy[body + 1] ^= 1
    object.__setattr__(segment, "data", copy)
    entry = next(entry for entry in world.manifest().refresh().log if entry.base == segment.base_offset)
    assert any(line.startswith(f"{entry.key}: I2: differs from the hot copy") for line in engine.check(deep=True))
