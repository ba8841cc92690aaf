"""The deep check in tasks finds what the check in one process finds, whatever is damaged and however it is cut."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from index.archive_check import ObjectRead, check_archive_deep
from index.check_tasks import CheckCounts, ObjectTask, SegmentRead, SegmentTask, check_in_tasks
from tests.property.test_check_names_damage import DAMAGES, EDITS, KINDS
from tests.support.archives import ArchiveWorld, Named, build
from tests.support.damage import changed, flipped
from tests.support.index_merge import Shape, merge, mergeable
from tiering.checks.findings import Findings
from tiering.cold.manifest_store import ManifestStore
from tiering.format.manifest import IndexEntry
from tiering.randomness import SeededRandomness

T = TypeVar("T")


@pytest.fixture(scope="module")
def good() -> ArchiveWorld:
    return build()


@pytest.fixture
def world(good: ArchiveWorld) -> ArchiveWorld:
    return good.copy()


def travelled(value: T) -> T:
    """As another process gets it."""
    found: T = pickle.loads(pickle.dumps(value))
    return found


class Elsewhere:
    """Runs tasks with a manifest of their own."""

    def __init__(self, world: ArchiveWorld) -> None:
        self._world = world
        self.tasks = 0

    def objects(self, tasks: Sequence[ObjectTask]) -> list[tuple[ObjectRead, ...]]:
        return [travelled(travelled(task).run(self._manifest())) for task in tasks]

    def segments(self, tasks: Sequence[SegmentTask]) -> list[tuple[SegmentRead, ...]]:
        return [travelled(travelled(task).run(self._manifest())) for task in tasks]

    def _manifest(self) -> ManifestStore:
        self.tasks += 1
        return self._world.manifest()


def in_tasks(world: ArchiveWorld, task_bytes: int = 1, wave_tasks: int = 3) -> tuple[Findings, CheckCounts, int]:
    findings, elsewhere = Findings(), Elsewhere(world)
    counts = check_in_tasks(
        world.manifest(), findings, elsewhere.objects, elsewhere.segments, lambda done, of: None,
        task_bytes=task_bytes, wave_tasks=wave_tasks,
    )  # fmt: skip
    return findings, counts, elsewhere.tasks


def in_one(world: ArchiveWorld) -> Findings:
    findings = Findings()
    check_archive_deep(world.manifest(), None, findings, lambda done, of: None)
    return findings


def compare(world: ArchiveWorld, **cut: int) -> Findings:
    findings, one = in_tasks(world, **cut)[0], in_one(world)
    assert sorted(findings.lines()) == sorted(one.lines())
    assert sorted(map(str, findings.notes)) == sorted(map(str, one.notes))
    return findings


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bytes(world: ArchiveWorld, kind: str, damage: str) -> None:
    DAMAGES[damage](world.objects, Named.of(world.manifest()).kinds[kind][0])
    assert compare(world).found


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_not_so(world: ArchiveWorld, edit: str) -> None:
    key = EDITS[edit](world)
    assert key in {each.object for each in compare(world).found}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_head(world: ArchiveWorld, damage: str) -> None:
    DAMAGES[damage](world.objects, "store/head")
    assert {each.object for each in compare(world).found} == {"store/head"}


@pytest.mark.parametrize(("task_bytes", "wave_tasks"), [(1, 1), (1, 1000), (20_000, 2), (1 << 40, 1)])
def test_however_it_is_cut(world: ArchiveWorld, task_bytes: int, wave_tasks: int) -> None:
    """Several objects of each kind are damaged: what one segment tells depends on what was told of those before."""
    named = Named.of(world.manifest()).kinds
    for key in (*named["segment"][1:4], *named["index object"][2:5]):
        changed(lambda data: flipped(data, len(data) // 3))(world.objects, key)
    EDITS["index bounds too narrow"](world)
    EDITS["an item is missing"](world)
    assert len(compare(world, task_bytes=task_bytes, wave_tasks=wave_tasks).found) > 6


def merged(world: ArchiveWorld) -> list[IndexEntry]:
    return [
        entry
        for number, run in enumerate(mergeable(world.manifest(), world.manifest().refresh()))
        for entry in merge(world.manifest(), run, SeededRandomness(number), Shape(parts=3, page_bytes=4096))
    ]


@pytest.mark.parametrize("damage", ["missing", "a bit in the middle"])
def test_merged_objects(world: ArchiveWorld, damage: str) -> None:
    entries = merged(world)
    assert compare(world).lines() == []
    DAMAGES[damage](world.objects, entries[0].key)
    assert {each.object for each in compare(world).found} == {entries[0].key}


def test_a_sound_archive_is_counted(world: ArchiveWorld) -> None:
    manifest = world.manifest()
    head, reader = manifest.refresh(), manifest.reader()
    log, index = list(manifest.log_entries(reader, head)), list(manifest.all_index_entries(reader, head))
    findings, counts, tasks = in_tasks(world)
    assert findings.lines() == []
    assert (counts.segments, counts.objects) == (len(log), len(index))
    assert counts.records == sum(entry.records for entry in log)
    assert counts.items == sum(entry.items for entry in index)
    assert tasks == len(log) + len(index), "a task each"


def test_nothing_is_written(world: ArchiveWorld) -> None:
    before: dict[str, object] = dict(world.objects._objects)
    in_tasks(world)
    assert world.objects._objects == before


def test_a_sound_archive_is_read_once(world: ArchiveWorld) -> None:
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


def entries_of(world: ArchiveWorld) -> list[IndexEntry]:
    manifest = world.manifest()
    return list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))
