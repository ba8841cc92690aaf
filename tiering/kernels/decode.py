"""Takes records apart into columns: numbers, and texts as offsets and bytes, as Arrow lays them out.

Records lie one behind the other in a frame, or where the units of a queue say in a segment of the log.
``tiering.format.record.decode_record`` and ``tiering.format.properties`` are the oracle. Records that need more than
copying are left to them: a compressed body, text that is not UTF-8, the same property twice, very many keys or
properties, and whatever is damaged, of which the plain codec says what it is. Checksums are compared as it does:
the body's, and the record's own if it has one. A column that nobody asked for has the address 0, and is not made.
"""

from __future__ import annotations

import numpy as np

from tierlog.tiering.format.queue_unit import UNIT_BYTES
from tierlog.tiering.format.record import FIXED_BYTES_V1, MAGIC_FILLER, MAGIC_V1, MAGIC_V2
from tierlog.tiering.kernels.checksum import crc32, record_differs
from tierlog.tiering.kernels.primitives import (
    called,
    copy_short,
    find_byte,
    load_be16,
    load_be32,
    load_be64,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    same_bytes,
    store_i32,
    store_i64,
    store_u8,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel
from tierlog.tiering.kernels.text import is_utf8

_RUN_BYTES = 32
_UNITS_AHEAD = 10
_LINES_AHEAD = 7
"""Cache lines of a record that are asked for ahead: most records are no longer, and of others the rest follows."""
MOST_TEXTS = 64
"""Keys, or properties, of one record: each is compared with those before it."""
_KEYS, _TAGS, _CHECKSUM = 0x5359454B, 0x53474154, 0x2332334352435F5F  # "KEYS", "TAGS", "__CRC32#" read little-endian
_PRODUCER, _SEQUENCE = 0x544C5F504944, 0x544C5F534551  # "TL_PID", "TL_SEQ" read big-endian

#: Columns in the order of their addresses. ``*_ends`` has one entry more than there are texts and begins with 0.
LAYOUT = (
    ("topic_number", np.int32),
    ("queue_id", np.int32),
    ("queue_offset", np.int64),
    ("physical_offset", np.int64),
    ("store_ms", np.int64),
    ("born_ms", np.int64),
    ("size_bytes", np.int64),
    ("body_ends", np.int32),
    ("body", np.uint8),
    ("message_id_ends", np.int32),
    ("message_id", np.uint8),
    ("tag_ends", np.int32),
    ("tag", np.uint8),
    ("keys_ends", np.int32),
    ("key_ends", np.int32),
    ("key", np.uint8),
    ("properties_ends", np.int32),
    ("name_ends", np.int32),
    ("name", np.uint8),
    ("value_ends", np.int32),
    ("value", np.uint8),
)
_AT = {name: 8 * number for number, (name, _) in enumerate(LAYOUT)}
_TOPIC_NUMBER, _QUEUE_ID, _QUEUE_OFFSET = _AT["topic_number"], _AT["queue_id"], _AT["queue_offset"]
_PHYSICAL, _STORE_MS, _BORN_MS, _SIZE = (_AT[name] for name in ("physical_offset", "store_ms", "born_ms", "size_bytes"))
_BODY, _MESSAGE_ID, _TAG = _AT["body_ends"], _AT["message_id_ends"], _AT["tag_ends"]
_LIST, _KEY, _MAP, _NAME, _VALUE = (
    _AT[name] for name in ("keys_ends", "key_ends", "properties_ends", "name_ends", "value_ends")
)


@called
def _end(out, ends, number):
    """Returns where the texts of a column end before the one of this number."""
    return load_i32(load_i64(out + ends) + 4 * number)


@called
def _put(out, ends, number, address, length):
    """Appends text ``number`` of the column whose ends are at ``ends`` and whose bytes follow."""
    end = _end(out, ends, number)
    copy_short(load_i64(out + ends + 8) + end, address, length)
    store_i32(load_i64(out + ends) + 4 * (number + 1), end + length)


@called
def _is_among(out, ends, first, last, text):
    """Whether one of the texts ``[first, last)`` of a column is this one, (address, length)."""
    address, length = text
    for number in range(first, last):
        start = _end(out, ends, number)
        if _end(out, ends, number + 1) - start == length and same_bytes(
            load_i64(out + ends + 8) + start, address, length
        ):
            return True
    return False


@called
def _put_keys(out, row, address, length):
    """Appends the distinct keys of a KEYS property; False if there are too many."""
    first = _end(out, _LIST, row)
    keys = first
    end = address + length
    start = address
    while start < end:
        at = find_byte(start, end, 32)
        if at > start and not _is_among(out, _KEY, first, keys, (start, at - start)):
            if keys - first == MOST_TEXTS:
                return False
            _put(out, _KEY, keys, start, at - start)
            keys += 1
        start = at + 1
    store_i32(load_i64(out + _LIST) + 4 * (row + 1), keys)
    return True


@called
def _is_of_store(name, length):
    """Whether a property is the store's own and shown to nobody; KEYS and TAGS have columns."""
    if length == 6:
        text = load_be32(name) << 16 | load_be16(name + 4)
        return text in (_PRODUCER, _SEQUENCE)
    return length == 8 and load_i64(name) == _CHECKSUM


@called
def _put_properties(out, row, address, length):
    """Keys, tag and the other properties of a property text; False if that needs more than copying."""
    # which columns are wanted
    wants_keys = load_i64(out + _LIST) != 0
    wants_tag = load_i64(out + _TAG) != 0
    wants_others = load_i64(out + _MAP) != 0
    if not (wants_keys or wants_tag or wants_others):
        return True
    if not is_utf8(address, length):
        return False
    # lists without entries so far
    if wants_keys:
        store_i32(load_i64(out + _LIST) + 4 * (row + 1), _end(out, _LIST, row))
    if wants_tag:
        store_i32(load_i64(out + _TAG) + 4 * (row + 1), _end(out, _TAG, row))
    # each pair of the text: keys, tag, or another property
    first = _end(out, _MAP, row) if wants_others else 0
    properties = first
    has_keys = False
    has_tag = False
    end = address + length
    start = address
    while start < end:
        at = find_byte(start, end, 2)
        cut = find_byte(start, at, 1)
        if start < cut < at - 1:
            name_length = cut - start
            value_length = at - cut - 1
            if name_length == 4 and load_i32(start) == _KEYS:
                if has_keys or (wants_keys and not _put_keys(out, row, cut + 1, value_length)):
                    return False
                has_keys = True
            elif name_length == 4 and load_i32(start) == _TAGS:
                if has_tag:
                    return False
                has_tag = True
                if wants_tag:
                    _put(out, _TAG, row, cut + 1, value_length)
            elif wants_others and not _is_of_store(start, name_length):
                if properties - first == MOST_TEXTS or _is_among(out, _NAME, first, properties, (start, name_length)):
                    return False
                _put(out, _NAME, properties, start, name_length)
                _put(out, _VALUE, properties, cut + 1, value_length)
                properties += 1
        start = at + 1
    if wants_others:
        store_i32(load_i64(out + _MAP) + 4 * (row + 1), properties)
    return True


@called
def _put_hex(target, address, length):
    for i in range(length):
        byte = load_u8(address + i)
        high = byte >> 4
        low = byte & 15
        store_u8(target + 2 * i, high + (48 if high < 10 else 55))
        store_u8(target + 2 * i + 1, low + (48 if low < 10 else 55))


@called
def _put_message_id(out, row, store_host, host_length, physical_offset_at):
    end = _end(out, _MESSAGE_ID, row)
    target = load_i64(out + _MESSAGE_ID + 8) + end
    _put_hex(target, store_host, host_length)
    _put_hex(target + 2 * host_length, physical_offset_at, 8)
    store_i32(load_i64(out + _MESSAGE_ID) + 4 * (row + 1), end + 2 * host_length + 16)


@called
def is_filler(at, size):
    """Whether the bytes of a filler of ``size`` bytes are zero where they must be; its magic is not compared."""
    rest = load_i32(at + 8) | load_i32(at + 16)
    for i in range(36, size):
        rest |= load_u8(at + i)
    return rest == 0


@called
def _put_number(out, column, row, value):
    address = load_i64(out + column)
    if address:
        store_i64(address + 8 * row, value)


@called
def _take_record(taking, at, size, row):
    """Takes apart the record of ``size`` bytes at an address, all of which may be read.

    ``taking`` is what holds for all records of a call: CRC tables, topic and its length, the number of the topic,
    bounds, addresses of columns.

    Returns the row behind it, ``row`` itself if it lies outside the bounds, -1 if it is not for this.
    """
    tables, topic, topic_length, number, bounds, out = taking
    # where the parts lie, and whether their lengths agree
    magic = load_be32(at + 4)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return -1
    flags = load_be32(at + 36)
    born_host = 20 if flags & 0x10 else 8
    store_host = 20 if flags & 0x20 else 8
    fixed = 72 + born_host + store_host
    topic_width = 2 if magic == MAGIC_V2 else 1
    if size < fixed + topic_width + topic_length + 2:
        return -1
    body_length = load_be32(at + fixed - 4)
    if body_length < 0 or body_length > size - fixed - topic_width - topic_length - 2:
        return -1
    topic_at = at + fixed + body_length
    if (load_be16(topic_at) if topic_width == 2 else load_u8(topic_at)) != topic_length:
        return -1
    topic_at += topic_width
    properties_at = topic_at + topic_length + 2
    properties_length = load_be16(properties_at - 2)
    if properties_at + properties_length != at + size or not same_bytes(topic_at, topic, topic_length):
        return -1
    # what is decoded plainly, or damaged
    if body_length > 0 and flags & 1:
        return -1
    if body_length > 0 and crc32(tables, at + fixed, body_length) & 0x7FFFFFFF != load_be32(at + 8):
        return -1
    if record_differs(tables, at, size, properties_length):
        return -1
    # whether it is inside the bounds
    queue_offset = load_be64(at + 20)
    physical_offset = load_be64(at + 28)
    born_ms = load_be64(at + 40)
    store_ms = load_be64(at + 48 + born_host)
    is_wanted = (
        load_i64(bounds) <= queue_offset <= load_i64(bounds + 8)
        and load_i64(bounds + 16) <= physical_offset <= load_i64(bounds + 24)
        and load_i64(bounds + 32) <= store_ms <= load_i64(bounds + 40)
        and load_i64(bounds + 48) <= born_ms <= load_i64(bounds + 56)
    )
    if not is_wanted:
        return row
    # the columns that are wanted
    if not _put_properties(out, row, properties_at, properties_length):
        return -1
    if load_i64(out + _BODY):
        _put(out, _BODY, row, at + fixed, body_length)
    if load_i64(out + _MESSAGE_ID):
        _put_message_id(out, row, at + 56 + born_host, store_host, at + 28)
    store_i32(load_i64(out + _TOPIC_NUMBER) + 4 * row, number)
    store_i32(load_i64(out + _QUEUE_ID) + 4 * row, load_be32(at + 12))
    _put_number(out, _QUEUE_OFFSET, row, queue_offset)
    _put_number(out, _PHYSICAL, row, physical_offset)
    _put_number(out, _STORE_MS, row, store_ms)
    _put_number(out, _BORN_MS, row, born_ms)
    _put_number(out, _SIZE, row, size)
    return row + 1


@called
def _take_between(taking, at, end, last_row, done):
    """Appends what lies in ``[at, end)`` up to the first record that is not for this, and returns where that is.

    The row, the offset in the queue behind the last record or filler, and how many fillers there were are read from
    ``done`` and written there.
    """
    row = load_i64(done)
    next_offset = load_i64(done + 16)
    fillers = load_i64(done + 40)
    while end - at >= FIXED_BYTES_V1 and row < last_row:
        size = load_be32(at)
        if size < FIXED_BYTES_V1 or size > end - at:
            break
        prefetch(at + 2 * size)
        if load_be32(at + 4) == MAGIC_FILLER:
            if not is_filler(at, size):
                break
            fillers += 1
        else:
            following = _take_record(taking, at, size, row)
            if following < 0:
                break
            row = following
        next_offset = load_be64(at + 20) + 1
        at += size
    store_i64(done, row)
    store_i64(done + 16, next_offset)
    store_i64(done + 40, fillers)
    return at


@struct_kernel("tables frame position end topic topic_length number bounds out row last_row done")
def take_frame(job):
    """Appends what lies in ``frame[position:end]`` up to the first record that is not for this.

    done: row, position, offset in the queue behind the last record or filler; the sixth: fillers.
    """
    tables, frame, position, end, topic, topic_length, number, bounds, out, row, last_row, done = load_fields(job, 12)
    store_i64(done, row)
    store_i64(done + 16, 0)
    store_i64(done + 40, 0)
    taking = (tables, topic, topic_length, number, bounds, out)
    stopped = _take_between(taking, frame + position, frame + end, last_row, done)
    store_i64(done + 8, stopped - frame)


@struct_kernel("tables data length runs count run position room topic topic_length number bounds out row last_row done")
def take_runs(job):
    """Appends what lies in runs of frames, from a position in one of them on.

    A run is (begin, end, begin of its frame, end of its frame) in ``data``, and no record is followed outside of it.
    Stops at the first record that is not for this, and before a run of which more is left than ``room`` bytes.

    done: row, position, offset in the queue behind the last record or filler, run, bytes, fillers. Where all runs were
    taken, the run is ``count``.
    """
    (
        tables, data, length, runs, count, run, position, room, topic, topic_length, number, bounds, out, row, last_row,
        done,
    ) = load_fields(job, 16)  # fmt: skip
    taking = (tables, topic, topic_length, number, bounds, out)
    added = 0
    store_i64(done, row)
    store_i64(done + 16, 0)
    store_i64(done + 40, 0)
    while run < count:
        place = runs + _RUN_BYTES * run
        end = load_i64(place + 8)
        if not 0 <= load_i64(place + 16) <= position <= end <= load_i64(place + 24) <= length:
            break
        if end - position > room - added:
            break
        stopped = _take_between(taking, data + position, data + end, last_row, done) - data
        added += stopped - position
        position = stopped
        if position < end:
            break
        run += 1
        if run < count:
            position = load_i64(runs + _RUN_BYTES * run)
    store_i64(done + 8, position)
    store_i64(done + 24, run)
    store_i64(done + 32, added)


@struct_kernel("tables units count log base limit room topic topic_length number bounds queue_id first out row done")
def take_units(job):
    """Appends the records of queue units, up to the first that is not for this; done: row, units, bytes.

    ``log`` is where the segment with the base offset ``base`` lies in memory, ``limit`` bytes long. Unless ``queue_id``
    is -1, a record is for this only if it has the size that its unit says, is of that queue, and, unless ``first`` is
    -1, has the queue offset that follows: ``first`` is that of the first unit.
    """
    (
        tables, units, count, log, base, limit, room, topic, topic_length, number, bounds, queue_id, first, out, row,
        done,
    ) = load_fields(job, 16)  # fmt: skip
    taking = (tables, topic, topic_length, number, bounds, out)
    taken = 0
    added = 0
    for i in range(count):
        # have a later record in the cache by then
        if i + _UNITS_AHEAD < count:
            ahead = log + load_be64(units + UNIT_BYTES * (i + _UNITS_AHEAD)) - base
            for line in range(_LINES_AHEAD):
                prefetch(ahead + 64 * line)
        # whether the unit leads to a record of the segment
        physical_offset = load_be64(units + UNIT_BYTES * i)
        position = physical_offset - base
        if physical_offset < base or position > limit - FIXED_BYTES_V1:
            break
        at = log + position
        size = load_be32(at)
        if size < FIXED_BYTES_V1 or size > limit - position or size > room - added:
            break
        if load_be64(at + 28) != physical_offset:
            break
        # whether that is the queue's
        if queue_id >= 0:
            if load_be32(at + 12) != queue_id or size != load_be32(units + UNIT_BYTES * i + 8):
                break
            if first >= 0 and load_be64(at + 20) != first + i:
                break
        # its columns
        following = _take_record(taking, at, size, row)
        if following < 0:
            break
        row = following
        taken += 1
        added += size
    store_i64(done, row)
    store_i64(done + 8, taken)
    store_i64(done + 16, added)
