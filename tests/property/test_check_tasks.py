"""The deep check in tasks finds what the check in one process finds, whatever is damaged and however it is cut."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from tests.property.test_check_names_damage import DAMAGES, EDITS, KINDS
from tests.support.index.index_merge import Shape, merge, mergeable
from tests.support.objects.damage import changed, flipped
from tests.support.stores.archives import Named
from tests.support.world import World
from tierlog.index.maintenance.check import ObjectRead, check_archive_deep
from tierlog.index.maintenance.check_tasks import CheckCounts, ObjectTask, SegmentRead, SegmentTask, check_in_tasks
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.checks.findings import Findings
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import IndexEntry

T = TypeVar("T")


def travelled(value: T) -> T:
    """As another process gets it."""
    found: T = pickle.loads(pickle.dumps(value))
    return found


class Elsewhere:
    """Runs tasks with a manifest of their own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.tasks = 0

    def objects(self, tasks: Sequence[ObjectTask]) -> list[tuple[ObjectRead, ...]]:
        return [travelled(travelled(task).run(self._manifest())) for task in tasks]

    def segments(self, tasks: Sequence[SegmentTask]) -> list[tuple[SegmentRead, ...]]:
        return [travelled(travelled(task).run(self._manifest())) for task in tasks]

    def _manifest(self) -> ManifestStore:
        self.tasks += 1
        return self._world.manifest()


def in_tasks(world: World, task_bytes: int = 1, wave_tasks: int = 3) -> tuple[Findings, CheckCounts, int]:
    findings, elsewhere = Findings(), Elsewhere(world)
    counts = check_in_tasks(
        world.manifest(), findings, elsewhere.objects, elsewhere.segments, lambda done, of: None,
        task_bytes=task_bytes, wave_tasks=wave_tasks,
    )  # fmt: skip
    return findings, counts, elsewhere.tasks


def in_one(world: World) -> Findings:
    findings = Findings()
    check_archive_deep(world.manifest(), None, findings, lambda done, of: None)
    return findings


def compare(world: World, **cut: int) -> Findings:
    findings, one = in_tasks(world, **cut)[0], in_one(world)
    assert sorted(findings.lines()) == sorted(one.lines())
    assert sorted(map(str, findings.notes)) == sorted(map(str, one.notes))
    return findings


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bytes(world: World, kind: str, damage: str) -> None:
    DAMAGES[damage](world.objects, Named.of(world.manifest()).kinds[kind][0])
    assert compare(world).found


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_not_so(world: World, edit: str) -> None:
    key = EDITS[edit](world)
    assert key in {each.object for each in compare(world).found}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_head(world: World, damage: str) -> None:
    DAMAGES[damage](world.objects, "store/head")
    assert {each.object for each in compare(world).found} == {"store/head"}


@pytest.mark.parametrize(("task_bytes", "wave_tasks"), [(1, 1), (1, 1000), (20_000, 2), (1 << 40, 1)])
def test_however_it_is_cut(world: World, task_bytes: int, wave_tasks: int) -> None:
    """Several objects of each kind are damaged: what one segment tells depends on what was told of those before."""
    named = Named.of(world.manifest()).kinds
    for key in (*named["segment"][1:4], *named["index object"][2:5]):
        changed(lambda data: flipped(data, len(data) // 3))(world.objects, key)
    EDITS["index bounds too narrow"](world)
    EDITS["an item is missing"](world)
    assert len(compare(world, task_bytes=task_bytes, wave_tasks=wave_tasks).found) > 6


def merged(world: World) -> list[IndexEntry]:
    return [
        entry
        for number, run in enumerate(mergeable(world.manifest(), world.manifest().refresh()))
        for entry in merge(world.manifest(), run, SeededRandomness(number), Shape(parts=3, page_bytes=4096))
    ]


@pytest.mark.parametrize("damage", ["missing", "a bit in the middle"])
def test_merged_objects(world: World, damage: str) -> None:
    entries = merged(world)
    assert compare(world).lines() == []
    DAMAGES[damage](world.objects, entries[0].key)
    assert {each.object for each in compare(world).found} == {entries[0].key}


def test_a_sound_archive_is_counted(world: World) -> None:
    manifest = world.manifest()
    head, reader = manifest.refresh(), manifest.reader()
    log, index = list(manifest.log_entries(reader, head)), list(manifest.all_index_entries(reader, head))
    findings, counts, tasks = in_tasks(world)
    assert findings.lines() == []
    assert (counts.segments, counts.objects) == (len(log), len(index))
    assert counts.records == sum(entry.records for entry in log)
    assert counts.items == sum(entry.items for entry in index)
    assert tasks == len(log) + len(index), "a task each"


def test_nothing_is_written(world: World) -> None:
    before: dict[str, object] = dict(world.objects._objects)
    in_tasks(world)
    assert world.objects._objects == before


def test_a_sound_archive_is_read_once(world: World) -> None:
    """Segments are compared by numbers; only those that differ read their index objects again."""
    sizes = {entry.key: entry.size_bytes for entry in entries_of(world)}
    read = dict.fromkeys(sizes, 0)
    inner: Callable[[str, int, int], bytes] = world.objects.get_range

    def counted(key: str, start: int, end: int) -> bytes:
        if key in read:
            read[key] += end - start
        return inner(key, start, end)

    world.objects.get_range = counted  # type: ignore[method-assign]
    in_tasks(world)
    assert all(sizes[key] <= count < 2 * sizes[key] for key, count in read.items()), "metadata twice, pages once"


def entries_of(world: World) -> list[IndexEntry]:
    manifest = world.manifest()
    return list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))
