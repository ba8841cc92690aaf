"""Small files of a store: JSON, the checkpoint, the abort file, the lock, and ranges in the disk cache.

JSON files are a broker's ``config/``, its tiered store's metadata, and ours in ``tierlog/``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict

from tierlog.service.dump.result import Dump, DumpOptions, Json, columns_of, cut, text_of
from tierlog.service.dump.source import Source
from tierlog.tiering.cold.reading.disk_cache import CRC_FROM, HEAD
from tierlog.tiering.format.checkpoint import CHECKPOINT_BYTES, Checkpoint
from tierlog.tiering.rocketmq.fastjson import JsonValue, parse_json

#: A longer file is not taken for one of these.
_MOST_BYTES = 256 << 20
_INT64 = range(-(1 << 63), 1 << 63)
_TEXT_BYTES = 1_000
_READ_BYTES = 1 << 20
#: RocketMQ 5.5 has more fields of a checkpoint behind those that are known; they are shown by their position.
_FIELDS_END = 40
_SEGMENTS = ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable", "indexFileSegmentTable")

_Object = dict[str, JsonValue]


def dump_json(source: Source, options: DumpOptions) -> Dump:
    """Dumps a row for each topic, offset or segment of a file known by its keys, for each value of any other."""
    dump = Dump("json", {"bytes": source.size}, "values", columns_of("place:text value:json"))
    if source.size > _MOST_BYTES:
        dump.find(f"{source.size} bytes are more than any of these files has")
        return dump
    document: JsonValue = None
    with dump.surviving():
        document = parse_json(source.read(0, source.size), path=source.name)
    if dump.findings:
        return dump
    name, columns, rows = _known(document) or ("values", dump.columns, _values(document))
    if isinstance(document, dict) and name != "values":
        scalars = {text_of(key): _plain(value) for key, value in document.items() if not isinstance(value, dict | list)}
        version = document.get("dataVersion")
        dump.head = {**dump.head, **scalars} | ({"dataVersion": _plain(version)} if version is not None else {})
    dump.name, dump.columns = name, columns
    dump.rows = cut(rows, options)
    return dump


def _known(document: JsonValue) -> tuple[str, dict[str, str], Iterator[Json]] | None:
    """Returns name, columns and rows of a document whose keys are known."""
    if not isinstance(document, dict):
        return None
    if any(isinstance(document.get(name), dict) for name in _SEGMENTS):
        columns = columns_of("table:text path:text base_offset size_bytes status create_ms begin_ms end_ms seal_ms")
        return "segments", columns, _segments(document)
    topics = document.get("topicConfigTable")
    if isinstance(topics, dict):
        columns = columns_of("topic:text read_queues write_queues perm order:bool filter:text sys_flag")
        return "topics", columns, _broker_topics(topics)
    offsets = document.get("offsetTable")
    if isinstance(offsets, dict):
        if any(isinstance(value, dict) for value in offsets.values()):
            return "offsets", columns_of("topic:text group:text queue_id:text offset"), _broker_offsets(offsets)
        return "offsets", columns_of("level:text offset"), _levels(offsets)
    for key, columns, rows in (
        ("topics", columns_of("topic_id topic:text queues floors:json starts:json deletion:json"), _our_topics),
        ("groups", columns_of("group:text generation topic:text queue_id:text offset"), _our_groups),
        (
            "deliveries",
            columns_of("group:text topic:text queue_id committed next offset attempt visible_ms reason:text"),
            _our_deliveries,
        ),
    ):
        items = document.get(key)
        if "format" in document and isinstance(items, list) and all(isinstance(item, dict) for item in items):
            return key, columns, rows([item for item in items if isinstance(item, dict)])
    return None


def _segments(document: _Object) -> Iterator[Json]:
    names = {"base_offset": "baseOffset", "size_bytes": "size", "status": "status", "create_ms": "createTimestamp",
             "begin_ms": "beginTimestamp", "end_ms": "endTimestamp", "seal_ms": "sealTimestamp"}  # fmt: skip
    for table in _SEGMENTS:
        for path, segments in _items(document.get(table)):
            for _, segment in _items(segments):
                entry = segment if isinstance(segment, dict) else {}
                yield {"table": table, "path": path, **{name: _int(entry.get(key)) for name, key in names.items()}}


def _broker_topics(topics: _Object) -> Iterator[Json]:
    for topic, config in _items(topics):
        entry = config if isinstance(config, dict) else {}
        yield {
            "topic": topic, "read_queues": _int(entry.get("readQueueNums")),
            "write_queues": _int(entry.get("writeQueueNums")), "perm": _int(entry.get("perm")),
            "order": entry.get("order") is True, "filter": text_of(entry.get("topicFilterType")),
            "sys_flag": _int(entry.get("topicSysFlag")),
        }  # fmt: skip


def _broker_offsets(offsets: _Object) -> Iterator[Json]:
    for name, queues in _items(offsets):
        topic, _, group = name.rpartition("@")
        for queue_id, offset in _items(queues):
            yield {"topic": topic, "group": group, "queue_id": queue_id, "offset": _int(offset)}


def _levels(offsets: _Object) -> Iterator[Json]:
    for level, offset in _items(offsets):
        yield {"level": level, "offset": _int(offset)}


def _our_topics(topics: list[_Object]) -> Iterator[Json]:
    for topic in topics:
        yield {
            "topic_id": _int(topic.get("id")), "topic": text_of(topic.get("name")),
            "queues": _int(topic.get("queues")), "floors": _plain(topic.get("floors")),
            "starts": _plain(topic.get("starts")), "deletion": _plain(topic.get("deletion")),
        }  # fmt: skip


def _our_groups(groups: list[_Object]) -> Iterator[Json]:
    for group in groups:
        head = {"group": text_of(group.get("name")), "generation": _int(group.get("generation"))}
        rows = [
            {**head, "topic": topic, "queue_id": queue_id, "offset": _int(offset)}
            for topic, queues in _items(group.get("offsets"))
            for queue_id, offset in _items(queues)
        ]
        yield from rows or [head]


def _our_deliveries(groups: list[_Object]) -> Iterator[Json]:
    """Yields the open messages of groups."""
    for group in groups:
        for queue in _lists_in(group.get("queues")):
            topic, queue_id, committed, following, opened = (*queue, *[None] * 5)[:5]
            head = {
                "group": text_of(group.get("name")), "topic": text_of(topic), "queue_id": _int(queue_id),
                "committed": _int(committed), "next": _int(following),
            }  # fmt: skip
            for offset, attempt, visible_ms, _, _, reason in ((*one, *[None] * 6)[:6] for one in _lists_in(opened)):
                numbers = {"offset": _int(offset), "attempt": _int(attempt), "visible_ms": _int(visible_ms)}
                yield {**head, **numbers, "reason": text_of(reason)}


def _lists_in(value: JsonValue) -> Iterator[list[JsonValue]]:
    """Yields the lists in a list."""
    yield from (item for item in (value if isinstance(value, list) else ()) if isinstance(item, list))


def _values(document: JsonValue) -> Iterator[Json]:
    """Yields every value that holds no others, with its place as a JSON pointer (RFC 6901)."""
    waiting: list[tuple[str, JsonValue]] = [("", document)]
    while waiting:
        place, value = waiting.pop()
        inner = _inner(value)
        if inner:
            waiting += [(f"{place}/{name}", item) for name, item in reversed(inner)]
        else:
            yield {"place": place or "/", "value": _plain(value)}


def _inner(value: JsonValue) -> list[tuple[str, JsonValue]]:
    if isinstance(value, dict):
        return [(text_of(name).replace("~", "~0").replace("/", "~1"), item) for name, item in value.items()]
    return [(str(number), item) for number, item in enumerate(value)] if isinstance(value, list) else []


def _items(value: JsonValue) -> list[tuple[str, JsonValue]]:
    return [(text_of(name), item) for name, item in value.items()] if isinstance(value, dict) else []


def _int(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value in _INT64 else None


def _plain(value: JsonValue) -> JsonValue:
    """Returns the value with text and numbers that every output can hold: what is beyond a float becomes text."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    plain: JsonValue = json.loads(text, parse_constant=str)
    return plain


def dump_checkpoint(source: Source, options: DumpOptions) -> Dump:
    """Dumps the times and offsets of a checkpoint."""
    data = source.read(0, CHECKPOINT_BYTES)
    head = {**asdict(Checkpoint.decode(data)), "bytes": source.size}
    further = {
        str(at): value
        for at in range(_FIELDS_END, len(data) - 7, 8)
        if (value := int.from_bytes(data[at : at + 8], "big", signed=True))
    }
    dump = Dump("checkpoint", {**head, "further_fields": further} if further else head)
    if source.size != CHECKPOINT_BYTES:
        dump.find(f"a checkpoint has {CHECKPOINT_BYTES} bytes, not {source.size}; fields that are missing read as 0")
    return dump


def dump_abort(source: Source, options: DumpOptions) -> Dump:
    """Dumps the file that is there while a store is open for writing."""
    return Dump("abort", {"meaning": "the store is open, or was not closed", **_text(source)})


def dump_lock(source: Source, options: DumpOptions) -> Dump:
    """Dumps the file that a writer locks; after the first line ours names the holder."""
    return Dump("lock", {"meaning": "locked by who writes the store; its being there says nothing", **_text(source)})


def dump_cached_range(source: Source, options: DumpOptions) -> Dump:
    """Dumps a file of the disk cache: of which object it is, and how much; its bytes are those of the object."""
    start = source.read(0, HEAD.size)
    dump = Dump("cached-range", {"bytes": source.size})
    if len(start) < HEAD.size:
        dump.find(f"file has {source.size} bytes, its head {HEAD.size}")
        return dump
    _, crc, length = HEAD.unpack(start)
    begins = HEAD.size + length
    key = text_of(source.read(HEAD.size, min(begins, source.size)).decode("utf-8", "replace"))
    dump.head |= {"key": key, "crc32": f"{crc:08x}", "range_bytes": max(0, source.size - begins)}
    found = 0
    for at in range(CRC_FROM, source.size, _READ_BYTES):
        found = zlib.crc32(source.read(at, min(at + _READ_BYTES, source.size)), found)
    if begins > source.size or found != crc:
        dump.find("wrong checksum: it counts as not there")
    return dump


def _text(source: Source) -> dict[str, object]:
    text = text_of(source.read(0, _TEXT_BYTES).decode("utf-8", "replace")).strip()
    return {"content": text, "bytes": source.size}
