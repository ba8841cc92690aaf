"""An ordered list of time intervals that answers "which of them overlap [from, to)" without looking at the others.

A skip list (W. Pugh, 1990) ordered by the least time, whose links also carry the greatest time of the span they jump
over, as the nodes of an augmented search tree do (Cormen et al., "Interval trees"). A reader that stands on a node
takes the longest link whose span ends too early, and else the next node. It visits O(log n) nodes before the first
answer and O(log d) between two answers that are d nodes apart; answers that begin inside the range are neighbours. So
the cost is O(log n + answers), but for long intervals strewn among short ones, each of which costs the logarithm of
its distance from the next.

**Versions.** A node has a tenure, which says at which versions it is in the list; what a reader sees is the set of its
version, whatever is swapped in meanwhile. :class:`VersionedIntervals` makes the versions, one after the other.

**Threads.** One writer at a time, readers beside it without locks. CPython reads and writes a reference or a list's
item at once; free threading is not promised. What readers rely on, at every instant:

* A link and the greatest time of its span are one immutable pair, so that a reader never jumps with the maximum of
  another span. The maximum is at least that of every node linked inside the span: maxima are raised, from the top
  down, before a node is linked, and lowered only after one was unlinked, from the bottom up.
* A node's own links are complete before it becomes reachable, on the bottom level first. It is unlinked from the top
  down, and keeps its links for whoever stands on it: they lead to everything that lay behind it at that time.
* Nodes are not linked again. One that is linked while a reader is under way is of no matter to it, being of a later
  version, unless a node in front of it that the reader has to pass (``rank``) stood for it; see
  :class:`index.objects.catalogue.IndexCatalogue`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from tierlog.tiering.base.randomness import Randomness

T = TypeVar("T")

NEVER = 1 << 63
_BEFORE_ALL = -1 << 80
_MAX_LEVELS = 16
_DRAWN_BYTES = 128
_RANK_SHIFT = 56


class VersionSet(Protocol):
    """The set of versions at which an entry is in the list."""

    def holds(self, version: int) -> bool:
        """Whether readers of this version see it."""
        ...


class Tenure:
    """The versions ``[added, removed)``."""

    __slots__ = ("added", "removed")

    def __init__(self, added: int) -> None:
        self.added = added
        self.removed = NEVER

    def holds(self, version: int) -> bool:
        """Whether readers of this version see what has this tenure."""
        return self.added <= version < self.removed


class Node(Generic[T]):
    """An inclusive interval ``[low, high]`` with what it stands for."""

    __slots__ = ("high", "low", "next", "place", "tenure", "upper", "value")

    def __init__(self, low: int, high: int, value: T, tenure: VersionSet, place: int) -> None:
        self.low = low
        self.high = high
        self.value = value
        self.tenure = tenure
        self.place = place
        """Order among equal least times."""
        self.next: Node[T] | None = None
        self.upper: list[_Link[T]] = _NO_LINKS
        """From level 1 up: where the link leads, and the greatest time from this node to there, exclusive."""


_Link = tuple[Node[T] | None, int]
_NO_LINKS: list[Any] = []
"""Of the three nodes in four that are on the bottom level only; never written."""


class IntervalSkipList(Generic[T]):
    """Intervals by least time, then rank, then order of insertion. See the module for cost and threads."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._bits = self._bit_count = 0
        self._inserted = 0
        self._size = 0
        self._upper: list[_Link[T]] = []
        # the head holds nothing: a value of T it never has, a tenure that nobody asks for
        self._head: Node[T] = Node(_BEFORE_ALL, _BEFORE_ALL, None, Tenure(NEVER), 0)  # type: ignore[arg-type]
        self._head.upper = self._upper

    def __len__(self) -> int:
        return self._size

    # ------------------------------------------------------------------------------------------------- reading

    def overlapping(self, version: int, from_ms: int, to_ms: int) -> Iterator[Node[T]]:
        """Nodes with any instant in ``[from_ms, to_ms)``, in order, that readers of ``version`` see.

        The version must be pinned as long as this is read. Whether a node is seen is asked when it is reached.
        """
        node: Node[T] | None = self._head
        seen: VersionSet | None = None  # what a pinned version sees it goes on seeing
        while node is not None and node.low < to_ms:
            if node.high >= from_ms:  # and so does every span that begins here
                versions = node.tenure
                if versions is seen or versions.holds(version):
                    seen = versions
                    yield node
                node = node.next
                continue
            for following, greatest in reversed(node.upper):
                if greatest < from_ms:
                    node = following
                    break
            else:
                node = node.next

    # ------------------------------------------------------------------------------------------------- writing

    def insert(self, low: int, high: int, value: T, tenure: VersionSet, rank: int = 0) -> Node[T]:
        """Adds an interval; of those with an equal least time lower ranks come first."""
        self._inserted += 1
        self._size += 1
        node = Node(low, high, value, tenure, rank << _RANK_SHIFT | self._inserted)
        levels = self._levels()
        while len(self._upper) < levels:
            self._upper.append((None, self._greatest(self._head, len(self._upper), None)))
        before = self._before(node)
        self._raise(before, high)
        node.next = before[0].next
        if levels:
            node.upper = []
        for level in range(levels):
            end = before[level + 1].upper[level][0]
            node.upper.append((end, self._greatest(node, level, end)))
        before[0].next = node
        for level in range(levels):
            at = before[level + 1]
            _relink(at, level, node, self._greatest(at, level, node))
        return node

    def unlink(self, node: Node[T]) -> None:
        """Takes a node out that no reader needs any more; it must be in the list."""
        before = self._before(node)
        assert before[0].next is node, "the node is not in the list"
        self._size -= 1
        for level in range(len(node.upper) - 1, -1, -1):
            at, (following, greatest) = before[level + 1], node.upper[level]
            _relink(at, level, following, max(at.upper[level][1], greatest))
        before[0].next = node.next
        for level in range(len(self._upper)):
            at = before[level + 1]
            following, greatest = at.upper[level]
            exact = self._greatest(at, level, following)
            if exact == greatest and level >= len(node.upper):
                break
            _relink(at, level, following, exact)

    def _before(self, node: Node[T]) -> list[Node[T]]:
        """Returns the last node in front of this one's place on every level, the bottom first."""
        low, place = node.low, node.place
        at = self._head
        found = []
        for level in range(len(self._upper) - 1, -1, -1):
            following = at.upper[level][0]
            while following is not None and (following.low < low or (following.low == low and following.place < place)):
                at = following
                following = at.upper[level][0]
            found.append(at)
        following = at.next
        while following is not None and (following.low < low or (following.low == low and following.place < place)):
            at = following
            following = at.next
        found.append(at)
        found.reverse()
        return found

    def _raise(self, before: Sequence[Node[T]], high: int) -> None:
        for level in range(len(self._upper) - 1, -1, -1):
            following, greatest = before[level + 1].upper[level]
            if greatest < high:
                _relink(before[level + 1], level, following, high)

    @staticmethod
    def _greatest(node: Node[T], level: int, end: Node[T] | None) -> int:
        """The greatest time from ``node`` to ``end``, exclusive, learnt from the links below upper ``level``."""
        found = _BEFORE_ALL
        at: Node[T] | None = node
        while at is not end:
            assert at is not None
            if level:
                at, greatest = at.upper[level - 1]
            else:
                greatest = at.high
                at = at.next
            if greatest > found:
                found = greatest
        return found

    def _levels(self) -> int:
        """Draws the number of upper levels of a new node: each one more with probability 1/4."""
        levels = 0
        while levels < _MAX_LEVELS:
            if not self._bit_count:
                self._bits = int(self._randomness.token_hex(_DRAWN_BYTES), 16)
                self._bit_count = _DRAWN_BYTES * 8
            drawn = self._bits & 3
            self._bits >>= 2
            self._bit_count -= 2
            if drawn:
                break
            levels += 1
        return levels

    # ------------------------------------------------------------------------------------------------ checking

    def problems(self) -> list[str]:
        """Returns what is wrong with order, links or maxima while nobody writes: nothing, or the list is broken."""
        found = []
        nodes = []
        node = self._head.next
        while node is not None:
            nodes.append(node)
            node = node.next
        if len(nodes) != self._size:
            found.append(f"{len(nodes)} nodes are linked, {self._size} were counted")
        if any((a.low, a.place) >= (b.low, b.place) for a, b in pairwise(nodes)):
            found.append("nodes are out of order")
        for level in range(len(self._upper)):
            linked = [self._head, *(node for node in nodes if len(node.upper) > level)]
            for node, following in zip(linked, [*linked[1:], None], strict=True):
                if node.upper[level] != (following, self._exact(node, following)):
                    found.append(f"upper level {level}: the link at {node.low} is wrong")
        return found

    @staticmethod
    def _exact(node: Node[T], end: Node[T] | None) -> int:
        found = _BEFORE_ALL
        at: Node[T] | None = node
        while at is not end:
            assert at is not None
            found, at = max(found, at.high), at.next
        return found


def _relink(node: Node[T], level: int, following: Node[T] | None, greatest: int) -> None:
    node.upper[level] = following, greatest


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
        """Keeps a version, the newest or one that is pinned already, until it is unpinned as often."""
        assert version == self.newest or self._pins[version]
        self._pins[version] += 1
        return version

    def unpin(self, version: int) -> bool:
        """Undoes one :meth:`pin`; returns whether the version has gone with it, and what only it held."""
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
        """Returns the number of the version to be made."""
        return self.newest + 1

    def add(self, low: int, high: int, value: T, rank: int = 0) -> Node[T]:
        """Adds an interval to the version to be made."""
        return self._list.insert(low, high, value, Tenure(self.begin()), rank)

    def remove(self, node: Node[T]) -> None:
        """Takes a node that :meth:`add` returned out of the version to be made."""
        tenure = node.tenure
        assert isinstance(tenure, Tenure)
        tenure.removed = self.begin()
        self._leaving.append((tenure, node))

    def publish(self) -> int:
        """Makes what was changed since :meth:`begin` the newest version, all at once."""
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

    def insert(self, low: int, high: int, value: T, versions: VersionSet, rank: int = 0) -> Node[T]:
        """Adds an interval that is in the list at ``versions``, which may be read meanwhile."""
        return self._list.insert(low, high, value, versions, rank)

    def unlink(self, node: Node[T]) -> None:
        """Takes out a node that :meth:`insert` returned and that no version that can be read holds."""
        self._list.unlink(node)

    def problems(self) -> list[str]:
        """See :meth:`IntervalSkipList.problems`."""
        return self._list.problems()
