"""The bill of one query or pull at the object store: requests, bytes, the length of its chains of requests, the price.

A chain is a run of requests, each of which needs the answer of the one before. Work that other work led to goes on from
the end of that work's chain. Requests for the manifest (its head, pages, rows and state) count like all
others, but stand outside the chains: depth is counted with the manifest loaded.
"""

from __future__ import annotations

import threading
from collections import Counter

from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.cold.reading.memory_cache import Range
from tierlog.tiering.objects.object_store import usd_of


class UnsharedError(Exception):
    """Mixin of errors that concern only the caller who met them: nobody who waits for the same fetch gets one."""


class BudgetSpentError(StoreError, UnsharedError):
    """The next request would exceed what the query may ask for."""


class AbandonedError(StoreError, UnsharedError):
    """Nobody waits for the answer to this request any more."""


class ReadBill:
    """Requests, bytes and chains of one query or pull; what a cache or another reader's request gave is a hit.

    Thread safe. A request counts from the moment it is about to be made, whatever becomes of it and of its caller.
    """

    def __init__(self, max_requests: int | None = None) -> None:
        self.max_requests = max_requests
        self.requests = 0
        self.bytes = 0
        self.hits = 0
        self.hit_bytes = 0
        #: Requests by what they were for.
        self.stages: Counter[str] = Counter()
        self._depths: Counter[int] = Counter()
        self._asked: dict[Range, int] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def charge(self, place: Range, stage: str, depth: int = 0) -> None:
        """Counts a request that is about to be made, the ``depth``-th of its chain; 0 = for the manifest.

        Raises :class:`BudgetSpentError` instead of one too many, :class:`AbandonedError` once the bill is closed.
        """
        with self._lock:
            if self._is_closed:
                raise AbandonedError("the query has been answered", path=place[0])
            if self.max_requests is not None and self.requests >= self.max_requests:
                raise BudgetSpentError(f"the budget of {self.max_requests} requests is spent", path=place[0])
            self.requests += 1
            self.stages[stage] += 1
            self._depths[depth] += 1
            self._asked[place] = depth

    def arrived(self, size_bytes: int) -> None:
        """Counts what a request brought."""
        with self._lock:
            self.bytes += size_bytes

    def hit(self, size_bytes: int) -> None:
        """Counts a range that needed no request of this reader's."""
        with self._lock:
            self.hits += 1
            self.hit_bytes += size_bytes

    @property
    def left(self) -> int | None:
        """Requests that may still be made; None if they are not bounded."""
        return None if self.max_requests is None else self.max_requests - self.requests

    def depth_of(self, place: Range) -> int:
        """Returns how deep in its chain the request of this bill for a range was; 0 if there was none."""
        return self._asked.get(place, 0)

    def close(self) -> None:
        """Ends the bill: the answer is given, and work that is still under way asks for nothing more."""
        with self._lock:
            self._is_closed = True

    @property
    def manifest_requests(self) -> int:
        """Requests for the manifest, which are in :attr:`requests` and in no chain."""
        return self._depths[0]

    @property
    def round_trips(self) -> int:
        """The longest chain, from the plan on; what costs no request is no link of it."""
        with self._lock:
            return max(self._depths, default=0)

    def waves(self, concurrency: int) -> int:
        """Rounds of at most so many parallel requests: for each depth its requests / concurrency, rounded up.

        Like :attr:`round_trips` from the plan on; with enough concurrency it is the same.
        """
        with self._lock:
            return sum(-(-count // concurrency) for depth, count in self._depths.items() if depth)

    @property
    def cost_usd(self) -> float:
        """The price of all requests, those for the manifest included."""
        return usd_of(reads=self.requests)


class RequestChain:
    """The requests on a bill of one reader, which makes them one after another. One thread's own."""

    def __init__(self, bill: ReadBill, depth: int = 0, *, is_manifest: bool = False) -> None:
        """``depth``: how many requests led to the first one of this chain."""
        self.bill = bill
        self.depth = depth
        self._is_manifest = is_manifest

    def for_manifest(self) -> RequestChain:
        """Returns a chain for requests that read the manifest."""
        return RequestChain(self.bill, is_manifest=True)

    def charge(self, place: Range, stage: str) -> None:
        """The next link; raises as :meth:`ReadBill.charge`."""
        depth = 0 if self._is_manifest else self.depth + 1
        self.bill.charge(place, stage, depth)
        self.depth = depth

    def hit(self, place: Range) -> None:
        """A range without a request: it was there, or an earlier request of the same bill brings it."""
        self.bill.hit(place[2] - place[1])
        if not self._is_manifest:
            self.depth = max(self.depth, self.bill.depth_of(place))
