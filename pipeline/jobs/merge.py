"""Merges small index objects into those of days, months and years: ``python -m tierlog.pipeline.jobs.merge``.

One task is one slot range of one group. Executors build and upload the objects of a range; the driver replaces the
inputs of a group by them in one commit when all its ranges are there. Killed anywhere: groups that were committed are
merged, objects of others are named by nobody and swept, and the same command goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tierlog.index.maintenance.merge_job import FailedRange, MergeJob, MergeReport, RangeResult
from tierlog.index.maintenance.merge_plan import Level, MergeGroup, MergeOptions
from tierlog.index.maintenance.merge_task import MergeTask, merge_range
from tierlog.index.objects.publisher import AssemblyFolder
from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore, open_objects
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
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.times import format_time, parse_time
from tierlog.tiering.cold.manifest.store import ManifestStore

_HOUR_MS = 3_600_000
_LEVELS = {level.name.lower(): level for level in Level}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = MergeOptions()
    parser.add_argument("--cold", metavar="URL", required=True, help="the archive: file:///dir, s3://bucket/prefix")
    parser.add_argument("--store", metavar="ID", action="append", default=[], help="only this store; may be repeated")
    parser.add_argument(
        "--level", choices=[*_LEVELS], action="append", help="only this level; may be repeated (all of them)"
    )
    parser.add_argument("--until", metavar="TIME", help="only days, months and years that end by then")
    parser.add_argument(
        "--late-hours", type=float, default=defaults.late_ms / _HOUR_MS, metavar="N",
        help="how long after its end a day may still get records (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-part-bytes", type=int, default=defaults.max_part_bytes, metavar="N",
        help="no merged object grows larger (%(default)s)",
    )  # fmt: skip
    add_grace_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what is due and merge nothing")


def _body(context: JobContext, arguments: argparse.Namespace) -> Summary:
    options = MergeOptions(
        arguments.max_part_bytes, int(arguments.late_hours * _HOUR_MS),
        None if arguments.until is None else parse_time(arguments.until, context.clock.now_ms()),
    )  # fmt: skip
    grace_ms = grace_ms_of(arguments)
    levels = [_LEVELS[name] for name in arguments.level or _LEVELS]
    stores = ArchiveSnapshot.take(arguments.cold, arguments.store).stores.values()
    jobs = {store.store_id: _job(context, store, options, grace_ms) for store in stores}
    if arguments.dry_run:
        due = {store_id: job.plan(levels) for store_id, job in jobs.items()}
        return {"dry_run": True, "due": [_described(store_id, group) for store_id in due for group in due[store_id]]}
    reports = {store_id: job.run(levels, context.progress) for store_id, job in jobs.items()}
    return _summary(reports)


def _job(context: JobContext, store: PinnedStore, options: MergeOptions, grace_ms: int) -> MergeJob:
    manifest = ManifestStore(
        open_objects(store.url), ColdKeys(store.store_id), randomness=context.randomness,
        options=replace(ColdOptions(), grace_ms=grace_ms), clock=context.clock,
    )  # fmt: skip
    at_once = 2 * context.spark.sparkContext.defaultParallelism
    return MergeJob(manifest, options, partial(_run, context.spark, store.url), context.clock, at_once=at_once)


def _run(spark: SparkSession, url: str, tasks: Sequence[MergeTask]) -> list[RangeResult]:
    """Runs every task on its own, on whatever executor is free."""
    outcomes = run_tasks(spark, partial(_merged, url), tasks)
    return [FailedRange(each.text, None) if isinstance(each, TaskFailure) else each for each in outcomes]


def _merged(url: str, task: MergeTask) -> RangeResult:
    """Merges a range, on an executor; an error that can be tried again fails the attempt."""
    with scratch_folder("merge") as folder:
        assembly = AssemblyFolder(LocalFileSystem(), Path(folder), contextlib.nullcontext)
        try:
            return merge_range(task, open_objects(url), SystemRandomness(), assembly)
        except StoreError as error:
            if error.retryable:
                raise
            return FailedRange.of(error)


def _described(store_id: str, group: MergeGroup) -> dict[str, object]:
    return {
        "store": store_id, "group": group.name, "level": group.level, "inputs": len(group.inputs),
        "bytes": group.size_bytes, "from": format_time(group.inputs[0].begin_ms),
    }  # fmt: skip


def _summary(reports: dict[str, MergeReport]) -> Summary:
    per_store = {store_id: asdict(report) for store_id, report in reports.items()}
    totals = {
        name: sum(report[name] for report in per_store.values())
        for name in ("groups", "inputs", "outputs", "items", "bytes_before", "bytes_after")
    }
    return {
        **totals,
        "refused": [{"store": store_id, "group": name} for store_id in reports for name in reports[store_id].refused],
        "failed": [{"store": store_id, **each} for store_id in reports for each in reports[store_id].failed],
        "findings": sum(len(report.failed) for report in reports.values()),
    }


JOB = Job("merge", "Merge small index objects into those of days, months and years.", _add_arguments, _body)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
