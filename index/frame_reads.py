"""Which frames of a segment are read together: as few requests as possible, and no more than may matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from index.work import Bounds
from tiering.format.sorted_segment import FramePlace
from tiering.types import Order

T = TypeVar("T")

_GAP_BYTES = 64 << 10
_READ_BYTES = 1 << 20
"""Compressed frames that are read together: as much as thirty-two such pieces may hold in memory at once."""


@dataclass(frozen=True, slots=True)
class FrameWant(Generic[T]):
    """A frame that is wanted: bounds of the times in it, how many results to expect, and what of it is wanted."""

    place: FramePlace
    bounds: Bounds
    expects: int
    items: Sequence[T]


def together(
    wants: Sequence[FrameWant[T]], order: Order, enough: int, is_kept: Callable[[FramePlace], bool]
) -> Iterator[list[FrameWant[T]]]:
    """Wants that are read together, each list by position: the first lists hold what comes first in the order.

    Frames follow each other until ``enough`` results are to be expected of them; of those, the kept ones are read
    together, and the others where they are neighbours, in pieces of bounded size.
    """
    newest = order is Order.NEWEST
    ordered = sorted(wants, key=lambda want: -want.bounds[1] if newest else want.bounds[0])
    start = expected = 0
    for number, want in enumerate(ordered):
        expected += want.expects
        if expected >= enough or number + 1 == len(ordered):
            yield from _neighbours(ordered[start : number + 1], is_kept)
            start, expected = number + 1, 0


def _neighbours(wants: list[FrameWant[T]], is_kept: Callable[[FramePlace], bool]) -> Iterator[list[FrameWant[T]]]:
    kept: list[FrameWant[T]] = []
    missing: list[FrameWant[T]] = []
    for want in wants:
        (kept if is_kept(want.place) else missing).append(want)
    yield from _bounded(kept)
    joined: list[FrameWant[T]] = []
    for want in sorted(missing, key=_position):
        if joined:
            end = joined[-1].place.position + joined[-1].place.length
            whole = want.place.position + want.place.length - joined[0].place.position
            if want.place.position - end > _GAP_BYTES or whole > _READ_BYTES:
                yield joined
                joined = []
        joined.append(want)
    if joined:
        yield joined


def _bounded(kept: list[FrameWant[T]]) -> Iterator[list[FrameWant[T]]]:
    group: list[FrameWant[T]] = []
    size = 0
    for want in kept:
        if group and size + want.place.length > _READ_BYTES:
            yield sorted(group, key=_position)
            group, size = [], 0
        group.append(want)
        size += want.place.length
    if group:
        yield sorted(group, key=_position)


def _position(want: FrameWant[T]) -> int:
    return want.place.position


def bounds_of(wants: Sequence[FrameWant[T]]) -> Bounds:
    """Bounds of all of them."""
    return min(want.bounds[0] for want in wants), max(want.bounds[1] for want in wants)
