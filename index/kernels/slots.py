"""Lays chained items out slot by slot, compares the result with the items by number, and sums up its pages.

``tests.support.oracles.plain_index`` is the oracle of the items, ``zlib`` that of the page checksums. Field positions
come from ``ItemLayout.kernel_offsets``, as in ``index.kernels.chains``. Nothing read from a file is used before it was
checked.
"""

from __future__ import annotations

from typing import Any

from tierlog.tiering.kernels.checksum import continued_crc32
from tierlog.tiering.kernels.primitives import (
    called,
    copy_short,
    inlined,
    int64,
    kernel,
    load_be32,
    load_i32,
    load_i64,
    load_u32,
    prefetch,
    same_bytes,
    store_be32,
    store_i32,
    store_i64,
    uint32,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

CORRUPT = -1

#: Chains walked side by side: enough for each item to have arrived when its turn comes.
GROUP = 64
#: Items of a chain that are collected before any is copied; a longer chain is walked alone.
ROUNDS = 32
#: Of each chain of a group how many items were collected, later the place of its first one; the chains that go on, each
#: with the number of its next item; chain, round and number of each item collected.
GATHER_SCRATCH_BYTES = GROUP * (16 + 8 * ROUNDS)
#: Items between the step that asks for one and the one that compares it.
_AHEAD = 16
_PREVIOUS_BYTES = 4
#: ``index.format.trailer.PAGE_BYTES``.
_PAGE_BYTES = 4096

#: Where chained items lie: the address of number 0, bytes of an item, slots, and positions of hash and previous in it.
Chains = tuple[int, int, int, int, int]


@inlined
def _copy_item(target, item, before, after):
    """Copies an item without its ``previous``, which has ``before`` bytes in front of it and ``after`` behind."""
    copy_short(target, item, before)
    copy_short(target + before, item + before + _PREVIOUS_BYTES, after)


@inlined
def _is_of_slot(low, slot, slots):
    """Whether an item with this hash belongs to the slot; a division of 32 bits takes less than one of 64."""
    return low >= 0 and int64(uint32(low) % uint32(slots)) == slot


@inlined
def _ask_for(item, item_bytes):
    prefetch(item)
    prefetch(item + item_bytes - 1)


@called
def _previous_of(chains: Chains, number: int, slot: int) -> Any:
    """Returns the number that follows in the chain of ``slot``, 0 at its end, or CORRUPT."""
    items, item_bytes, slots, hash_at, previous_at = chains
    item = items + item_bytes * number
    if not _is_of_slot(load_be32(item + hash_at), slot, slots):
        return int64(CORRUPT)
    previous = load_be32(item + previous_at)
    return previous if 0 <= previous < number else int64(CORRUPT)


@called
def _follow(chains: Chains, number: int, slot: int, room: tuple[int, int], taken: int) -> Any:
    """Copies a chain from ``number`` on while there is room; returns the next number or CORRUPT, and the new target.

    ``room`` is (target, end); the numbers go to ``taken``.
    """
    items, item_bytes, _slots, _hash_at, previous_at = chains
    target, end = room
    width = item_bytes - _PREVIOUS_BYTES
    while number > 0 and target + width <= end:
        item = items + item_bytes * number
        store_i32(taken, number)
        taken += 4
        number = _previous_of(chains, number, slot)
        _copy_item(target, item, previous_at, width - previous_at)
        target += width
    return number, target


@struct_kernel("file file_bytes slots count offsets slot_end")
def count_below(job: int) -> Any:
    """Returns how many of the chained items have a hash of a slot below ``slot_end``, or CORRUPT."""
    file, file_bytes, slots, count, offsets, slot_end = load_fields(job, 6)
    hash_at = load_i64(offsets)
    item_bytes = load_i64(offsets + 64)
    item = file + 28 + 8 * slots
    end = item + item_bytes * (count + 1)
    if slots < 1 or count < 0 or end > file + file_bytes:
        return int64(CORRUPT)
    found = int64(0)
    for number in range(1, count + 1):
        found += int64(uint32(load_be32(item + item_bytes * number + hash_at)) % uint32(slots)) < slot_end
    return found


@struct_kernel("file file_bytes slots count offsets state scratch table table_slots out out_bytes taken")
def gather_slots(job: int) -> Any:
    """Continues laying out chains in slot order: compacted items to ``out``, compacted slots to ``table``.

    The numbers of the items (int32) go to ``taken``, in the same order.

    ``state`` (int64 each) is the next slot, the number of its next item (0 = not begun), the position in the compacted
    file where that slot's items begin, and the position that comes next; at the start the first slot, 0 and twice the
    position of its first item. Ends when all slots, ``table_slots`` of them or as many items as ``out`` takes are done:
    at least one if ``out`` takes ``ROUNDS`` items. Returns the bytes written to ``out``, or CORRUPT for a chain whose
    numbers do not fall or leave ``1..count``, and for an item that is not of its slot.
    """
    (
        file, file_bytes, slots, count, offsets, state, scratch, table, table_slots, out, out_bytes, taken,
    ) = load_fields(job, 12)  # fmt: skip
    hash_at = load_i64(offsets)
    previous_at = load_i64(offsets + 48)
    item_bytes = load_i64(offsets + 64)
    width = item_bytes - _PREVIOUS_BYTES
    items = file + 28 + 8 * slots
    chains = (items, item_bytes, slots, hash_at, previous_at)
    first = load_i64(state)
    number = load_i64(state + 8)
    start = load_i64(state + 16)
    shift = load_i64(state + 24) - out
    if (
        slots < 1
        or count < 0
        or 28 + 8 * slots + item_bytes * (count + 1) > file_bytes
        or number < 0
        or number > count
        or first < 0
    ):
        return int64(CORRUPT)
    alive = scratch + 8 * GROUP
    log = scratch + 16 * GROUP
    slot = first
    target = out
    end = out + out_bytes
    while slot < slots and slot - first < table_slots:
        if number > 0:  # a long chain, or one left over from a full ``out``
            number, target = _follow(chains, number, slot, (target, end), taken + 4 * ((target - out) // width))
            if number < 0:
                return int64(CORRUPT)
            if number > 0:
                break
            store_be32(table + 8 * (slot - first), start)
            store_be32(table + 8 * (slot - first) + 4, target + shift - start)
            slot += 1
            continue
        if end - target < ROUNDS * width:
            break
        group = min(min(int64(GROUP), slots - slot), table_slots - (slot - first))
        live = int64(0)
        for k in range(group):
            prefetch(file + 28 + 8 * (slot + group + k))
            next = load_be32(file + 28 + 8 * (slot + k))
            if next < 0 or next > count:
                return int64(CORRUPT)
            _ask_for(items + item_bytes * next, item_bytes)
            store_i64(scratch + 8 * k, 0)
            store_i64(alive + 8 * live, k << 32 | next)
            live += next > 0
        logged = log
        round = int64(0)
        while live > 0 and round < ROUNDS:
            going = int64(0)
            for place in range(live):
                entry = load_i64(alive + 8 * place)
                k = entry >> 32
                here = entry & 0xFFFFFFFF
                next = _previous_of(chains, here, slot + k)
                if next < 0:
                    return int64(CORRUPT)
                _ask_for(items + item_bytes * next, item_bytes)
                store_i64(logged, k << 48 | round << 32 | here)
                logged += 8
                store_i64(scratch + 8 * k, round + 1)
                store_i64(alive + 8 * going, k << 32 | next)
                going += next > 0
            live = going
            round += 1
        for place in range(live):  # longer than the rounds: walked alone, from its first item on
            store_i64(scratch + 8 * (load_i64(alive + 8 * place) >> 32), -1)
        whole = int64(0)
        placed = (target - out) // width
        while whole < group:
            collected = load_i64(scratch + 8 * whole)
            start = out + width * placed + shift
            if collected < 0:
                number = load_be32(file + 28 + 8 * (slot + whole))
                break
            if out + width * (placed + collected) > end:
                break  # those before it took its room: it begins anew
            store_be32(table + 8 * (slot + whole - first), start)
            store_be32(table + 8 * (slot + whole - first) + 4, width * collected)
            store_i64(scratch + 8 * whole, placed)
            placed += collected
            whole += 1
        while log < logged:
            logged -= 8
            entry = load_i64(logged)
            k = entry >> 48
            if k < whole:
                place = load_i64(scratch + 8 * k) + (entry >> 32 & 0xFFFF)
                here = entry & 0xFFFFFFFF
                store_i32(taken + 4 * place, here)
                _copy_item(out + width * place, items + item_bytes * here, previous_at, width - previous_at)
        target = out + width * placed
        slot += whole
    store_i64(state, slot)
    store_i64(state + 8, number)
    store_i64(state + 16, start)
    store_i64(state + 24, target + shift)
    return target - out


@struct_kernel(
    "chained chained_bytes slots count offsets compacted compacted_bytes numbers number_count slot_end state"
)
def compare_slots(job: int) -> Any:
    """Continues comparing: the next items of a compacted file, and its slots below ``slot_end``, which end among them.

    ``numbers`` (int32) says which of the chained items ``1..count`` each of the next items is. It is not trusted: each
    item has to be equal to that one but for ``previous``, to be in the slot of its hash, and to have a lower number
    than the one before it in that slot. So no item comes twice, and where ``count`` items came all of them did.

    ``state`` (int64 each) is the slot that comes next, the place of its first item, the number that the next one has to
    be below, the place that comes next, and how many slots had items; at the start the first slot, its place,
    ``count + 1``, its place again, 0. Returns 0, or -1 - the slot that differs.
    """
    (
        chained, chained_bytes, slots, count, offsets, compacted, compacted_bytes, numbers, number_count, slot_end,
        state,
    ) = load_fields(job, 11)  # fmt: skip
    hash_at = load_i64(offsets)
    previous_at = load_i64(offsets + 48)
    item_bytes = load_i64(offsets + 64)
    width = item_bytes - _PREVIOUS_BYTES
    after = width - previous_at
    first = 28 + 8 * slots
    slot = load_i64(state)
    start = load_i64(state + 8)
    above = load_i64(state + 16)
    place = load_i64(state + 24)
    used = load_i64(state + 32)
    stop = place + number_count
    # nothing outside the two files, and a state that can be
    if (
        slots < 1
        or first + item_bytes * (count + 1) > chained_bytes
        or first + width * count > compacted_bytes
        or slot < 0
        or slot > slot_end
        or slot_end > slots
        or place < 0
        or number_count < 0
        or stop > count
        or above > count + 1
    ):
        return int64(-1)
    items = chained + first
    while True:
        # where the slot's items end; one that goes on in a later call ends there
        end = stop
        if slot < slot_end:
            length = load_be32(compacted + 28 + 8 * slot + 4)
            end = start + length // width
            if (
                length < 0
                or load_be32(compacted + 28 + 8 * slot) != first + width * start
                or length != width * (end - start)
                or end < place
                or end > stop
            ):
                return -1 - slot
        elif slot == slots and place < stop:
            return -1 - slot
        # each item of the slot against the chained one of its number
        while place < end:
            number = load_i32(numbers)
            numbers += 4
            if place + _AHEAD < stop:
                _ask_for(items + item_bytes * load_i32(numbers + 4 * _AHEAD - 4), item_bytes)
            if number < 1 or number >= above:
                return -1 - slot
            item = items + item_bytes * number
            target = compacted + first + width * place
            if (
                not _is_of_slot(load_be32(item + hash_at), slot, slots)
                or not same_bytes(item, target, previous_at)
                or not same_bytes(item + previous_at + _PREVIOUS_BYTES, target + previous_at, after)
            ):
                return -1 - slot
            above = number
            place += 1
        if slot == slot_end:
            break
        used += end > start
        slot += 1
        start = end
        above = count + 1
    store_i64(state, slot)
    store_i64(state + 8, start)
    store_i64(state + 16, above)
    store_i64(state + 24, place)
    store_i64(state + 32, used)
    return int64(0)


@kernel
def add_to_pages(tables, sums, position, data, length):
    """Continues the checksums (uint32, by page) of the bytes from ``position`` on; 0 is that of no bytes."""
    end = position + length
    while position < end:
        page = position // _PAGE_BYTES
        taken = min(end, (page + 1) * _PAGE_BYTES) - position
        store_i32(sums + 4 * page, continued_crc32(tables, data, taken, load_u32(sums + 4 * page)))
        position += taken
        data += taken
    return int64(0)
