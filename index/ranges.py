"""Half-open physical ranges."""

from __future__ import annotations

from collections.abc import Iterable


def uncovered(covered: Iterable[tuple[int, int]], first: int, end: int) -> list[tuple[int, int]]:
    """The parts of ``[first, end)`` that none of the ranges ``covered`` touches, ascending."""
    missing = []
    for start, stop in sorted(covered):
        if first >= end:
            break
        if start > first:
            missing.append((first, min(start, end)))
        first = max(first, stop)
    if first < end:
        missing.append((first, end))
    return missing
