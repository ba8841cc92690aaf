"""Manifest objects: heads, pages, queue rows, the state, names that left, declared gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from tierlog.service.dump.result import Dump, DumpOptions, Json, columns_of, cut, decoding, text_of
from tierlog.service.dump.source import MOST_BYTES, Source, pages_of, read_head, read_page
from tierlog.service.dump.tiered_index import describe_bounds
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.format.manifest import (
    MAGIC_GAPS,
    MAGIC_HEAD,
    MAGIC_PAGE,
    MAGIC_REMOVED,
    VERSION,
    Head,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    QueueGap,
    decode_gaps,
    decode_page,
    decode_removed,
)
from tierlog.tiering.format.queue_rows import MAGIC as MAGIC_ROWS
from tierlog.tiering.format.queue_rows import QUEUE_ROW, decode_rows_page
from tierlog.tiering.format.queue_rows import VERSION as ROWS_VERSION
from tierlog.tiering.format.section import SectionHead
from tierlog.tiering.format.store_state import MAGIC_STATE, StoreState
from tierlog.tiering.format.store_state import VERSION as STATE_VERSION

_ENTRY_COLUMNS = columns_of(
    "list:text key:text first next bytes raw_bytes crc32:text records items level slots slot_from slot_end layout:text "
    "begin_ms min_store_ms max_store_ms min_born_ms max_born_ms added count rows_key:text topic_id queue_id topic:text "
    "removed_ms expired_below_ms sections:json"
)
_SHOWN = ("list", "key", "first", "next", "bytes", "records", "items", "level", "min_store_ms", "max_store_ms", "count")
_STATE_COLUMNS = (
    "topic_id topic:text queues archive:bool cold_retention_ms hold:bool ends:json deleted:bool "
    "deleted_below begins:json"
)
_ROW_COLUMNS = dict.fromkeys(QUEUE_ROW.names or (), "int")


def dump_head(source: Source, options: DumpOptions) -> Dump:
    """Dumps identity and watermarks; a row for every entry, tree reference, gap and removed object."""
    dump = Dump("manifest-head", {"bytes": source.size}, "entries", _ENTRY_COLUMNS, _SHOWN)
    with dump.surviving():
        data = _whole(source, MAGIC_HEAD, VERSION)
        with decoding():
            head = Head.decode(data, path=source.name)
            rows = [*_head_rows(head)]
        state = head.state
        dump.head = {
            "store_id": head.store_id, "volume_id": head.volume_id, "open_id": head.open_id, "epoch": head.epoch,
            "version": head.version, "commit_id": head.commit_id, "commit_ids": len(head.commit_ids),
            "archived_to": head.archived_to, "indexed_to": head.indexed_to, "cold_min": head.cold_min,
            "state": state.key if state else None, "bytes": source.size,
        }  # fmt: skip
        dump.rows = cut(rows, options)
    return dump


def dump_page(source: Source, options: DumpOptions) -> Dump:
    """Dumps entries or references of one page."""
    dump = Dump("manifest-page", {"bytes": source.size}, "entries", _ENTRY_COLUMNS, _SHOWN)
    with dump.surviving():
        data = _whole(source, MAGIC_PAGE, VERSION)
        table = read_head(source, 0, source.size, MAGIC_PAGE, VERSION).table
        dump.head |= {"entries_of": table.get("kind"), "level": table.get("level"), "count": table.get("count")}
        with decoding():
            rows = [_entry_row(str(table["kind"]), item) for item in _items_of(data, table, source)]
        if len(rows) != table.get("count"):
            dump.find(f"page says it has {table.get('count')} entries, it has {len(rows)}")
        dump.rows = cut(rows, options)
    return dump


def dump_state(source: Source, options: DumpOptions) -> Dump:
    """Dumps the topics of a store, and how many groups and restores its state has."""
    dump = Dump("state", {"bytes": source.size}, "topics", columns_of(_STATE_COLUMNS))
    with dump.surviving():
        data = _whole(source, MAGIC_STATE, STATE_VERSION)
        with decoding():
            state = StoreState.decode(data, path=source.name)
            dump.head.update(
                volume_id=text_of(state.volume_id), log_end=state.log_end, next_topic_id=state.next_topic_id,
                first_offset=state.first_offset, groups=len(state.groups), takeovers=len(state.takeovers),
            )  # fmt: skip
            topics = [
                {
                    "topic_id": int(topic.topic_id),
                    "topic": text_of(topic.name),
                    "queues": int(topic.queues),
                    "archive": topic.archive,
                    "cold_retention_ms": topic.cold_retention_ms,
                    "hold": topic.hold,
                    "ends": list(topic.ends),
                    "deleted": topic.deleted,
                    "deleted_below": topic.deleted_below,
                    "begins": list(topic.begins),
                }
                for topic in state.topics
            ]
        dump.rows = cut(topics, options)
    return dump


def dump_removed(source: Source, options: DumpOptions) -> Dump:
    """Dumps the names that left the manifest together."""
    dump = Dump("removed-names", {"bytes": source.size}, "names", columns_of("key:text"))
    with dump.surviving():
        data = _whole(source, MAGIC_REMOVED, VERSION)
        with decoding():
            rows: list[Json] = [{"key": text_of(name)} for name in decode_removed(data, path=source.name)]
        dump.rows = cut(rows, options)
    return dump


def dump_gaps(source: Source, options: DumpOptions) -> Dump:
    """Dumps the declared gaps of a store's queues."""
    dump = Dump("queue-gaps", {"bytes": source.size}, "gaps", columns_of(" ".join(QueueGap._fields)))
    with dump.surviving():
        data = _whole(source, MAGIC_GAPS, VERSION)
        with decoding():
            rows: list[Json] = [
                dict(zip(QueueGap._fields, map(int, gap), strict=True)) for gap in decode_gaps(data, path=source.name)
            ]
        dump.rows = cut(rows, options)
    return dump


def dump_queue_rows(source: Source, options: DumpOptions) -> Dump:
    """Dumps a row for each run of consecutive queue offsets."""
    dump = Dump("queue-rows", {"bytes": source.size}, "rows", _ROW_COLUMNS)
    with dump.surviving():
        head = read_head(source, 0, source.size, MAGIC_ROWS, ROWS_VERSION)
        if head.length != source.size:
            dump.find(f"object has {source.size} bytes, its section {head.length}")
        dump.head |= {"pages": len(pages_of(head))}
        dump.rows = cut(_queue_rows(source, dump, head), options)
    return dump


def _queue_rows(source: Source, dump: Dump, head: SectionHead) -> Iterator[Json]:
    names = QUEUE_ROW.names or ()
    for at, page in enumerate(pages_of(head)):
        with dump.surviving(f"page {at}"):
            for values in decode_rows_page(read_page(source, 0, page), page, path=source.name).tolist():
                yield dict(zip(names, values, strict=True))


def _whole(source: Source, magic: bytes, version: int) -> bytes:
    """Returns all bytes of an object that is one section with a sound head."""
    if source.size > MOST_BYTES:
        raise CorruptionError(f"{source.size} bytes are more than such an object has")
    read_head(source, 0, source.size, magic, version)
    return source.read(0, source.size)


def _items_of(data: bytes, table: Json, source: Source) -> Sequence[LogEntry | IndexEntry | PageNode]:
    items: list[LogEntry | IndexEntry | PageNode] = decode_page(data, table["kind"], table["level"], path=source.name)
    return items


def _head_rows(head: Head) -> Iterator[Json]:
    trees = (("log_tree", head.log_tree), ("index_tree", head.index_tree))
    yield from (_entry_row("log", entry) for entry in head.log)
    yield from (_entry_row("index", entry) for entry in head.index)
    yield from chain.from_iterable((_entry_row(name, node) for node in nodes) for name, nodes in trees)
    for first, following in head.log_gaps:
        yield {"list": "log_gaps", "first": first, "next": following}
    for page in head.removed:
        yield {"list": "removed", **_reference(page.ref), "count": page.count, "removed_ms": page.at_ms}
    for tombstone in head.tombstones:
        yield {"list": "tombstones", "key": text_of(tombstone.tombstone_id), "topic": text_of(tombstone.topic),
               "next": tombstone.end, "added": tombstone.added}  # fmt: skip
    for topic_id, below_ms in head.expired:
        yield {"list": "expired", "topic_id": topic_id, "expired_below_ms": below_ms}


def _entry_row(name: str, entry: LogEntry | IndexEntry | PageNode) -> Json:
    row: Json = {"list": name, "first": entry.first, "next": entry.next, **describe_bounds(entry.bounds)}
    if isinstance(entry, PageNode):
        return {**row, **_reference(entry.ref), "level": entry.level, "count": entry.count, **_rows_key(entry.rows)}
    row |= {
        "key": text_of(entry.key), "bytes": entry.size_bytes, "crc32": f"{entry.crc32:08x}", "added": entry.added,
        "sections": {part: ref.to_json() for part, ref in entry.sections.items()},
    }  # fmt: skip
    if isinstance(entry, LogEntry):
        return {**row, "raw_bytes": entry.raw_bytes, "records": entry.records, **_rows_key(entry.rows)}
    return {
        **row, "items": entry.items, "level": entry.level, "slots": entry.slots, "slot_from": entry.slot_from,
        "slot_end": entry.slot_end, "layout": text_of(entry.layout),
        "begin_ms": entry.begin_ms,
    }  # fmt: skip


def _reference(ref: ObjectRef) -> Json:
    return {"key": text_of(ref.key), "bytes": ref.size_bytes, "crc32": f"{ref.crc32:08x}"}


def _rows_key(ref: ObjectRef | None) -> Json:
    return {"rows_key": text_of(ref.key)} if ref else {}
