"""Encodes a batch of messages into commit-log records. ``tiering.format.record.encode_record`` is the oracle."""

from __future__ import annotations

from struct import Struct

import numpy as np

from tierlog.tiering.format.properties import KEYS, RECORD_CHECKSUM, TAGS
from tierlog.tiering.kernels.checksum import crc32
from tierlog.tiering.kernels.primitives import (
    called,
    copy,
    copy_short,
    inlined,
    int64,
    load_i32,
    load_i64,
    load_u8,
    store_be16,
    store_be32,
    store_be64,
    store_u8,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

#: What a record has of a message that a client of RocketMQ sent, besides what every message has. Native byte order.
CLIENT_FIELDS = np.dtype(
    [
        ("flag", np.int32),
        ("sys_flag", np.int32),
        ("reconsume_times", np.int32),
        ("born_host_bytes", np.int32),
        ("prepared_offset", np.int64),
        ("born_host", np.void, 20),
        ("unused", np.void, 4),
    ]
)
CLIENT_FIELDS_BYTES = CLIENT_FIELDS.itemsize
_CLIENT_FIELDS = Struct("=iiiiq20s4x")
#: Makes a row of them: flag, sys_flag, reconsume times, bytes of the born host, prepared offset, born host.
pack_client_fields = _CLIENT_FIELDS.pack
unpack_client_fields = _CLIENT_FIELDS.unpack
#: The names that the kernel writes itself.
PROPERTY_NAMES = np.frombuffer(f"{KEYS}{TAGS}{RECORD_CHECKSUM}".encode(), np.uint8)


@inlined
def _put_property(at, name, name_length, value, value_length):
    """Writes ``name 0x01 value 0x02``; nothing for an empty value."""
    if value_length > 0:
        copy_short(at, name, name_length)
        store_u8(at + name_length, 1)
        copy_short(at + name_length + 1, value, value_length)
        store_u8(at + name_length + 1 + value_length, 2)
        at += name_length + 2 + value_length
    return at


@called
def _put_checksum(tables, record, at, name):
    """Ends the record with the checksum of all its bytes before ``at``; ``name`` is ``__CRC32#``."""
    copy(at, name, 8)
    store_u8(at + 8, 1)
    value = crc32(tables, record, at - record) & 0x7FFFFFFF
    for i in range(10):
        store_u8(at + 9 + i, 48 + value % 10)
        value //= 10
    store_u8(at + 19, 2)


@struct_kernel(
    "tables out physical store_ms born_host born_host_length store_host store_host_length names first last size "
    "topic_index topics topic_starts queue_id queue_offset born_ms body body_starts keys keys_starts tags "
    "tags_starts properties properties_starts checksum client"
)
def encode_records(job):
    """Encodes messages ``[first, last)`` back to back at ``out``; returns the bytes written.

    ``size`` holds each record's length, computed and bounded by the caller from the same columns; ``physical`` is
    the offset of ``out``. Columns of text are data and int64 starts. ``names`` is :data:`PROPERTY_NAMES`.
    ``checksum`` ends every record with one. ``client`` are rows of :data:`CLIENT_FIELDS`, or 0: then flags and counts
    are 0, and every born host is ``born_host``.
    """
    (
        tables, out, physical, store_ms, born_host, born_host_length, store_host, store_host_length, names, first, last,
        size, topic_index, topics, topic_starts, queue_id, queue_offset, born_ms, body, body_starts, keys, keys_starts,
        tags, tags_starts, properties, properties_starts, checksum, client,
    ) = load_fields(job, 28)  # fmt: skip
    host = born_host
    host_length = born_host_length
    flag = int64(0)
    sys_flag = int64(0)
    reconsume_times = int64(0)
    prepared_offset = int64(0)
    at = out
    for i in range(first, last):
        # topic and body, and what the body sums to
        record = at
        topic = load_i32(topic_index + 4 * i)
        topic_start = load_i64(topic_starts + 8 * topic)
        topic_length = load_i64(topic_starts + 8 * topic + 8) - topic_start
        body_start = load_i64(body_starts + 8 * i)
        body_length = load_i64(body_starts + 8 * i + 8) - body_start
        crc = crc32(tables, body + body_start, body_length) & 0x7FFFFFFF if body_length > 0 else int64(0)
        wide = topic_length > 127
        # what only clients of RocketMQ send
        if client != 0:
            row = client + CLIENT_FIELDS_BYTES * i
            flag = load_i32(row)
            sys_flag = load_i32(row + 4) & ~0x30
            reconsume_times = load_i32(row + 8)
            host_length = load_i32(row + 12)
            prepared_offset = load_i64(row + 16)
            host = row + 24
        # fixed fields and hosts
        store_be32(at, load_i64(size + 8 * i))
        store_be32(at + 4, 0xDAA320AB if wide else 0xDAA320A7)
        store_be32(at + 8, crc)
        store_be32(at + 12, load_i32(queue_id + 4 * i))
        store_be32(at + 16, flag)
        store_be64(at + 20, load_i64(queue_offset + 8 * i))
        store_be64(at + 28, physical + at - out)
        store_be32(at + 36, sys_flag | (0x10 if host_length == 20 else 0) | (0x20 if store_host_length == 20 else 0))
        store_be64(at + 40, load_i64(born_ms + 8 * i))
        at += 48
        copy_short(at, host, host_length)
        at += host_length
        store_be64(at, store_ms)
        copy_short(at + 8, store_host, store_host_length)
        at += 8 + store_host_length
        # body
        store_be32(at, reconsume_times)
        store_be64(at + 4, prepared_offset)
        store_be32(at + 12, body_length)
        copy(at + 16, body + body_start, body_length)
        at += 16 + body_length
        # topic
        if wide:
            store_be16(at, topic_length)
            at += 2
        else:
            store_u8(at, topic_length)
            at += 1
        copy_short(at, topics + topic_start, topic_length)
        at += topic_length
        # properties: keys, tag, then the others as they are laid out
        text = at + 2
        keys_start = load_i64(keys_starts + 8 * i)
        tags_start = load_i64(tags_starts + 8 * i)
        rest_start = load_i64(properties_starts + 8 * i)
        rest_length = load_i64(properties_starts + 8 * i + 8) - rest_start
        end = _put_property(text, names, 4, keys + keys_start, load_i64(keys_starts + 8 * i + 8) - keys_start)
        end = _put_property(end, names + 4, 4, tags + tags_start, load_i64(tags_starts + 8 * i + 8) - tags_start)
        copy_short(end, properties + rest_start, rest_length)
        end += rest_length
        # their length, with the checksum behind them if it is wanted
        if checksum:
            if end > text and load_u8(end - 1) != 2:  # a client need not end its last pair
                store_u8(end, 2)
                end += 1
            store_be16(at, end + 20 - text)
            _put_checksum(tables, record, end, names + 8)
            end += 20
        else:
            store_be16(at, end - text)
        at = end
        if at - record != load_i64(size + 8 * i):
            return int64(-1)
    return at - out
