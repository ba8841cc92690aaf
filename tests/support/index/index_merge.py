"""Merges index objects of one archive that a test has chosen, whatever their age, by the code of the merge job."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from tests.support.fs.crash_fs import CrashFileSystem
from tierlog.index.format.key_filter import DEFAULT_BITS_PER_KEY
from tierlog.index.format.layout import Items
from tierlog.index.maintenance.merge_job import FailedRange, RangeResult, RunTasks
from tierlog.index.maintenance.merge_task import MergeTask, merge_range
from tierlog.index.objects.publisher import AssemblyFolder
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.index.objects.writer import DEFAULT_PAGE_BYTES, IndexMeta
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.format.manifest import Head, IndexEntry
from tierlog.tiering.objects.object_store import ObjectStore


def mergeable(manifest: ManifestStore, head: Head) -> list[list[IndexEntry]]:
    """Runs of objects of one number of slots that follow each other in the log; parts by slot range count as one."""
    runs: list[list[list[IndexEntry]]] = []
    entries = sorted(manifest.all_index_entries(manifest.reader(), head), key=lambda each: (each.first, each.slot_from))
    for _, group in groupby(entries, key=lambda each: (each.first, each.next)):
        parts = list(group)
        if runs and runs[-1][-1][0].slots == parts[0].slots:
            runs[-1].append(parts)
        else:
            runs.append([parts])
    return [[part for parts in run for part in parts] for run in runs]


def neighbours(run: Sequence[IndexEntry], first: int, count: int) -> list[IndexEntry]:
    """``count`` neighbours of a run from the one numbered ``first``, with all their parts."""
    ranges = list(dict.fromkeys((each.first, each.next) for each in run))
    chosen = ranges[first % len(ranges) :][:count]
    return [each for each in run if (each.first, each.next) in chosen]


@dataclass(frozen=True)
class Shape:
    """How the results of a merge are built."""

    parts: int = 1
    """Ranges of slots, an object each; one without items has none."""
    page_bytes: int = DEFAULT_PAGE_BYTES
    filter_bits: int = DEFAULT_BITS_PER_KEY


def memory_assembly() -> AssemblyFolder:
    """A folder for half-made objects that is in memory."""
    return AssemblyFolder(CrashFileSystem(), Path("/merge"), contextlib.nullcontext)


def task_of(
    manifest: ManifestStore, head: Head, chosen: Sequence[IndexEntry], shape: Shape, max_part_bytes: int = 600 << 20
) -> MergeTask:
    """What merges all slots of objects into those of the next level."""
    reader = manifest.reader()
    segment_bytes = next(iter(manifest.log_entries(reader, head))).segment_bytes
    topics = {state.topic_id: state.name for state in manifest.state(reader, head).topics}
    return MergeTask(
        1 + max(entry.level for entry in chosen), tuple(chosen), 0, chosen[0].slots,
        IndexMeta(head.store_id, segment_bytes, topics), head.epoch, head.cold_min, max_part_bytes,
        shape.page_bytes, shape.filter_bits,
    )  # fmt: skip


def merge(
    manifest: ManifestStore, chosen: Sequence[IndexEntry], randomness: Randomness, shape: Shape, *, commit: bool = True
) -> list[IndexEntry]:
    """Replace objects by those of the next level; without ``commit`` they are uploaded and nobody names them."""
    head = manifest.refresh()
    begun_s = manifest.begin_upload()
    whole = task_of(manifest, head, chosen, shape)
    cuts = sorted({whole.slot_end * part // shape.parts for part in range(shape.parts + 1)})
    merged: list[IndexEntry] = []
    for slot_from, slot_end in pairwise(cuts):
        task = replace(whole, slot_from=slot_from, slot_end=slot_end)
        merged += merge_range(task, manifest.objects, randomness, memory_assembly()).entries
    if commit and merged:
        manifest.commit_other(ManifestChange(index=tuple(merged), remove=tuple(chosen), begun_s=begun_s))
    return merged


def items_of(manifest: ManifestStore, entry: IndexEntry) -> Items:
    """All items of one object, with cold offsets."""
    reader = IndexObjectReader(lambda start, end: manifest.objects.get_range(entry.key, start, end), entry.sections)
    pages = [reader.page(number).items for number in range(len(reader.page_directory()))]
    return np.concatenate(pages)


def in_process(objects: ObjectStore, randomness: Randomness) -> RunTasks:
    """Merges slot ranges here, one after the other, as executors do it."""

    def run(tasks: Sequence[MergeTask]) -> list[RangeResult]:
        outcomes: list[RangeResult] = []
        for task in tasks:
            try:
                outcomes.append(merge_range(task, objects, randomness, memory_assembly()))
            except StoreError as error:
                outcomes.append(FailedRange.of(error))
        return outcomes

    return run
