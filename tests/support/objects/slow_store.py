"""An object store that answers after a while drawn by seed, so that threads follow each other in ever other ways."""

from __future__ import annotations

import random
import threading

from tests.support.objects.priced_store import PricedStore
from tierlog.tiering.objects.object_store import ObjectStore

_MOST_S = 0.004


class SlowStore(PricedStore):
    """Counts requests as :class:`PricedStore` does; ranges of objects come late, some much later than others."""

    def __init__(self, inner: ObjectStore, seed: int) -> None:
        super().__init__(inner)
        self._random = random.Random(seed)
        self._drawing = threading.Lock()
        self._never = threading.Event()
        self.most_at_once = 0
        self._at_once = 0

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._drawing:
            late_s = _MOST_S * self._random.random() ** 4
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.requests["get_range"] += 1
            self.bytes_read += end - start
        self._never.wait(late_s)
        try:
            return self.inner.get_range(key, start, end)
        finally:
            with self._drawing:
                self._at_once -= 1
