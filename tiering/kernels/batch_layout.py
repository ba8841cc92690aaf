"""Checks texts of Arrow columns and lays them out as a :class:`~tiering.message.batch.MessageBatch` has them.

``MessageBatch.of`` is the oracle. What it would refuse, and whatever is out of the ordinary, is left to it: these
kernels only tell that there is such a thing. The columns have passed Arrow's full validation, so every offset is good.

A column is given by the addresses of its validity bits (0 if it has none) and of its offsets, that of its first row, by
the number of that row's bit, and by the address of its bytes.
"""

from __future__ import annotations

import numpy as np

from tierlog.tiering.format.properties import OWN_FIELDS
from tierlog.tiering.format.record import NO_QUEUE_UNIT
from tierlog.tiering.kernels.encode import CLIENT_FIELDS_BYTES
from tierlog.tiering.kernels.primitives import (
    called,
    copy_short,
    inlined,
    int64,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    same_bytes,
    store_i32,
    store_i64,
    store_u8,
    uint64,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

_OWN = [name.encode() for name in sorted(OWN_FIELDS)]
#: Names of properties that a client may not give: bytes, and where each begins, and the last ends.
OWN_NAMES = np.frombuffer(b"".join(_OWN), np.uint8)
OWN_STARTS = np.cumsum([0, *map(len, _OWN)])

#: ``__CRC32#`` read little-endian.
CHECKSUM_NAME = 0x2332334352435F5F
_ONES, _TOPS = 0x0101010101010101, 0x8080808080808080
#: A property text with more names is compared by the oracle.
_MOST_NAMES = 64


@inlined
def _is_valid(validity, number):
    return validity == 0 or (load_u8(validity + (number >> 3)) >> (number & 7)) & 1


@called
def _is_plain(address, length, spaces):
    """Whether a text has no byte below 3 and, unless ``spaces`` may be there, no space."""
    end = address + length
    while address + 8 <= end:
        eight = uint64(load_i64(address))
        low = (eight - uint64(3 * _ONES)) & ~eight
        blank = eight ^ uint64(32 * _ONES)
        space = (blank - uint64(_ONES)) & ~blank
        if low & uint64(_TOPS) or (spaces == 0 and space & uint64(_TOPS)):
            return False
        address += 8
    while address < end:
        byte = load_u8(address)
        if byte < 3 or (spaces == 0 and byte == 32):
            return False
        address += 1
    return True


@struct_kernel("count validity bit offsets data least most is_text starts")
def take_values(job):
    """Widens offsets of bytes or texts to ``starts``; returns the longest of them and 1.

    0 if a length is out of ``[least, most]`` or a text is not plain. A value that is not there is an empty one.
    """
    count, validity, bit, offsets, data, least, most, is_text, starts = load_fields(job, 9)
    longest = int64(0)
    for i in range(count):
        start = load_i32(offsets + 4 * i)
        length = load_i32(offsets + 4 * i + 4) - start
        store_i64(starts + 8 * i, start)
        if length < least or length > most or (length > 0 and not _is_valid(validity, bit + i)):
            return int64(0)
        longest = max(longest, length)
    first = load_i32(offsets)
    end = load_i32(offsets + 4 * count)
    store_i64(starts + 8 * count, end)
    return longest + 1 if is_text == 0 or _is_plain(data + first, end - first, 1) else int64(0)


@struct_kernel("count validity bit lists key_validity key_bit offsets data starts out")
def join_keys(job):
    """Writes the keys of each row with a space between them to ``out``; 0 if one cannot be indexed.

    ``out`` has room for the bytes of all keys and a space each. Returns the longest row and 1.
    """
    count, validity, bit, lists, key_validity, key_bit, offsets, data, starts, out = load_fields(job, 10)
    at = out
    longest = int64(0)
    for i in range(count):
        row = at
        store_i64(starts + 8 * i, row - out)
        first = load_i32(lists + 4 * i)
        end = load_i32(lists + 4 * i + 4)
        if end > first and not _is_valid(validity, bit + i):
            return int64(0)
        for j in range(first, end):
            start = load_i32(offsets + 4 * j)
            length = load_i32(offsets + 4 * j + 4) - start
            if length < 1 or not _is_valid(key_validity, key_bit + j) or not _is_plain(data + start, length, 0):
                return int64(0)
            if j > first:
                store_u8(at, 32)
                at += 1
            copy_short(at, data + start, length)
            at += length
        longest = max(longest, at - row)
    store_i64(starts + 8 * count, at - out)
    return longest + 1


@called
def is_own(own, own_starts, own_count, name, length):
    """Whether a name is one of some, of which each has its start, and the last its end."""
    for i in range(own_count):
        start = load_i64(own_starts + 8 * i)
        if load_i64(own_starts + 8 * i + 8) - start == length and same_bytes(own + start, name, length):
            return True
    return False


@called
def _is_twice(offsets, data, first, number):
    """Whether the text of this number is one of those from ``first`` on before it."""
    start = load_i32(offsets + 4 * number)
    length = load_i32(offsets + 4 * number + 4) - start
    for other in range(first, number):
        at = load_i32(offsets + 4 * other)
        if load_i32(offsets + 4 * other + 4) - at == length and same_bytes(data + at, data + start, length):
            return True
    return False


@struct_kernel(
    "count validity bit lists name_validity name_bit name_offsets names value_validity value_bit value_offsets "
    "values own own_starts own_count starts out"
)
def join_properties(job):
    """Writes the property text of each row to ``out``; 0 if a property would be refused, or is there twice.

    Names and values are counted from the first row's first property. ``out`` has room for the bytes of all and 2 each.
    Returns the longest row and 1.
    """
    (
        count, validity, bit, lists, name_validity, name_bit, name_offsets, names, value_validity, value_bit,
        value_offsets, values, own, own_starts, own_count, starts, out,
    ) = load_fields(job, 17)  # fmt: skip
    at = out
    base = load_i32(lists)
    longest = int64(0)
    for i in range(count):
        row = at
        store_i64(starts + 8 * i, row - out)
        # the row's list
        first = load_i32(lists + 4 * i) - base
        end = load_i32(lists + 4 * i + 4) - base
        if end > first + _MOST_NAMES or (end > first and not _is_valid(validity, bit + i)):
            return int64(0)
        for j in range(first, end):
            # a name and its value, checked
            name = load_i32(name_offsets + 4 * j)
            name_length = load_i32(name_offsets + 4 * j + 4) - name
            value = load_i32(value_offsets + 4 * j)
            value_length = load_i32(value_offsets + 4 * j + 4) - value
            name += names
            value += values
            if name_length < 1 or not _is_valid(name_validity, name_bit + j) or not _is_plain(name, name_length, 1):
                return int64(0)
            if (
                value_length < 1
                or not _is_valid(value_validity, value_bit + j)
                or not _is_plain(value, value_length, 1)
            ):
                return int64(0)
            if is_own(own, own_starts, own_count, name, name_length) or _is_twice(name_offsets, names, first, j):
                return int64(0)
            if name_length >= 8 and load_i64(name + name_length - 8) == CHECKSUM_NAME:
                return int64(0)
            # both with their separators
            copy_short(at, name, name_length)
            store_u8(at + name_length, 1)
            at += name_length + 1
            copy_short(at, value, value_length)
            store_u8(at + value_length, 2)
            at += value_length + 1
        longest = max(longest, at - row)
    store_i64(starts + 8 * count, at - out)
    return longest + 1


@kernel
def measure_texts(*, count, keys_starts, tags_starts, properties_starts, added, sizes):
    """Bytes of each property text, with so many ``added``, to ``sizes``; returns which is the longest, -1 of none."""
    longest = int64(-1)
    most = int64(-1)
    for i in range(count):
        keys = load_i64(keys_starts + 8 * i + 8) - load_i64(keys_starts + 8 * i)
        tags = load_i64(tags_starts + 8 * i + 8) - load_i64(tags_starts + 8 * i)
        size = load_i64(properties_starts + 8 * i + 8) - load_i64(properties_starts + 8 * i) + added
        size += (keys + 6 if keys > 0 else 0) + (tags + 6 if tags > 0 else 0)
        store_i64(sizes + 8 * i, size)
        if size > most:
            longest = int64(i)
            most = size
    return longest


@kernel
def measure_records(*, count, topic_index, topic_bytes, body_starts, fixed, sizes):
    """Adds to the ``sizes`` of property texts what else the records have; returns which is the longest, -1 of none."""
    longest = int64(-1)
    most = int64(-1)
    for i in range(count):
        topic = load_i64(topic_bytes + 8 * load_i32(topic_index + 4 * i))
        body = load_i64(body_starts + 8 * i + 8) - load_i64(body_starts + 8 * i)
        size = load_i64(sizes + 8 * i) + body + topic + fixed + (1 if topic > 127 else 0)
        store_i64(sizes + 8 * i, size)
        if size > most:
            longest = int64(i)
            most = size
    return longest


@kernel
def choose_queues(*, count, topic_index, topic, queue_id, queues, turn, counts):
    """Gives the messages of a topic that leave it to the store a queue each, in turn, and counts those of every queue.

    Returns the queue whose turn it is then. Queue ids are below the length of ``counts``.
    """
    for i in range(count):
        if load_i32(topic_index + 4 * i) == topic:
            queue = load_i32(queue_id + 4 * i)
            if queue < 0:
                queue = turn
                turn = turn + 1 if turn + 1 < queues else int64(0)
                store_i32(queue_id + 4 * i, queue)
            store_i64(counts + 8 * queue, load_i64(counts + 8 * queue) + 1)
    return turn


@kernel
def number_messages(*, count, topic_index, topic, queue_id, following, queue_offset, client):
    """Gives the messages of a topic with chosen queues their offsets, and counts up the queues' ``following``.

    A prepared or rolled-back transaction is in no queue and takes no offset; only ``client`` rows, unless 0, say so.
    """
    for i in range(count):
        if load_i32(topic_index + 4 * i) == topic:
            if client != 0 and load_i32(client + CLIENT_FIELDS_BYTES * i + 4) & NO_QUEUE_UNIT:
                store_i64(queue_offset + 8 * i, 0)
                continue
            next_offset = following + 8 * load_i32(queue_id + 4 * i)
            store_i64(queue_offset + 8 * i, load_i64(next_offset))
            store_i64(next_offset, load_i64(next_offset) + 1)
