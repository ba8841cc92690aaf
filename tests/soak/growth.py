"""Resident memory of a service over time, and whether it grows.

**The rule.** Looked at is the part of a soak without kills, since a process that was just started grows by what it
reads for the first time. Its first third is warm-up. Memory does not grow if the median of the last third is above that
of the middle third by a twentieth at most. So a leak of a twentieth in a third of that time is found, and what one
merge or one long answer takes for a moment is not mistaken for one. A part that is shorter than `LEAST_S` says nothing.

Thirds are of the time, or of the bytes that were taken in where their speed varies with the machine: what leaks does so
with each message, and a service that has more to do works with more memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Caches of a service fill within the first third of this.
LEAST_S = 300.0
MOST_RATIO = 1.05


@dataclass(frozen=True)
class Growth:
    """Medians in MiB of the middle and of the last third."""

    middle: float
    last: float

    @property
    def ratio(self) -> float:
        """1 if memory stayed as it was."""
        return self.last / self.middle

    @property
    def is_within(self) -> bool:
        """Whether memory does not grow."""
        return self.ratio <= MOST_RATIO


def growth(course: Sequence[float], resident_mib: Sequence[float], least: float = LEAST_S) -> Growth | None:
    """By the rule, of samples of the part without kills; None if that is too short, or has no sample in its middle.

    ``course`` is how far it was at each sample, in seconds or in bytes, of which there have to be ``least``.
    """
    if not course or course[-1] - course[0] < least:
        return None
    third = (course[-1] - course[0]) / 3
    middle, last = course[0] + third, course[0] + 2 * third
    samples = list(zip(course, resident_mib, strict=True))
    of_middle = [mib for at, mib in samples if middle <= at < last]
    of_last = [mib for at, mib in samples if at >= last]
    return Growth(statistics.median(of_middle), statistics.median(of_last)) if of_middle else None


def resident_mib(pid: int) -> float:
    """Anonymous resident memory of a process: mapped files do not count, they are the kernel's to drop."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has ended")
