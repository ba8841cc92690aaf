"""``python -m tierlog.pipeline.jobs.ingest``: a broker's directory, JSON lines or Parquet to the archive of a new
store.

Killed anywhere before a store's one commit: there is no such store, and running it again starts over; what was stored
by then goes once a later run has succeeded (``index.new_store.commit``). After the commit: the store is complete,
and running it again says so and changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeVar

from tierlog.index.format.header import DEFAULT_ITEMS, DEFAULT_SLOTS
from tierlog.index.new_store.adoption import cut_off_of, discarding, made_before, summary_of
from tierlog.index.new_store.broker_log import ArchiveTask, BrokerLog, LogPlan, survey_segment
from tierlog.index.new_store.commit import find_head, publish
from tierlog.index.new_store.part import BuiltPart, NewStore
from tierlog.index.objects.derivation import IndexSizes
from tierlog.pipeline.jobs.job import Job, JobContext, Summary, TaskFailure, run_tasks, task_progress
from tierlog.pipeline.new_store.input_files import ISO, FileList, InputDescription, message_columns, queues_of
from tierlog.pipeline.new_store.input_rows import InputRows
from tierlog.pipeline.new_store.two_pass import CountedPlan, archive, count, keep
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.hot.identity import DEFAULT_SEGMENT_BYTES, validate_store_id
from tierlog.tiering.objects.urls import canonical_url

R = TypeVar("R")
_QUEUES = 8
_PARTITION_BYTES = 512 << 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cold", required=True, metavar="URL", help="the archive")
    parser.add_argument(
        "--store", required=True, action="append", metavar="ID", help="the new store; one for each --rocketmq"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--rocketmq", action="append", default=[], metavar="DIR",
        help="store directory of a broker, readable by all executors; may be given several times",
    )  # fmt: skip
    source.add_argument("--json", nargs="+", default=[], metavar="FILES", help="JSON lines; paths as Spark takes them")
    source.add_argument("--parquet", nargs="+", default=[], metavar="FILES", help="Parquet; paths as Spark takes them")
    rows = parser.add_argument_group("rows of JSON and Parquet")
    rows.add_argument("--topic", metavar="T", help="topic of all rows")
    rows.add_argument("--topic-column", metavar="C")
    rows.add_argument("--body-column", metavar="C", help="text or bytes; of JSON the whole line unless given")
    rows.add_argument("--key-column", action="append", default=[], metavar="C", help="may be given several times")
    rows.add_argument("--tag-column", metavar="C")
    rows.add_argument("--property-column", action="append", default=[], metavar="C", help="may be given several times")
    rows.add_argument("--queue-column", metavar="C")
    rows.add_argument("--queues", type=int, default=_QUEUES, metavar="N", help="of a topic whose rows name none")
    rows.add_argument("--time-column", metavar="C", help="store and born time; rows are ordered by it")
    rows.add_argument(
        "--time-format", default=ISO, metavar="FMT", help="of text: iso, epoch_s, epoch_ms or a pattern of Spark's"
    )
    rows.add_argument("--partitions", type=int, metavar="N", help="tasks that write; one for 512 MiB of input")
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--segment-bytes", type=int, default=DEFAULT_SEGMENT_BYTES, metavar="N", help="not of a broker")
    sizes.add_argument("--index-slots", type=int, default=DEFAULT_SLOTS, metavar="N")
    sizes.add_argument("--index-items", type=int, default=DEFAULT_ITEMS, metavar="N")


def _body(context: JobContext, arguments: argparse.Namespace) -> Summary:
    url, sizes = canonical_url(arguments.cold), IndexSizes(arguments.index_slots, arguments.index_items)
    ids = [validate_store_id(store_id) or "" for store_id in arguments.store]
    if len(ids) != max(1, len(arguments.rocketmq)) or len(set(ids)) != len(ids):
        raise InvalidRequestError("name one store for each log, all of them different")
    if not arguments.rocketmq:
        store = NewStore(url, ids[0], arguments.segment_bytes, sizes)
        return _rows(context, store, arguments)
    logs = [BrokerLog.find(Path(root)) for root in arguments.rocketmq]
    stores = [NewStore(url, store_id, log.segment_bytes, sizes) for store_id, log in zip(ids, logs, strict=True)]
    done = [_log(context, store, log) for store, log in zip(stores, logs, strict=True)]
    if len(done) == 1:
        return done[0]
    return {
        "stores": done,
        **{name: sum(_number(each.get(name, 0)) for each in done) for name in ("messages", "findings")},
    }


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _rows(context: JobContext, store: NewStore, arguments: argparse.Namespace) -> Summary:
    began_s = context.clock.monotonic_s()
    description = InputDescription(
        files=tuple(arguments.json or arguments.parquet), is_json=bool(arguments.json), topic=arguments.topic,
        topic_column=arguments.topic_column, body_column=arguments.body_column, key_columns=tuple(arguments.key_column),
        tag_column=arguments.tag_column, property_columns=tuple(arguments.property_column),
        queue_column=arguments.queue_column, time_column=arguments.time_column, time_format=arguments.time_format,
    )  # fmt: skip
    queues, partitions = queues_of(arguments.queues), arguments.partitions
    if partitions is not None and partitions < 1:
        raise InvalidRequestError("at least one task writes")
    files = FileList.of(context.spark, description)
    if (made := made_before(store, files.fingerprint)) is not None:
        return _summary(context, store, made, began_s, is_new=False)
    frame = message_columns(context.spark, description, partitions or -(-files.size_bytes // _PARTITION_BYTES) or 1)
    rows = InputRows.of(frame.schema, store_ms=context.clock.now_ms(), topic=description.topic)
    frame = keep(frame)
    try:
        with task_progress(context.spark, context.clock, context.progress, f"ingest {context.randomness.token_hex(4)}"):
            plan = CountedPlan.of(store, rows, count(frame, description.topic), queues)
            archive(frame, plan, files.fingerprint)
    finally:
        frame.unpersist()
    head = find_head(store)
    assert head is not None
    return _summary(context, store, head, began_s, is_new=True)


def _log(context: JobContext, store: NewStore, log: BrokerLog) -> Summary:
    began_s = context.clock.monotonic_s()
    with task_progress(context.spark, context.clock, context.progress, f"ingest {context.randomness.token_hex(4)}"):
        plan = LogPlan.of(log, [_sound(found) for found in run_tasks(context.spark, survey_segment, log.segments)])
        if (made := made_before(store, plan.fingerprint)) is not None:
            return {**_summary(context, store, made, began_s, is_new=False), **_cut_off(plan)}
        topics = plan.new_topics()
        outcomes = run_tasks(context.spark, ArchiveTask.run, plan.tasks(store))
    parts = [each for each in outcomes if isinstance(each, BuiltPart)]
    with discarding(store, parts):
        for outcome in outcomes:
            _sound(outcome)
    head = publish(
        store, parts, topics, context.randomness, volume_id=plan.fingerprint, log_begin=plan.begin, groups=plan.groups
    )
    return {**_summary(context, store, head, began_s, is_new=True), **_cut_off(plan)}


def _cut_off(plan: LogPlan) -> Summary:
    """Reports messages behind damage, which the archive lacks as the broker would after its own recovery."""
    if not plan.cut_off:
        return {}
    print(
        f"ingest: the log is damaged at {plan.end}: {plan.cut_off} whole messages behind the damage are not archived",
        file=sys.stderr,
    )
    return cut_off_of(plan)


def _sound(outcome: R | TaskFailure) -> R:
    if isinstance(outcome, TaskFailure):
        raise StoreError(outcome.text)
    return outcome


def _summary(context: JobContext, store: NewStore, head: Head, began_s: float, *, is_new: bool) -> Summary:
    seconds = round(context.clock.monotonic_s() - began_s, 3)
    return {**summary_of(store, head, is_new=is_new), "seconds": seconds}


JOB = Job(
    "ingest", "Make the archive of a new store out of a broker's log, JSON lines or Parquet.", _add_arguments, _body
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
