"""Which of many large values are kept within a byte limit: those whose uses save most requests a byte.

Meant for values that cost much to bring and save one request a use, whether they are kept or not being known each
time: so uses are counted of all, not only of those kept. A newcomer must have been used as often as pays for bringing
it (:func:`uses_that_pay`), and replaces others only if it was used that much more often than all of them together.
So a scan over more than fits, which uses all alike, replaces nothing, where the least recently used rule would replace
everything before its next use. Between those who compete old use fades: counts are halved from time to time. What has
room waits for nothing but enough uses ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Container

_REQUEST_BYTES = 4 << 20
"""Bytes that take about as long as a request's first byte: 40 ms at 100 MB/s."""
_MOST_USES_ASKED = 16
_AGE = 16
"""Uses of each object, on average, after which all counts are halved."""


def uses_that_pay(size_bytes: int) -> int:
    """Uses after which a value of this size is brought: then it has cost as much as bringing it would have."""
    return min(2 + size_bytes // _REQUEST_BYTES, _MOST_USES_ASKED)


class KeptByUse:
    """The uses of all and the sizes of those kept, which never pass ``limit_bytes`` together. Not thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._ever: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        # (uses a byte when it was put there, name): uses rise only, so the least may be looked up again at the top
        self._least: list[tuple[float, str]] = []
        self._count = 0

    def __contains__(self, name: str) -> bool:
        return name in self._sizes or name in self._reserved

    def use(self, name: str) -> None:
        """Count a use of something, kept or not."""
        self._ever[name] = self._ever.get(name, 0) + 1
        self._uses[name] = self._uses.get(name, 0) + 1
        self._count += 1
        if self._count >= _AGE * len(self._uses):
            self._age()

    def count_as_paid(self, name: str, size_bytes: int) -> None:
        """Give something the uses that it takes to be brought: it was, before counts were kept."""
        for counts in (self._ever, self._uses):
            counts[name] = max(counts.get(name, 0), uses_that_pay(size_bytes))

    def _age(self) -> None:
        self._count = 0
        self._uses = {name: half for name, uses in self._uses.items() if (half := uses // 2) or name in self}
        self._least = [(self._worth(name), name) for name in self._sizes]
        heapq.heapify(self._least)

    def to_go_for(self, name: str, size_bytes: int) -> list[str] | None:
        """What must go for something used: nothing if there is room; None if it has not been used that much."""
        margin = uses_that_pay(size_bytes)
        if name in self or size_bytes > self.limit_bytes or self._ever.get(name, 0) < margin:
            return None
        uses, lacking = self._uses.get(name, 0), self.used_bytes + size_bytes - self.limit_bytes
        taken: dict[str, float] = {}
        while lacking > 0 and uses >= margin and (least := self._pop_least(taken)) is not None:
            worth, each = least
            taken[each] = worth
            lacking -= self._sizes[each]
            margin += self._uses.get(each, 0)
        for each, worth in taken.items():
            heapq.heappush(self._least, (worth, each))
        return list(taken) if lacking <= 0 and (not taken or uses >= margin) else None

    def _pop_least(self, but: Container[str]) -> tuple[float, str] | None:
        while self._least:
            worth, name = heapq.heappop(self._least)
            if name not in self._sizes or name in but:
                continue
            now = self._worth(name)
            if now <= worth or not self._least or (now, name) <= self._least[0]:
                return now, name
            heapq.heappush(self._least, (now, name))
        return None

    def _worth(self, name: str) -> float:
        return self._uses.get(name, 0) / max(self._sizes[name], 1)

    def reserve(self, name: str, size_bytes: int) -> bool:
        """Take room for what is being brought, which nothing replaces meanwhile; False if there is none."""
        if name in self or self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self._reserved[name] = size_bytes
        self.used_bytes += size_bytes
        return True

    def keep(self, name: str) -> bool:
        """Keep what room was taken for; False if it was dropped since."""
        size_bytes = self._reserved.pop(name, None)
        if size_bytes is None:
            return False
        self._sizes[name] = size_bytes
        heapq.heappush(self._least, (self._worth(name), name))
        return True

    def drop(self, name: str) -> None:
        """Give something's room back; its uses still count."""
        self.used_bytes -= self._sizes.pop(name, 0) + self._reserved.pop(name, 0)

    def forget(self, name: str) -> None:
        """Something that will not be used again."""
        self.drop(name)
        self._uses.pop(name, None)
        self._ever.pop(name, None)
