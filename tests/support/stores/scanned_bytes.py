"""Counts the bytes of log that a dispatcher scans: what opening a store costs, without a clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tierlog.tiering.hot.dispatch as dispatch
from tierlog.tiering.kernels.scan import ScanResult, scan


@dataclass
class Scans:
    """Half-open physical ranges in the order they were scanned."""

    ranges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """All of them together."""
        return sum(end - start for start, end in self.ranges)


@contextlib.contextmanager
def counting_scans() -> Iterator[Scans]:
    """Inside the context, note what every dispatcher of this process scans; the scan itself stays as it is."""
    scans = Scans()
    module = vars(dispatch)

    def counted(data: Any, position: int, limit: int, base_offset: int, *args: Any, **kwargs: Any) -> ScanResult:
        found = scan(data, position, limit, base_offset, *args, **kwargs)
        scans.ranges.append((base_offset + position, base_offset + found.position))
        return found

    module["scan"] = counted
    try:
        yield scans
    finally:
        module["scan"] = scan
