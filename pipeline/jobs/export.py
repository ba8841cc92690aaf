"""The job ``export``: topics and ranges of store time as a table of Parquet files (``pipeline.jobs.export_table``).

An export has a folder of its own:

=================== ==================================================================================
``_export.json``    what is exported: the arguments, the heads it is read by, the name of the table
``table-<8 hex>/``  the table
``_tasks/<number>`` what a finished task has written
``_exported.json``  the summary; there as soon as the table is whole
=================== ==================================================================================

**Killed before ``_export.json``**: there is nothing. **Killed before ``_exported.json``**: files of a table whose name
nobody was told; the same command reads the plan, does the tasks of which there is no record, and ends with the same
table, since it reads by the same heads. A task killed after its files and before its record writes files of the same
names again. **Killed after it**: the table is whole, and the same command gives its summary again.

What a task that was tried twice has left beside the files of its record is deleted before the summary is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count

import pyarrow as pa

from tierlog.pipeline.base.archive import ArchiveSnapshot, open_objects, warn_of_lost
from tierlog.pipeline.jobs.export_table import ExportPlan, ExportRequest, TableWriter, parse_bodies, schema_of
from tierlog.pipeline.jobs.job import Job, JobContext, Summary, TaskFailure, run_tasks
from tierlog.pipeline.read.partitions import PART_BYTES, SegmentPart, plan_parts, read_parts
from tierlog.tiering.base.errors import InvalidRequestError, ObjectNotFoundError, PreconditionFailedError, StoreError
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.message.batch import validate_topic_or_generation
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.urls import canonical_url

_PLAN, _DONE, _TASKS = "_export.json", "_exported.json", "_tasks/"
#: Tasks that are waited for together, for each core: the more, the fewer cores idle at the end of a wave.
_WAVE = 4


@dataclass(frozen=True, slots=True)
class ExportTask:
    """A part of an export; ``number`` counts from 0 over all stores."""

    number: int
    store_id: str
    parts: tuple[SegmentPart, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns its exit code."""
    return JOB.main(argv)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cold", required=True, metavar="URL", help="the archive")
    parser.add_argument("--out", required=True, metavar="URL", help="a folder for this export alone")
    parser.add_argument("--store", action="append", default=[], metavar="ID", help="only this store; may be repeated")
    parser.add_argument(
        "--topic", action="append", default=[], help="only this topic or generation of one; may be repeated"
    )
    parser.add_argument("--from", dest="from_time", metavar="TIME", help="stored at this time or later: ms or RFC 3339")
    parser.add_argument("--to", dest="to_time", metavar="TIME", help="stored before this time")
    parser.add_argument("--json-schema", metavar="DDL", help='bodies are JSON: "id long, name string"')
    parser.add_argument(
        "--task-bytes", type=int, default=PART_BYTES, help="what a task reads, about, before compression"
    )


def _body(context: JobContext, arguments: argparse.Namespace) -> Summary:
    request = _request(arguments)
    schema = None if request.json_schema is None else schema_of(request.json_schema)
    out = canonical_url(arguments.out)
    if out == request.cold or out.startswith(f"{request.cold}/"):
        raise InvalidRequestError("an export does not go into the archive", hint="name another folder by --out")
    objects = open_objects(out)
    plan = _plan(objects, request, context.randomness.token_hex(4), out)
    done = _get(objects, _DONE)
    if done is not None:
        summary: Summary = json.loads(done)
        return summary
    tasks = list(tasks_of(plan))
    finished = {info.key for info in objects.list(_TASKS)}
    waiting = [task for task in tasks if _record_key(task.number) not in finished]
    wave = _WAVE * context.spark.sparkContext.defaultParallelism
    context.progress(len(tasks) - len(waiting), len(tasks))
    for first in range(0, len(waiting), wave):
        results = run_tasks(
            context.spark, partial(_export_task, plan=plan, out=out, schema=schema), waiting[first : first + wave]
        )
        failed = [result.text for result in results if isinstance(result, TaskFailure)]
        if failed:
            hint = "what is done stays; the same command goes on, and another --out begins anew"
            raise StoreError(f"{len(failed)} tasks failed, the first: {failed[0]}", hint=hint)
        context.progress(len(tasks) - len(waiting) + first + len(results), len(tasks))
    summary = summary_of(objects, plan, out, len(tasks))
    objects.put(_DONE, json.dumps(summary).encode())
    return summary


def _request(arguments: argparse.Namespace) -> ExportRequest:
    from_ms, to_ms = (None if text is None else parse_time(text) for text in (arguments.from_time, arguments.to_time))
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidRequestError(
            f"nothing lies between {arguments.from_time} and {arguments.to_time}", hint="the range is [from, to)"
        )
    if arguments.task_bytes < 1:
        raise InvalidRequestError("--task-bytes is at least 1")
    topics = {validate_topic_or_generation(name) for name in arguments.topic}
    return ExportRequest(
        cold=canonical_url(arguments.cold), stores=tuple(sorted(set(arguments.store))),
        topics=tuple(sorted(topics)), from_ms=from_ms, to_ms=to_ms, json_schema=arguments.json_schema,
        task_bytes=arguments.task_bytes,
    )  # fmt: skip


def _plan(objects: ObjectStore, request: ExportRequest, nonce: str, out: str) -> ExportPlan:
    """Returns the plan that lies there, if it is for the same request, else a new one."""
    found = _get(objects, _PLAN)
    if found is None:
        if next(iter(objects.list("")), None) is not None:
            raise InvalidRequestError(f"{out} holds something else", hint="an export wants a folder of its own")
        snapshot = ArchiveSnapshot.take(request.cold, request.stores)
        warn_of_lost(snapshot.lost(), request.from_ms, request.to_ms)
        plan = ExportPlan.make(request, snapshot, nonce)
        try:
            objects.put(_PLAN, plan.encode(), if_absent=True)
        except PreconditionFailedError:  # somebody else was faster, or an answer was lost
            found = objects.get(_PLAN)[0]
        else:
            return plan
    plan = ExportPlan.decode(found, path=f"{out}/{_PLAN}")
    if plan.request != request:
        raise InvalidRequestError(
            f"{out} holds another export: {json.dumps(plan.request.to_json())}",
            hint="give the arguments that it was begun with, or another folder",
        )
    return plan


def tasks_of(plan: ExportPlan) -> Iterator[ExportTask]:
    """Returns all tasks of a plan, always the same."""
    number = count()
    for store in plan.stores.values():
        for parts in plan_parts(store, plan.request.predicate_of(store), part_bytes=plan.request.task_bytes):
            yield ExportTask(next(number), store.store_id, parts)


def _export_task(task: ExportTask, *, plan: ExportPlan, out: str, schema: pa.Schema | None) -> None:
    write_task(open_objects(out), task, plan, schema)


def write_task(objects: ObjectStore, task: ExportTask, plan: ExportPlan, schema: pa.Schema | None) -> None:
    """Writes the files of a task, then its record; runs on an executor."""
    writer = TableWriter(objects, plan.table, task.number)
    unparsed = 0
    store = plan.stores[task.store_id]
    for batch in read_parts(store, task.parts, plan.request.predicate_of(store)):
        if schema is None:
            writer.add(batch)
        else:
            structs = parse_bodies(batch.column("body"), schema)
            unparsed += structs.null_count
            writer.add(batch, pa.RecordBatch.from_arrays([structs], ["json"]))
    files = [asdict(file) for file in writer.finish()]
    objects.put(_record_key(task.number), json.dumps({"files": files, "unparsed": unparsed}).encode())


def summary_of(objects: ObjectStore, plan: ExportPlan, out: str, tasks: int) -> Summary:
    """Returns the summary of all records; deletes files of the table that none of them names."""
    records = [json.loads(objects.get(_record_key(number))[0]) for number in range(tasks)]
    files = {file["key"]: file for record in records for file in record["files"]}
    for key in [info.key for info in objects.list(f"{plan.table}/") if info.key not in files]:
        objects.delete(key)
    summary: dict[str, object] = {
        "table": f"{out}/{plan.table}",
        "rows": sum(file["rows"] for file in files.values()),
        "files": len(files),
        "bytes": sum(file["bytes"] for file in files.values()),
        "tasks": tasks,
        "stores": {store.store_id: store.head.version for store in plan.stores.values()},
    }
    if plan.request.json_schema is not None:
        summary["rows_without_json"] = sum(record["unparsed"] for record in records)
    return summary


def _record_key(number: int) -> str:
    return f"{_TASKS}{number:06d}.json"


def _get(objects: ObjectStore, key: str) -> bytes | None:
    try:
        return objects.get(key)[0]
    except ObjectNotFoundError:
        return None


JOB = Job("export", "Write topics and times of an archive as Parquet.", _add_arguments, _body)

if __name__ == "__main__":
    sys.exit(main())
