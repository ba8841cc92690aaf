"""The JSON shapes of answers, one place for the REST API and the command line."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tierlog.tiering.format.properties import KEYS, OWN_FIELDS, TAGS, split_keys
from tierlog.tiering.format.record import host_text

if TYPE_CHECKING:
    from tierlog.index.search.counts import CountQuery
    from tierlog.index.search.query import Answer, Query
    from tierlog.service.engine.archive_mover import ArchiveReport
    from tierlog.service.engine.catalogue import FileInfo, QueueInfo, TopicInfo
    from tierlog.service.engine.groups import GroupInfo
    from tierlog.tiering.hot.consumer_groups import Queue
    from tierlog.tiering.message.batch import Message
    from tierlog.tiering.message.stored_message import StoredMessage
    from tierlog.tiering.read.pull_batch import PulledBatch
    from tierlog.tiering.read.pull_result import PullResult

Json = dict[str, Any]

JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
PARQUET = "application/vnd.apache.parquet"


def message_json(message: StoredMessage) -> Json:
    """Returns a message in an answer; ``body`` if it is UTF-8, else ``body_base64``.

    A compressed body is inflated; ``body_compressed`` says that this failed and the body is the stored one.
    """
    record = message.record
    properties = record.properties  # parsed once: this runs for every message of an answer
    found: Json = {
        "message_id": record.message_id,
        "store_id": message.store_id,
        "physical_offset": record.physical_offset,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "keys": split_keys(properties.get(KEYS, "")),
        "tag": properties.get(TAGS, ""),
        "properties": {name: value for name, value in properties.items() if name not in OWN_FIELDS},
        "born_ms": record.born_ms,
        "store_ms": record.store_ms,
        "tier": message.tier.value,
        "size_bytes": record.size,
    }
    body, is_still_compressed = message.readable_body()
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(body).decode()
    if is_still_compressed:
        found["body_compressed"] = True
    if any(record.born_host):
        found["born_host"] = host_text(record.born_host)
    return found


def whole_message_json(message: StoredMessage) -> Json:
    """Returns a message that is shown by itself: with what only clients of RocketMQ send, where it was sent."""
    record = message.record
    found = message_json(message)
    if record.reconsume_times:
        found["reconsume_times"] = record.reconsume_times
    return found


def body_bytes(message: Json) -> bytes:
    """Returns the body of a message in an answer, whichever way it was written."""
    text = message.get("body")
    return text.encode() if isinstance(text, str) else base64.b64decode(message["body_base64"])


def answer_json(answer: Answer) -> Json:
    """Returns a page of a query; ``estimate`` is there only for a dry run, ``hint`` only if there is one."""
    return {"messages": [message_json(message) for message in answer.messages], **answer_metadata(answer)}


def answer_metadata(answer: Answer) -> Json:
    """Returns what stands beside the messages of a page."""
    found: Json = {"next_cursor": answer.next_cursor, "coverage": answer.coverage.to_json()}
    if answer.estimate is not None:
        found["estimate"] = answer.estimate.to_json()
    if answer.hint is not None:
        found["hint"] = answer.hint.to_json()
    return found


def filter_arguments(query: Query) -> Json:
    """Returns the filters of a query as arguments of a URL; a list is an argument that is there several times."""
    where = [f"{name}={value}" for name, value in query.where]
    given = {"tag": query.tag, "contains": list(query.contains), "where": where}
    return {name: value for name, value in given.items() if value}


def count_arguments(query: CountQuery) -> Json:
    """Returns a question for counts as arguments of a URL."""
    given = {
        "from": query.from_ms, "to": query.to_ms, "time": query.axis.value, "interval_ms": query.interval_ms,
        "buckets": query.buckets if query.interval_ms is None else None, "max_requests": query.max_requests,
        "timeout_ms": query.timeout_ms,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def pull_json(result: PullResult) -> Json:
    """Returns an answer of a pull."""
    return {**pull_metadata(result), "messages": [message_json(message) for message in result.messages]}


def pull_metadata(result: PullResult | PulledBatch) -> Json:
    """Returns what stands beside the messages of a pull."""
    return {
        "status": result.status.value,
        "next_offset": result.next_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
    }


#: Of a queue.
_MAY_LACK = ("store_id", "generation")


def topic_json(topic: TopicInfo) -> Json:
    """Returns a topic; ``queues`` is their number, as in the request that makes one."""
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "queues": len(topic.queues),
        "messages": topic.messages,
        "archive": topic.archive,
        "cold_retention_ms": topic.cold_retention_ms,
        "hold": topic.hold,
        "offsets": [_queue_json(queue) for queue in topic.queues],
    }


def _queue_json(queue: QueueInfo) -> Json:
    return {name: value for name, value in asdict(queue).items() if value is not None or name not in _MAY_LACK}


def group_json(group: GroupInfo) -> Json:
    """Returns a consumer group; its lag is null while nobody can say how many messages one of its queues still has."""
    unknown = any(queue.is_uncounted for queue in group.queues)
    return {
        "group": group.name,
        "generation": group.generation,
        "members": [
            {**asdict(member), "assignment": [queue_ref_json(queue) for queue in member.assignment]}
            for member in group.members
        ],
        "queues": [asdict(queue) for queue in group.queues],
        "lag": None if group.stores_down or unknown else sum(queue.lag or 0 for queue in group.queues),
        "stores_down": group.stores_down,
    }


def queue_ref_json(queue: Queue) -> Json:
    """Returns the name of a queue of a store."""
    topic, store_id, queue_id = queue
    return {"topic": topic, "store_id": store_id, "queue_id": queue_id}


def file_json(file: FileInfo) -> Json:
    """Returns a segment or an index file."""
    return {**asdict(file), "tier": str(file.tier)}


def report_json(report: ArchiveReport) -> Json:
    """Returns the report of an archiving."""
    return asdict(report)


def produced_json(message: Message) -> Json:
    """Returns a message as a client sends it."""
    found: Json = {"keys": list(message.keys), "tag": message.tag, "properties": dict(message.properties)}
    if message.born_ms is not None:
        found["born_ms"] = message.born_ms
    if message.queue_id >= 0:
        found["queue_id"] = message.queue_id
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    return found


def decode_base64(text: str) -> bytes:
    """Decodes strict base64; ValueError for anything else."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def ndjson_line(value: Json) -> str:
    """Writes one line of NDJSON with its line end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def merged_coverage(before: Json, page: Json) -> Json:
    """Merges the coverage of several pages of one query; ``before`` may be empty.

    Numbers add up, intervals that touch grow together, and it is complete only if every page is.
    """
    if not before:
        return page
    merged = dict(page)
    # the end of a page cuts nothing off if another page went on there
    goes_on = before.get("examined_to_ms") is not None and not before["failures"]
    merged["complete"] = (before["complete"] or goes_on) and page["complete"]
    cuts = [cut for cut in ("limit" if goes_on else before["cut_by"], page["cut_by"]) if cut not in (None, "limit")]
    merged["cut_by"] = cuts[0] if cuts else page["cut_by"]
    for name in ("index_files", "segments", "messages"):
        if name in page and name in before:  # a service of before it counted messages is read as well
            merged[name] = {part: before[name][part] + value for part, value in page[name].items()}
    for name in ("round_trips", "waves", "requests", "manifest_requests", "bytes", "cost_usd"):
        if page.get(name) is not None and before.get(name) is not None:
            merged[name] = before[name] + page[name]
    merged["failures"] = _each_once(before["failures"], page["failures"])
    merged["stores"] = merged_stores(before["stores"], page["stores"])
    return merged


def _each_once(before: list[Json], page: list[Json]) -> list[Json]:
    """Lists each failure once, however many pages met it."""
    told = {failure["object"] for failure in before}
    return before + [failure for failure in page if failure["object"] not in told]


def merged_stores(before: list[Json], page: list[Json]) -> list[Json]:
    """Merges what is claimed of each store."""
    stores = {store["store_id"]: dict(store) for store in before}
    for store in page:
        known = stores.setdefault(store["store_id"], dict(store))
        known["error"] = known["error"] or store["error"]
        for tier in ("hot", "cold"):
            old, new = known[tier], store[tier]
            if old and new and max(old["from_ms"], new["from_ms"]) <= min(old["to_ms"], new["to_ms"]):
                grown = {
                    "from_ms": min(old["from_ms"], new["from_ms"]),
                    "to_ms": max(old["to_ms"], new["to_ms"]),
                }
                known[tier] = {**new, **grown}
            else:
                known[tier] = old or new
    return list(stores.values())
