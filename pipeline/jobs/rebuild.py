"""The job ``rebuild``: the cold index of one store made again from its archived segments alone.

Each stretch of the log (``index.maintenance.rebuild``) is replaced in one commit once its tasks are done. Killed
anywhere: the stretches committed so far are right, the others as they were, and objects of tasks that were not
committed are nobody's. Run again, it finds what is still missing or of another shape, and goes on there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tierlog.index.format.header import check_capacity
from tierlog.index.format.layout import LAYOUTS, TIERLOG, ItemLayout
from tierlog.index.maintenance.rebuild import (
    IndexShape,
    Range,
    RebuildPlan,
    Stretch,
    build_objects,
    plan_rebuild,
    replace_stretch,
)
from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore, open_manifest, pin
from tierlog.pipeline.jobs.job import (
    Job,
    JobContext,
    Summary,
    TaskFailure,
    add_grace_argument,
    grace_ms_of,
    run_tasks,
    scratch_folder,
)
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.format.manifest import IndexEntry

_DEFAULT_SLOTS, _DEFAULT_ITEMS = 5_000_000, 20_000_000
_PART_BYTES = 4 << 30
#: Tasks that are waited for together, for each core: the more, the fewer cores idle at the end of a wave.
_WAVE = 4
#: Plans, each from a newer head, for what was changed by others meanwhile.
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class _Request:
    """The request that the arguments make."""

    within: tuple[Range, ...]
    everything: bool
    part_bytes: int
    grace_ms: int


@dataclass(slots=True)
class _Report:
    added: int = 0
    removed: int = 0
    items: int = 0
    stretches: int = 0
    planned_again: int = 0
    failed: list[dict[str, object]] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns its exit code."""
    return JOB.main(argv)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cold", required=True, metavar="URL", help="the archive")
    add("--store", metavar="ID", help="which store of it, if there are several")
    add("--slots", type=int, metavar="N", help="hash slots of an object; those of the newest if left out")
    add("--items", type=int, metavar="N", help="most items of an object, and one; as the fullest if left out")
    add("--layout", metavar="NAME", default=TIERLOG.name, help="item layout (default: %(default)s)")
    add("--all", action="store_true", help="also objects that are there and of that shape")
    add("--from", dest="first", type=int, default=0, metavar="OFFSET", help="no objects wholly below it")
    add("--to", dest="end", type=int, default=1 << 62, metavar="OFFSET", help="no objects at or above it")
    add("--part-bytes", type=int, default=_PART_BYTES, metavar="N", help="records of one task (default: 4 GiB)")
    add_grace_argument(parser)
    add("--dry-run", action="store_true", help="only say what would be made again")


def _body(context: JobContext, arguments: argparse.Namespace) -> Summary:
    if arguments.first >= arguments.end or arguments.part_bytes < 1:
        raise InvalidRequestError("--from lies below --to, and --part-bytes above 0")
    store = ArchiveSnapshot.take(arguments.cold, filter(None, [arguments.store])).only()
    shape = _shape(store, arguments)
    request = _Request(((arguments.first, arguments.end),), arguments.all, arguments.part_bytes, grace_ms_of(arguments))
    plan = _plan(store, shape, request)
    summary: dict[str, object] = {
        "store": store.store_id, "slots": shape.slots, "items_an_object": shape.items, "layout": shape.layout.name,
    }  # fmt: skip
    if arguments.dry_run:
        return summary | {
            "ranges": [[each.first, each.next] for each in plan.stretches],
            "objects_to_replace": sum(len(each.old) for each in plan.stretches), "objects_kept": plan.kept,
        }  # fmt: skip
    report = _run(context, store, plan, shape, request)
    return summary | {
        "commits": report.stretches, "objects_added": report.added, "objects_removed": report.removed,
        "objects_kept": plan.kept, "items": report.items, "planned_again": report.planned_again,
        "findings": len(report.failed), "failed": report.failed,
    }  # fmt: skip


def _shape(store: PinnedStore, arguments: argparse.Namespace) -> IndexShape:
    """Returns the shape of the arguments; the rest as the store's newest object has it, of level 0 if there is one."""
    manifest = store.manifest
    known = list(manifest.all_index_entries(manifest.reader(scan=True), store.head))
    files = [entry for entry in known if not entry.level]
    slots = arguments.slots or ((files or known)[-1].slots if known else _DEFAULT_SLOTS)
    items = arguments.items or max((entry.items + 1 for entry in files), default=_DEFAULT_ITEMS)
    shape = IndexShape(slots, items, _layout(arguments.layout))
    check_capacity(shape.layout, shape.slots, shape.items)
    return shape


def _layout(name: str) -> ItemLayout:
    known = {layout.name: layout for layout in LAYOUTS.values()}
    if name not in known:
        raise InvalidRequestError(f"no item layout is named {name!r}", hint=f"there are {', '.join(sorted(known))}")
    if not known[name].covered:
        raise InvalidRequestError(f"layout {name!r} is for import and export only", hint="the archive has `tierlog`")
    return known[name]


def _plan(store: PinnedStore, shape: IndexShape, request: _Request) -> RebuildPlan:
    manifest, head = store.manifest, store.head
    reader = manifest.reader(scan=True)
    sizes = {info.key: info.size_bytes for info in manifest.objects.list(f"{store.store_id}/index/")}

    def is_right(entry: IndexEntry) -> bool:
        return (
            not request.everything
            and sizes.get(entry.key) == entry.size_bytes
            and (entry.slots, entry.layout) == (shape.slots, shape.layout.name)
        )

    log = list(manifest.log_entries(reader, head))
    index = manifest.all_index_entries(reader, head)
    return plan_rebuild(head, log, index, is_right, within=request.within, most_bytes=request.part_bytes)


def _run(context: JobContext, store: PinnedStore, plan: RebuildPlan, shape: IndexShape, request: _Request) -> _Report:
    report = _Report()
    done = 0
    for number in range(_ROUNDS):
        again: list[tuple[Stretch, str]] = []
        of = done + sum(len(each.pieces) for each in plan.stretches)
        for wave in _waves(plan.stretches, _WAVE * context.spark.sparkContext.defaultParallelism):
            again += _replace(context, store, wave=wave, shape=shape, grace_ms=request.grace_ms, report=report)
            done += sum(len(each.pieces) for each in wave)
            context.progress(done, of)
        if not again:
            return report
        if number + 1 == _ROUNDS:
            report.failed += [_failure(stretch, why) for stretch, why in again]
            return report
        report.planned_again += len(again)
        store = pin(store.url, store.store_id)
        plan = _plan(store, shape, replace(request, within=tuple((each.first, each.next) for each, _ in again)))
    return report


def _waves(stretches: Sequence[Stretch], tasks: int) -> Iterator[list[Stretch]]:
    """Runs of whole stretches with about so many tasks."""
    wave: list[Stretch] = []
    for stretch in stretches:
        wave.append(stretch)
        if sum(len(each.pieces) for each in wave) >= tasks:
            yield wave
            wave = []
    if wave:
        yield wave


def _replace(
    context: JobContext,
    store: PinnedStore,
    *,
    wave: Sequence[Stretch],
    shape: IndexShape,
    grace_ms: int,
    report: _Report,
) -> list[tuple[Stretch, str]]:
    """Builds and commits some stretches; returns those that have to be planned again, with the reason."""
    manifest, again = open_manifest(store.url, store.store_id, grace_ms), list[tuple[Stretch, str]]()
    begun_s = manifest.begin_upload()
    # executors build the pieces of all stretches
    pieces = [piece for stretch in wave for piece in stretch.pieces]
    results = iter(run_tasks(context.spark, partial(_build, store, shape), pieces))
    # a commit for each stretch whose pieces were all built
    for stretch in wave:
        built: list[IndexEntry] = []
        failures: list[TaskFailure] = []
        for _ in stretch.pieces:
            result = next(results)
            if isinstance(result, TaskFailure):
                failures.append(result)
            else:
                built += result
        if failures:
            is_old = manifest.refresh().version > store.head.version
            if all(each.is_gone for each in failures) and is_old:
                again.append((stretch, failures[0].text))
            else:
                report.failed.append(_failure(stretch, failures[0].text))
            continue
        try:
            if built or stretch.old:
                replace_stretch(manifest, stretch, tuple(built), begun_s)
        except ConflictError as error:
            again.append((stretch, error.message))
            continue
        report.stretches += bool(built or stretch.old)
        report.added += len(built)
        report.removed += len(stretch.old)
        report.items += sum(entry.items for entry in built)
    return again


def _build(store: PinnedStore, shape: IndexShape, piece: Range) -> tuple[IndexEntry, ...]:
    """Builds the objects of one piece, on an executor, in a folder of its own on the disk that Spark was given."""
    with scratch_folder("rebuild") as folder:
        return build_objects(
            store.manifest, store.head, piece, shape=shape, fs=LocalFileSystem(), folder=Path(folder),
            randomness=SystemRandomness(),
        )  # fmt: skip


def _failure(stretch: Stretch, why: str) -> dict[str, object]:
    return {"first": stretch.first, "next": stretch.next, "why": why}


JOB = Job(
    "rebuild",
    "Make the index of an archived store again from its segments: what is missing, lost, or of another shape.",
    _add_arguments,
    _body,
)

if __name__ == "__main__":
    raise SystemExit(main())
