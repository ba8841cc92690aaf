"""Slots and items of an index file that does not hold them: given, remembered, or worked out from its length."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierlog.service.dump.result import DumpOptions
from tierlog.service.dump.source import Source
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError

#: Slots and items of a file, item 0 included.
Capacity = tuple[int, int]

#: RocketMQ's and our defaults.
_DEFAULT = (5_000_000, 20_000_000)
#: Most settings keep the proportion of the defaults.
_ITEMS_PER_SLOT = 4
_MOST_JSON_BYTES = 1 << 20
#: Slots in use whose items are compared before a supposed capacity is believed.
_LOOKED_AT = 1_000
#: Slots of chained files of the tiered layout have room for the second number of compacted ones.
_LONG_SLOT = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes in bytes of the parts of a file whose items are chained."""

    header: int
    slot: int
    item: int
    trailer: int = 0


def chained_capacity(
    source: Source,
    shape: Shape,
    *,
    used_slots: int,
    count: int,
    options: DumpOptions,
    known: Iterable[Capacity | None] = (),
) -> Capacity:
    """Finds the capacity of a file with ``count`` items in ``used_slots`` slots.

    Raises :class:`InvalidRequestError` if it has to be asked for or does not fit the file's length.
    """
    body = source.size - shape.header - shape.trailer
    if options.slots is not None or options.items is not None:
        slots = (body - shape.item * (options.items or 0)) // shape.slot if options.slots is None else options.slots
        items = (body - shape.slot * slots) // shape.item
        if not _fits((slots, items), shape, body) or options.items not in (None, items):
            asked = {"slots": options.slots, "items": options.items}
            given = " and ".join(f"{number} {name}" for name, number in asked.items() if number is not None)
            raise InvalidRequestError(f"{given} do not make a file of {source.size} bytes", path=source.name)
        return slots, items
    for found in (*known, _DEFAULT):
        if found is not None and _fits(found, shape, body):
            return found
    full = ((body - shape.item * (count + 1)) // shape.slot, count + 1)
    slots = body // (shape.slot + _ITEMS_PER_SLOT * shape.item)
    for candidate in (full, (slots, _ITEMS_PER_SLOT * slots)):
        if _fits(candidate, shape, body) and _agrees(source, shape, candidate, used_slots, count):
            return candidate
    raise InvalidRequestError(
        "how many slots and items this index file has is not in it, and its length leaves it open",
        path=source.name, hint="give --slots or --items",
    )  # fmt: skip


def _fits(capacity: Capacity, shape: Shape, body: int) -> bool:
    slots, items = capacity
    return slots >= 1 and items >= 2 and shape.slot * slots + shape.item * items == body


def _agrees(source: Source, shape: Shape, capacity: Capacity, used_slots: int, count: int) -> bool:
    """Whether the slots of a supposed capacity look like slots.

    As many are in use as the header says, none points beyond the items, and the items they point at belong there.
    """
    slots, items = capacity
    heads = slot_heads(source, shape, slots)
    in_use = np.flatnonzero(heads)
    if count >= items or len(in_use) not in (used_slots, count) or (len(in_use) and heads.max() > count):
        return False
    items_at = shape.header + shape.slot * slots
    if count > 0 and not source.array(items_at + shape.item * count, items_at + shape.item * (count + 1)).any():
        return False
    for slot in in_use[:_LOOKED_AT].tolist():
        at = items_at + shape.item * int(heads[slot])
        if int.from_bytes(source.read(at, at + 4), "big") % slots != slot:
            return False
    return True


def slot_heads(source: Source, shape: Shape, slots: int) -> NDArray[np.int32]:
    """Returns the first int32 of every slot."""
    data = source.array(shape.header, shape.header + shape.slot * slots)
    rest = [("rest", ">i4")] if shape.slot == _LONG_SLOT else []
    heads: NDArray[np.int32] = data.view(np.dtype([("item", ">i4"), *rest]))["item"]
    return heads


def remembered(source: Source, file: str, keys: Sequence[str | int], up: int) -> dict[str, Any] | None:
    """Reads the object at ``keys`` of ``tierlog/<file>`` in the store of a local file, ``up`` folders above it."""
    if source.path is None or len(source.path.parents) <= up:
        return None
    try:
        with (source.path.parents[up] / "tierlog" / file).open("rb") as opened:
            found = json.loads(opened.read(_MOST_JSON_BYTES))
        for key in keys:
            found = found[key]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def whole_number(entry: dict[str, Any] | None, name: str) -> int:
    """Returns a number of a remembered object, 0 if there is none."""
    value = entry.get(name) if entry else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def checked_header(size: int, needed: int) -> None:
    """Refuses a file that is shorter than its header."""
    if size < needed:
        raise CorruptionError(f"{size} bytes are no header of an index file")
