"""A set of intervals in versions: what is swapped in later changes nothing for a reader of a version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

from index.interval_skip_list import Holder, IntervalSkipList, Node, Tenure
from tiering.randomness import Randomness

T = TypeVar("T")


class VersionedIntervals(Generic[T]):
    """Versions of a set, one made after the other: :meth:`begin`, then additions and removals, then :meth:`publish`.

    A version can be read while it is the newest, and as long as it is pinned. What no such version holds leaves the
    list. The owner holds a lock for everything but :meth:`overlapping`, which needs none.
    """

    def __init__(self, randomness: Randomness) -> None:
        self._list: IntervalSkipList[T] = IntervalSkipList(randomness)
        self._pins: Counter[int] = Counter()
        self._leaving: list[tuple[Tenure, Node[T]]] = []
        #: The version last published.
        self.newest = 0

    def __len__(self) -> int:
        """Nodes in memory."""
        return len(self._list)

    def overlapping(self, version: int, from_ms: int, to_ms: int) -> Iterator[Node[T]]:
        """Nodes of a pinned version with any instant in ``[from_ms, to_ms)``, by their least times."""
        return self._list.overlapping(version, from_ms, to_ms)

    # versions

    def pin(self, version: int) -> int:
        """Keep a version, the newest or one that is pinned already, until it is unpinned as often."""
        assert version == self.newest or self._pins[version]
        self._pins[version] += 1
        return version

    def unpin(self, version: int) -> bool:
        """Undo one :meth:`pin`; whether the version has gone with it, and what only it held."""
        self._pins[version] -= 1
        if self._pins[version]:
            return False
        del self._pins[version]
        if version == self.newest:
            return False
        self._drop_unneeded()
        return True

    def is_needed(self, tenure: Tenure) -> bool:
        """Whether a version that can be read lies in a tenure."""
        return tenure.holds(self.newest) or any(map(tenure.holds, self._pins))

    def begin(self) -> int:
        """The number of the version to be made."""
        return self.newest + 1

    def add(self, low: int, high: int, value: T, rank: int = 0) -> Node[T]:
        """An interval that the version to be made holds."""
        return self._list.insert(low, high, value, Tenure(self.begin()), rank)

    def remove(self, node: Node[T]) -> None:
        """What :meth:`add` gave is not in the version to be made."""
        tenure = node.tenure
        assert isinstance(tenure, Tenure)
        tenure.removed = self.begin()
        self._leaving.append((tenure, node))

    def publish(self) -> int:
        """Make what was changed since :meth:`begin` the newest version, all at once."""
        self.newest += 1
        self._drop_unneeded()
        return self.newest

    def _drop_unneeded(self) -> None:
        leaving, self._leaving = self._leaving, []
        for tenure, node in leaving:
            if self.is_needed(tenure):
                self._leaving.append((tenure, node))
            else:
                self._list.unlink(node)

    # what others decide on

    def insert(self, low: int, high: int, value: T, holder: Holder, rank: int = 0) -> Node[T]:
        """An interval that ``holder`` says the versions of, in which it may be already while they are read."""
        return self._list.insert(low, high, value, holder, rank)

    def unlink(self, node: Node[T]) -> None:
        """Take out what :meth:`insert` gave and no version that can be read holds."""
        self._list.unlink(node)

    def problems(self) -> list[str]:
        """See :meth:`IntervalSkipList.problems`."""
        return self._list.problems()
