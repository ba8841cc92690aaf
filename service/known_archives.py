"""Which stores lie below the prefixes that a querier reads; looked for while somebody asks, and no more often."""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from functools import partial

from service.archives import Archive, ArchivedStore
from service.setting_groups.cluster import ClusterSettings
from tiering.clock import Clock
from tiering.cold.caching.fetch_pool import FetchPool
from tiering.errors import StoreError


class KnownArchives:
    """Thread safe. A prefix is listed (two LIST requests a store) at most once in ``cluster.refresh_ms``."""

    def __init__(self, archives: Sequence[Archive], settings: ClusterSettings, clock: Clock) -> None:
        self.archives = tuple(archives)
        self._refresh_s = settings.refresh_ms / 1000
        self._retry_s = settings.retry_ms / 1000
        self._clock = clock
        self._pool = FetchPool(1, "tierlog-discover")
        self._lock = threading.Lock()
        self._looked_s: dict[str, float] = {}
        self._failed: dict[str, tuple[float, StoreError]] = {}

    def begin(self) -> None:
        """Look in the background."""
        for archive in self.archives:
            self._pool.submit(partial(self._look_first, archive))

    def of(self, store_id: str, cold_url: str | None = None) -> ArchivedStore | None:
        """A store's archive as far as it is known which it is; ``cold_url`` is where the store says that it is."""
        said = [archive for archive in self.archives if archive.url == cold_url]
        for archive in said or [archive for archive in self.archives if store_id in archive.listed]:
            return archive.store(store_id)
        return self.archives[0].store(store_id) if len(self.archives) == 1 else None

    def others(self, served: Container[str]) -> list[ArchivedStore]:
        """Stores but those; of two prefixes that have one of the same id the first is read.

        The first time the answer of the object store is waited for; later its listing is renewed in the background.
        """
        found: dict[str, ArchivedStore] = {}
        for archive in self.archives:
            looked_s, now_s = self._looked_s.get(archive.url), self._clock.monotonic_s()
            if looked_s is None:
                self._look_first(archive)
            elif now_s - looked_s >= self._refresh_s:
                self._looked_s[archive.url] = now_s
                self._pool.submit(partial(self._look, archive))
            for store_id in archive.listed:
                if store_id not in served:
                    found.setdefault(store_id, archive.store(store_id))
        return [found[store_id] for store_id in sorted(found)]

    @property
    def errors(self) -> dict[str, StoreError]:
        """Why prefixes could not be listed, by URL."""
        return {url: error for url, (_, error) in list(self._failed.items())}

    @property
    def unknown(self) -> dict[str, StoreError | None]:
        """Prefixes that could not be listed even once, and why; None: nobody has tried."""
        errors = self.errors
        return {archive.url: errors.get(archive.url) for archive in self.archives if archive.url not in self._looked_s}

    def close(self) -> None:
        """Let go of all of them."""
        for archive in self.archives:
            archive.close()

    def _look_first(self, archive: Archive) -> None:
        with self._lock:
            failed = self._failed.get(archive.url)
            is_soon = failed is not None and self._clock.monotonic_s() - failed[0] < self._retry_s
            if archive.url not in self._looked_s and not is_soon:
                self._look(archive)

    def _look(self, archive: Archive) -> None:
        try:
            archive.discover()
        except StoreError as error:
            self._failed[archive.url] = self._clock.monotonic_s(), error
        else:
            self._failed.pop(archive.url, None)
            self._looked_s[archive.url] = self._clock.monotonic_s()
