"""Rows of commit-log records, blank records and fillers."""

from __future__ import annotations

import base64

from tierlog.service.dump.result import DumpOptions, Json, columns_of, text_of
from tierlog.tiering.format.body import inflated_body, is_compressed
from tierlog.tiering.format.properties import KEYS, RECORD_CHECKSUM, TAGS, split_keys
from tierlog.tiering.format.record import (
    TRANSACTION_MASK,
    Record,
    SysFlag,
    body_crc,
    has_checksum,
    host_text,
    is_intact,
)

#: A longer record is taken for damage: RocketMQ's and our limits are far below.
MAX_RECORD_BYTES = 64 << 20

RECORD_COLUMNS = columns_of(
    "position physical_offset size_bytes kind:text version topic:text queue_id queue_offset store_ms born_ms "
    "message_id:text keys:json tag:text properties:json flag sys_flag sys_flags:json born_host:text store_host:text "
    "reconsume_times prepared_offset body_bytes body:text body_base64:text body_cut:bool body_crc:text "
    "record_checksum:text place:text"
)
SHOWN = (
    "physical_offset", "size_bytes", "kind", "topic", "queue_id", "queue_offset", "store_ms", "keys", "tag",
    "sys_flags", "body_crc", "record_checksum", "place", "body",
)  # fmt: skip

_BITS = {
    0x1: "compressed", 0x2: "multi_tags", SysFlag.BORN_HOST_V6: "born_host_v6", SysFlag.STORE_HOST_V6: "store_host_v6",
    0x40: "need_unwrap", 0x80: "inner_batch",
}  # fmt: skip
_TRANSACTION = {0x4: "prepared", 0x8: "commit", 0xC: "rollback"}
_COMPRESSION_MASK = 0x700
_COMPRESSION = {0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}

#: Properties that have a column of their own; who sent a message and its number there are shown as they are.
_ELSEWHERE = frozenset({KEYS, TAGS, RECORD_CHECKSUM})


def flag_names(sys_flag: int) -> list[str]:
    """Names the bits of a system flag; what has no name in hex."""
    names = [name for bit, name in _BITS.items() if sys_flag & bit]
    rest = sys_flag & ~sum(_BITS)
    for mask, table in ((TRANSACTION_MASK, _TRANSACTION), (_COMPRESSION_MASK, _COMPRESSION)):
        if rest & mask in table:
            names.append(table[rest & mask])
            rest &= ~mask
    return [*names, hex(rest & 0xFFFFFFFF)] if rest else names


def record_row(position: int, record: Record, raw: bytes, options: DumpOptions, *, is_moved: bool = False) -> Json:
    """Makes the row of a record; ``is_moved``: its offset was replaced, so a record checksum says nothing."""
    properties = record.properties
    row: Json = {
        "position": position, "physical_offset": record.physical_offset, "size_bytes": record.size,
        "kind": "record", "version": int(record.version), "topic": record.topic, "queue_id": record.queue_id,
        "queue_offset": record.queue_offset, "store_ms": record.store_ms, "born_ms": record.born_ms,
        "message_id": record.message_id, "keys": split_keys(properties.get(KEYS, "")),
        "tag": properties.get(TAGS, ""),
        "properties": {name: value for name, value in properties.items() if name not in _ELSEWHERE},
        "flag": record.flag, "sys_flag": record.sys_flag, "sys_flags": flag_names(record.sys_flag),
        "born_host": host_text(record.born_host), "store_host": host_text(record.store_host),
        "reconsume_times": record.reconsume_times, "prepared_offset": record.prepared_offset,
        "body_bytes": len(record.body), **_body(record, options.body_bytes),
        "body_crc": "ok" if not record.body or record.body_crc == body_crc(record.body) else "bad",
    }  # fmt: skip
    if not has_checksum(raw, len(record.properties_text)):
        row["record_checksum"] = "none"
    elif is_moved:
        row["record_checksum"] = "moved"
    else:
        row["record_checksum"] = "ok" if is_intact(raw, len(record.properties_text)) else "bad"
    row["place"] = "ok"
    return row


def filler_row(position: int, head: bytes) -> Json:
    """Makes the row of a filler, which stands for a removed record; ``head`` is its first 36 bytes."""
    return {
        "position": position, "physical_offset": int.from_bytes(head[28:36], "big", signed=True),
        "size_bytes": int.from_bytes(head[:4], "big", signed=True), "kind": "filler",
        "queue_id": int.from_bytes(head[12:16], "big", signed=True),
        "queue_offset": int.from_bytes(head[20:28], "big", signed=True), "place": "ok",
    }  # fmt: skip


def faults_of(row: Json) -> list[str]:
    """Lists the checksums of a record's row that are bad."""
    return [name for name in ("body_crc", "record_checksum") if row.get(name) == "bad"]


def _body(record: Record, limit: int) -> Json:
    """Returns the body, inflated if it can be, as text or base64, cut to ``limit`` bytes."""
    body = record.body
    if is_compressed(record):
        inflated = inflated_body(record)
        body = body if inflated is None else inflated
    cut = body[:limit]
    found: Json = {"body_cut": len(cut) < len(body)}
    try:
        body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(cut).decode()
    else:
        found["body"] = text_of(cut.decode("utf-8", "ignore"))
    return found
