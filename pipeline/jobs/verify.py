"""The job ``verify``: every archived segment and index object read once, and each compared with the other.

It writes nothing to the archive, so it may be killed and run again at any time. The report replaces that of the run
before; killed while it is written, the folder has no ``_SUCCESS`` beside its rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tierlog.index.maintenance.check import ObjectRead
from tierlog.index.maintenance.check_tasks import CheckCounts, ObjectTask, SegmentRead, SegmentTask, check_in_tasks
from tierlog.pipeline.base.archive import check_is_there, open_manifest, open_objects
from tierlog.pipeline.jobs.job import Job, JobContext, Summary, TaskFailure, run_tasks
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, StoreError
from tierlog.tiering.checks.findings import Finding, Findings
from tierlog.tiering.objects.urls import canonical_url, stores_below

_TASK_BYTES = 128 << 20
#: Tasks that are waited for together, for each core.
_WAVE = 8
_SCHEMA = StructType(
    [
        StructField("store", StringType(), False),
        StructField("object", StringType(), True),
        StructField("kind", StringType(), False),
        StructField("offset", LongType(), True),
        StructField("text", StringType(), False),
        StructField("severity", StringType(), False),
    ]
)
_KINDS = {"log": "segment", "index": "index", "manifest": "manifest", "state": "state", "tail": "tail", "head": "head"}
_Row = tuple[str, str | None, str, int | None, str, str]
_R = TypeVar("_R")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns its exit code."""
    return JOB.main(argv)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cold", required=True, metavar="URL", help="the archive")
    add("--store", metavar="ID", action="append", default=[], help="only this store of it; may be repeated")
    add("--out", metavar="DIR", help="where to put the findings, a row each: DIR/parquet and DIR/json")
    add("--task-bytes", type=int, default=_TASK_BYTES, metavar="N", help="what a task reads (default: 128 MiB)")


def _body(context: JobContext, arguments: argparse.Namespace) -> Summary:
    if arguments.task_bytes < 1:
        raise InvalidRequestError("--task-bytes lies above 0")
    url = canonical_url(arguments.cold)
    check_is_there(url)
    there = list(stores_below(open_objects(url)))
    missing = sorted(set(arguments.store) - set(there))
    if missing or not there:
        raise NotFoundError(f"no archive of {f'store {missing[0]!r}' if missing else 'any store'} here", path=url)
    rows: list[_Row] = []
    stores: dict[str, object] = {}
    total = CheckCounts()
    for store_id in sorted(set(arguments.store)) or there:
        findings = Findings()
        counts = _check(context, url, store_id, findings, arguments.task_bytes)
        rows += [_row(store_id, each, counts, "error") for each in findings.found]
        rows += [_row(store_id, each, counts, "note") for each in findings.notes]
        stores[store_id] = {"findings": len(findings.found), "notes": len(findings.notes)} | _numbers(counts)
        for name, number in _numbers(counts).items():
            setattr(total, name, getattr(total, name) + number)
    if arguments.out is not None:
        _write(context.spark, rows, arguments.out)
    errors = sum(row[-1] == "error" for row in rows)
    first = [f"{row[1] or row[0]}: {row[4]}" for row in rows if row[-1] == "error"][:20]
    return {**_numbers(total), "findings": errors, "notes": len(rows) - errors, "stores": stores, "first": first}


def _numbers(counts: CheckCounts) -> dict[str, int]:
    return {
        "segments": counts.segments, "records": counts.records, "objects": counts.objects, "items": counts.items,
    }  # fmt: skip


def _check(context: JobContext, url: str, store_id: str, findings: Findings, task_bytes: int) -> CheckCounts:
    spark = context.spark
    objects, segments = partial(_read_objects, url, store_id), partial(_read_segments, url, store_id)
    return check_in_tasks(
        open_manifest(url, store_id), findings,
        lambda tasks: _results(run_tasks(spark, objects, tasks)),
        lambda tasks: _results(run_tasks(spark, segments, tasks)),
        context.progress, task_bytes=task_bytes, wave_tasks=_WAVE * spark.sparkContext.defaultParallelism,
    )  # fmt: skip


def _read_objects(url: str, store_id: str, task: ObjectTask) -> tuple[ObjectRead, ...]:
    return task.run(open_manifest(url, store_id))


def _read_segments(url: str, store_id: str, task: SegmentTask) -> tuple[SegmentRead, ...]:
    return task.run(open_manifest(url, store_id))


def _results(found: Sequence[_R | TaskFailure]) -> list[_R]:
    """Runs tasks, in which damage is a finding; raises for a bucket that does not answer as it should."""
    results = []
    for each in found:
        if isinstance(each, TaskFailure):
            raise StoreError(each.text)
        results.append(each)
    return results


def _row(store_id: str, finding: Finding, counts: CheckCounts, severity: str) -> _Row:
    about = finding.object
    kind = "store" if about is None else _KINDS.get(about.removeprefix(f"{store_id}/").split("/")[0], "other")
    offset = None if about is None else counts.firsts.get(about)
    return store_id, about, kind, offset, finding.text, severity


def _write(spark: SparkSession, rows: list[_Row], out: str) -> None:
    report = spark.createDataFrame(rows, _SCHEMA).coalesce(1)
    report.write.mode("overwrite").parquet(f"{out}/parquet")
    report.write.mode("overwrite").json(f"{out}/json")


JOB = Job(
    "verify",
    "Read every segment and index object of an archive once, and compare each with the other.",
    _add_arguments,
    _body,
    unit=" objects",
)

if __name__ == "__main__":
    raise SystemExit(main())
