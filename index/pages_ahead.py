"""Makes the pages of a growing mapped file ready beside the thread that writes them."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from tiering.cold.caching.fetch_pool import FetchPool
from tiering.fs import ByteArray
from tiering.libc import populate

#: Bytes whose pages are made ready at a time.
WINDOW_BYTES = 8 << 20

#: One for all files; a thread ends with its window, which is long beside its start.
_BESIDE = FetchPool(1, "tierlog-index-pages")


class PagesAhead:
    """Pages of a writable map from some position on; for the one thread that writes there.

    Who writes into one window finds the next one there: a page that the kernel still has to find, clear and note takes
    as long as putting some 30 to 500 items, the latter where a virtual machine gets its memory only then.
    """

    def __init__(self, data: ByteArray, start: int) -> None:
        self._data = data
        self._there = self._asked = start
        self._coming: Future[None] | None = None

    def reach(self, end: int) -> None:
        """Have the pages below ``end`` there, and begin with those behind them."""
        if end <= self._there:
            return
        if self._coming is not None:
            self._coming.result()
        self._there = self._asked
        if end > self._there:  # the first time, or further than a window
            self._there = min(end + WINDOW_BYTES, len(self._data))
            populate(self._data, self._asked, self._there)
        self._asked = min(self._there + WINDOW_BYTES, len(self._data))
        try:
            self._coming = _BESIDE.submit(partial(populate, self._data, self._there, self._asked))
        except RuntimeError:  # no thread is to be had: the kernel finds each page when it is written
            self._coming = None
