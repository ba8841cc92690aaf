"""Numbers that count how often they are compared: the cost of a search without a clock."""

from __future__ import annotations


class Counted(int):
    """A time of the range that is asked for; each link, node or entry that is looked at is compared with it."""

    comparisons = 0

    def __add__(self, other: int) -> Counted:
        return Counted(int(self) + other)

    def __sub__(self, other: int) -> Counted:
        return Counted(int(self) - other)

    def __neg__(self) -> Counted:
        return Counted(-int(self))

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) > other

    def __le__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) <= other

    def __ge__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) >= other
