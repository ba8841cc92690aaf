"""Looks up many keys at once: in index files, and the records of a mapped log that have them.

Whatever is read at random is asked for ahead: the slots of all keys, then their first items, then records and next
items, a round of all keys each. Field positions come from the item layout. Nothing read from a file or a log is used
before it was checked. ``tests.support.oracles.plain_index`` is the oracle of the items, the search by one key that of
the records.
"""

from __future__ import annotations

import numpy as np

from tierlog.tiering.kernels.checksum import crc32
from tierlog.tiering.kernels.mapped_log import has_key, is_damaged, record_place, record_spans
from tierlog.tiering.kernels.primitives import (
    called,
    copy,
    inlined,
    int64,
    kernel,
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
from tierlog.tiering.kernels.text import java_hash, key_hash, xxh32

#: A chain or a slot that no writer leaves behind, or a page that has another checksum than when it was written.
CORRUPT = -1
#: An index that points to what is no record, or to a record whose checksum differs.
DAMAGED = -2
#: Keys that are not inside the bytes given.
BAD_KEYS = -3

#: An index file as kernels take it: int64 each. Items are numbered from 1 in both forms, and ``items`` is where
#: number 0 would be; the maker of a row has checked that slots and ``count`` items are inside the file. ``checked`` has
#: a byte for each page (``index.format.trailer``) of the ``page_bytes`` from ``begin`` on, 1 once it was
#: compared with its checksum, which is in ``checksums``; 0 as address: there is nothing to compare. ``tables`` are the
#: CRC's.
FILE = np.dtype(
    [
        (name, "<i8")
        for name in (
            "is_chained", "slot_table", "slots", "items", "width", "count", "items_position", "hash_at", "high_at",
            "offset_at", "size_at", "previous_at", "checked", "begin", "page_bytes", "checksums", "tables",
        )
    ]
)  # fmt: skip
_FILE_BYTES = 136
assert FILE.itemsize == _FILE_BYTES
(
    _IS_CHAINED, _SLOT_TABLE, _SLOTS, _ITEMS, _WIDTH, _ITEM_COUNT, _ITEMS_POSITION, _HASH_AT, _HIGH_AT, _OFFSET_AT,
    _SIZE_AT, _PREVIOUS_AT, _CHECKED, _BEGIN, _PAGED_BYTES, _CHECKSUMS, _TABLES,
) = (8 * place for place in range(17))  # fmt: skip
#: ``index.format.trailer.PAGE_BYTES``.
_PAGE_SHIFT = 12

#: The places in which :func:`find_records` looks: int64 each. ``files`` has the newest first, ``log`` is a
#: ``tiering.kernels.mapped_log.LOG``; records lie in ``[border, end)``. ``prefix`` is the address of the topic and "#".
PLACE = np.dtype(
    [(name, "<i8") for name in ("files", "file_count", "log", "border", "end", "prefix", "prefix_bytes", "scratch")]
)
_FILES, _FILE_COUNT, _LOG, _BORDER, _END, _PREFIX, _PREFIX_BYTES, _SCRATCH = (8 * place for place in range(8))

#: Keys that are looked up side by side.
GROUP = 256
#: Of each key of a group: both hashes, the number of its next item and the last of its slot, how many records were
#: found, and address, room and physical offset of the record to look at.
_LOW, _HIGH, _NEXT, _LAST, _FOUND, _AT, _ROOM, _OFFSET = (8 * place for place in range(8))
_KEY_BYTES = 64
_LIST_BYTES = 4 * GROUP
#: The keys, three lists of their places, and a topic with a key.
SCRATCH_BYTES = _KEY_BYTES * GROUP + 3 * _LIST_BYTES + (1 << 17)
#: No message has a longer key.
LONGEST_KEY = (1 << 16) - 1
LONGEST_PREFIX = SCRATCH_BYTES - _KEY_BYTES * GROUP - 3 * _LIST_BYTES - LONGEST_KEY
#: Bytes of a record that are asked for ahead.
_AHEAD_BYTES = 512


@called
def _page_is_sound(file, page):
    """Verifies a page's checksum once; later look-ups trust the mark. Safe for concurrent threads."""
    start = page << _PAGE_SHIFT
    length = min(int64(1) << _PAGE_SHIFT, load_i64(file + _PAGED_BYTES) - start)
    wanted = load_be32(load_i64(file + _CHECKSUMS) + 4 * page) & 0xFFFFFFFF
    if crc32(load_i64(file + _TABLES), load_i64(file + _BEGIN) + start, length) != wanted:
        return False
    store_u8(load_i64(file + _CHECKED) + page, 1)
    return True


@called
def _are_sound(file, first, last):
    """Verifies pages that follow each other, as :func:`_page_is_sound` does one."""
    checked = load_i64(file + _CHECKED)
    while first <= last and (load_u8(checked + first) or _page_is_sound(file, first)):
        first += 1
    return first > last


@inlined
def _is_sound(file, at, length):
    """Whether the pages of some bytes are what was written, as far as there are checksums."""
    checked = load_i64(file + _CHECKED)
    if checked == 0:
        return True
    position = at - load_i64(file + _BEGIN)
    first = position >> _PAGE_SHIFT
    last = (position + length - 1) >> _PAGE_SHIFT
    if last - first <= 1 and load_u8(checked + first) & load_u8(checked + last):
        return True
    return _are_sound(file, first, last)


@called
def _slot(file, low):
    return load_i64(file + _SLOT_TABLE) + 8 * (low % load_i64(file + _SLOTS))


@called
def _first_item(file, low):
    """As :func:`_sound_first_item`, of bytes that nobody has compared with a checksum."""
    slot = _slot(file, low)
    count = load_i64(file + _ITEM_COUNT)
    number = load_be32(slot)
    if load_i64(file + _IS_CHAINED):
        return (number if 0 <= number <= count else int64(CORRUPT)), int64(0)
    position = number - load_i64(file + _ITEMS_POSITION)
    length = load_be32(slot + 4)
    width = load_i64(file + _WIDTH)
    before = position // width
    items = length // width
    if position < 0 or length < 0 or before * width != position or items * width != length or before + items > count:
        return int64(CORRUPT), int64(0)
    return (before + 1 if items > 0 else int64(0)), before + items


@called
def _item(file, number):
    return load_i64(file + _ITEMS) + load_i64(file + _WIDTH) * number


@called
def _sound_first_item(file, low):
    """The number of the first item in the slot of a hash, 0 if it is empty or CORRUPT; and of a run's last item."""
    if not _is_sound(file, _slot(file, low), 8):
        return int64(CORRUPT), int64(0)
    return _first_item(file, low)


@called
def _ask_for_item(file, number):
    item = _item(file, number)
    prefetch(item)
    prefetch(item + load_i64(file + _WIDTH) - 1)


@called
def _next_item(file, item, number, last):
    """Returns the number that follows, 0 at the end, or CORRUPT: numbers of a chain fall, so that it has an end."""
    if load_i64(file + _IS_CHAINED):
        previous = load_be32(item + load_i64(file + _PREVIOUS_AT))
        return previous if 0 <= previous < number else int64(CORRUPT)
    return number + 1 if number < last else int64(0)


@called
def _matches(file, item, low, high):
    """Whether an item has these hashes; ``high`` < 0 matches any."""
    if load_be32(item + load_i64(file + _HASH_AT)) != low:
        return False
    high_at = load_i64(file + _HIGH_AT)
    return high < 0 or high_at < 0 or load_be32(item + high_at) & 0xFFFFFFFF == high


@called
def _hash_key(topic_hash, text, prefix_bytes, key, length):
    """Returns both hashes of a key; ``text`` begins with the prefix, and the key is written behind it."""
    copy(text + prefix_bytes, key, length)
    return key_hash(java_hash(topic_hash, key, length)), xxh32(text, prefix_bytes + length)


@called
def _ask_for_record(at, size):
    """Prefetches the cache lines of a record that has ``size`` bytes by its item."""
    size = min(max(size, 128), _AHEAD_BYTES)
    for line in range(0, size, 64):
        prefetch(at + line)
    prefetch(at + size - 1)


@struct_kernel("prefix prefix_bytes keys keys_bytes ends count scratch out")
def hash_keys_of_topic(job):
    """Both hashes of each key, int64 each: ``prefix`` is the topic and "#". BAD_KEYS if one is not in the bytes."""
    prefix, prefix_bytes, keys, keys_bytes, ends, count, scratch, out = load_fields(job, 8)
    text = scratch + _KEY_BYTES * GROUP + 3 * _LIST_BYTES
    copy(text, prefix, prefix_bytes)
    topic_hash = java_hash(0, prefix, prefix_bytes)
    for number in range(count):
        start = load_i32(ends + 4 * number)
        length = load_i32(ends + 4 * number + 4) - start
        if start < 0 or length < 0 or length > LONGEST_KEY or start + length > keys_bytes:
            return BAD_KEYS
        low, high = _hash_key(topic_hash, text, prefix_bytes, keys + start, length)
        store_i64(out + 16 * number, low)
        store_i64(out + 16 * number + 8, high)
    return 0


@kernel
def find_slot(file, low, out):
    """The number of the first item in the slot of a hash, 0 if it is empty or CORRUPT, and of a run's last to ``out``.

    ``low`` is not negative.
    """
    first, last = _sound_first_item(file, low)
    store_i64(out, last)
    return first


@kernel
def offset_of_item(file, number):
    """The physical offset of an item, or CORRUPT; the number is one of the file."""
    item = _item(file, number)
    if not _is_sound(file, item, load_i64(file + _WIDTH)):
        return int64(CORRUPT)
    return load_be64(item + load_i64(file + _OFFSET_AT))


@struct_kernel("file low high state steps out capacity")
def walk_items(job):
    """Goes on through a file's items and takes those with both hashes, as they lie there; ``high`` < 0 matches any.

    ``state`` (int64 each) is the number of the next item, 0 at the end, that of the last one to be looked at, and by
    how much numbers change: 0 is along the chain, from an item of another slot to its neighbour below until one is of
    the slot. Ends after ``steps`` items and after ``capacity`` that were taken. Returns how many those are, or CORRUPT.
    """
    file, low, high, state, steps, out, capacity = load_fields(job, 7)
    width = load_i64(file + _WIDTH)
    slots = load_i64(file + _SLOTS)
    hash_at = load_i64(file + _HASH_AT)
    number = load_i64(state)
    last = load_i64(state + 8)
    change = load_i64(state + 16)
    if low < 0 or number > load_i64(file + _ITEM_COUNT):
        return int64(CORRUPT)
    slot = low % slots
    found = int64(0)
    while number > 0 and steps > 0 and found < capacity:
        item = _item(file, number)
        if not _is_sound(file, item, width):
            return int64(CORRUPT)
        if _matches(file, item, low, high):
            copy(out + width * found, item, width)
            found += 1
        if change != 0:
            number = int64(0) if number == last else number + change
        else:
            own = load_be32(item + hash_at)
            if own < 0:
                return int64(CORRUPT)
            following = _next_item(file, item, number, int64(0)) if own % slots == slot else number - 1
            if following < 0:
                return int64(CORRUPT)
            number = following if following >= last else int64(0)
        steps -= 1
    store_i64(state, number)
    return found


@kernel
def find_items_of_one(file, low, high, out, capacity):
    """Items of an index file with both hashes, newest first, as they lie in the file; ``high`` < 0 matches any.

    Returns how many there are, of which the first ``capacity`` are in ``out``, or CORRUPT.
    """
    if low < 0:
        return int64(CORRUPT)
    width = load_i64(file + _WIDTH)
    found = int64(0)
    number, last = _sound_first_item(file, low)
    if number > 0 and not _is_sound(file, _item(file, number), width * (last + 1 - number)):
        return int64(CORRUPT)
    while number > 0:
        item = _item(file, number)
        if _matches(file, item, low, high):
            if found < capacity:
                copy(out + width * found, item, width)
            found += 1
        number = _next_item(file, item, number, last)
    return found if number == 0 else int64(CORRUPT)


@kernel
def find_items(file, *, hashes, count, ends, out, capacity):
    """Finds items of ``count`` pairs of hashes (int64); ``ends`` gets where the items of each pair end in ``out``."""
    width = load_i64(file + _WIDTH)
    total = int64(0)
    for begin in range(0, count, GROUP):
        stop = min(begin + GROUP, count)
        for place in range(begin, stop):
            low = load_i64(hashes + 16 * place)
            if low < 0:
                return int64(CORRUPT)
            prefetch(_slot(file, low))
        for place in range(begin, stop):
            number, _last = _first_item(file, load_i64(hashes + 16 * place))
            if number > 0:
                _ask_for_item(file, number)
        for place in range(begin, stop):
            pair = hashes + 16 * place
            room = max(capacity - total, int64(0))
            found = find_items_of_one(file, load_i64(pair), load_i64(pair + 8), out + width * total, room)
            if found < 0:
                return int64(CORRUPT)
            total += found
            store_i64(ends + 8 * place, total)
    return total


@called
def _walk(place, file, live, live_count, checked):
    """Takes each live key one item further: those that go on stay in ``live``, those with a hit go to ``checked``.

    Returns how many each, or (CORRUPT, 0), or (DAMAGED, the physical offset).
    """
    scratch = load_i64(place + _SCRATCH)
    log = load_i64(place + _LOG)
    border = load_i64(place + _BORDER)
    end = load_i64(place + _END)
    size_at = load_i64(file + _SIZE_AT)
    going = int64(0)
    hits = int64(0)
    for at in range(live_count):
        number = load_i32(live + 4 * at)
        key = scratch + _KEY_BYTES * number
        here = load_i64(key + _NEXT)
        item = _item(file, here)
        if not _is_sound(file, item, load_i64(file + _WIDTH)):
            return int64(CORRUPT), int64(0)
        following = _next_item(file, item, here, load_i64(key + _LAST))
        if following < 0:
            return int64(CORRUPT), int64(0)
        store_i64(key + _NEXT, following)
        if following > 0:
            _ask_for_item(file, following)
            store_i32(live + 4 * going, number)
            going += 1
        if _matches(file, item, load_i64(key + _LOW), load_i64(key + _HIGH)):
            offset = load_be64(item + load_i64(file + _OFFSET_AT))
            if border <= offset < end:
                record, room = record_place(log, offset)
                if room == 0:
                    return int64(DAMAGED), offset
                _ask_for_record(record, load_be32(item + size_at) if size_at >= 0 else int64(_AHEAD_BYTES))
                store_i64(key + _AT, record)
                store_i64(key + _ROOM, room)
                store_i64(key + _OFFSET, offset)
                store_i32(checked + 4 * hits, number)
                hits += 1
    return going, hits


@struct_kernel("place keys keys_bytes ends count limit found result")
def find_records(job):
    """The newest ``limit`` records of each key: physical offsets to ``found``, newest first, -1 behind the last.

    Key ``number`` lies at ``ends[number]`` to ``ends[number + 1]`` (int32) of ``keys``. Each record is checked whole,
    checksums included, and its topic and key are compared. Returns how many were found, with the bytes of records,
    bodies and property texts in ``result``; CORRUPT with the number of the file, or DAMAGED with the offset, in
    ``result[0]``; or BAD_KEYS.
    """
    place, keys, keys_bytes, ends, count, limit, found, result = load_fields(job, 8)
    scratch = load_i64(place + _SCRATCH)
    log = load_i64(place + _LOG)
    prefix = load_i64(place + _PREFIX)
    prefix_bytes = load_i64(place + _PREFIX_BYTES)
    wanted = scratch + _KEY_BYTES * GROUP
    live = wanted + _LIST_BYTES
    checked = live + _LIST_BYTES
    text = checked + _LIST_BYTES
    copy(text, prefix, prefix_bytes)
    topic_hash = java_hash(0, prefix, prefix_bytes)
    total = int64(0)
    record_total = int64(0)
    body_total = int64(0)
    text_total = int64(0)
    for begin in range(0, count, GROUP):
        # hash the keys of the group
        wanted_count = int64(0)
        group_keys = min(int64(GROUP), count - begin)
        for number in range(group_keys):
            start = load_i32(ends + 4 * (begin + number))
            length = load_i32(ends + 4 * (begin + number) + 4) - start
            if start < 0 or length < 0 or start + length > keys_bytes:
                return int64(BAD_KEYS)
            for hit in range(limit):
                store_i64(found + 8 * ((begin + number) * limit + hit), -1)
            if 0 < length <= LONGEST_KEY:
                low, high = _hash_key(topic_hash, text, prefix_bytes, keys + start, length)
                key = scratch + _KEY_BYTES * number
                store_i64(key + _LOW, low)
                store_i64(key + _HIGH, high)
                store_i64(key + _FOUND, 0)
                store_i32(wanted + 4 * wanted_count, number)
                wanted_count += 1
        for file_number in range(load_i64(place + _FILE_COUNT)):
            # each key's slot in the file, and its first item
            file = load_i64(place + _FILES) + _FILE_BYTES * file_number
            for at in range(wanted_count):
                prefetch(_slot(file, load_i64(scratch + _KEY_BYTES * load_i32(wanted + 4 * at) + _LOW)))
            live_count = int64(0)
            for at in range(wanted_count):
                number = load_i32(wanted + 4 * at)
                key = scratch + _KEY_BYTES * number
                first, last = _sound_first_item(file, load_i64(key + _LOW))
                if first < 0:
                    store_i64(result, file_number)
                    return int64(CORRUPT)
                if first > 0:
                    _ask_for_item(file, first)
                    store_i64(key + _NEXT, first)
                    store_i64(key + _LAST, last)
                    store_i32(live + 4 * live_count, number)
                    live_count += 1
            # one item of each key's chain a round
            while live_count > 0:
                live_count, hits = _walk(place, file, live, live_count, checked)
                if live_count < 0:
                    store_i64(result, file_number if live_count == CORRUPT else hits)
                    return live_count
                # compare the records of the hits, and note those that have the key
                closed = False
                for at in range(hits):
                    number = load_i32(checked + 4 * at)
                    key = scratch + _KEY_BYTES * number
                    record = load_i64(key + _AT)
                    offset = load_i64(key + _OFFSET)
                    spans = record_spans(record, load_i64(key + _ROOM), offset)
                    size, _body, body_bytes, topic, topic_bytes, properties, properties_bytes = spans
                    if size == 0 or is_damaged(log, record, spans):
                        store_i64(result, offset)
                        return int64(DAMAGED)
                    start = load_i32(ends + 4 * (begin + number))
                    length = load_i32(ends + 4 * (begin + number) + 4) - start
                    if (
                        topic_bytes + 1 != prefix_bytes
                        or not same_bytes(topic, prefix, topic_bytes)
                        or not has_key(properties, properties_bytes, keys + start, length)
                    ):
                        continue
                    hit = load_i64(key + _FOUND)
                    store_i64(found + 8 * ((begin + number) * limit + hit), offset)
                    store_i64(key + _FOUND, hit + 1)
                    total += 1
                    record_total += size
                    body_total += body_bytes
                    text_total += properties_bytes
                    if hit + 1 == limit:
                        store_i64(key + _NEXT, 0)
                        closed = True
                if closed:
                    live_count = _keep(scratch, live, live_count, _NEXT, 0)
            # older files are asked only for keys that lack records
            wanted_count = _keep(scratch, wanted, wanted_count, _FOUND, limit)
    store_i64(result, record_total)
    store_i64(result + 8, body_total)
    store_i64(result + 16, text_total)
    return total


@called
def _keep(scratch, listed, count, field, unlike):
    """Keeps the keys of a list whose field is not this; returns how many."""
    kept = int64(0)
    for at in range(count):
        number = load_i32(listed + 4 * at)
        if load_i64(scratch + _KEY_BYTES * number + field) != unlike:
            store_i32(listed + 4 * kept, number)
            kept += 1
    return kept
