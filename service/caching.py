"""The caches of an archive as one process runs them: where they lie, what they say of themselves."""

from __future__ import annotations

import logging
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from index.resident_filters import ResidentFilters
from service.settings import ColdSettings
from tiering.clock import Clock
from tiering.cold.caching.disk import DiskCache
from tiering.cold.object_store import ObjectStore
from tiering.cold.reading import ArchiveCache
from tiering.errors import StoreError
from tiering.fs import FileSystem

_LOG = logging.getLogger("tierlog")
_FILTERS = "filters"


def open_caches(
    cache: ArchiveCache,
    objects: ObjectStore,
    clock: Clock,
    fs: FileSystem,
    settings: ColdSettings,
    cold_url: str,
    default: Path | None,
    *,
    max_used_percent: int = 95,
) -> ResidentFilters:
    """Give a cache what is kept beside its memory, and return the key filters among it.

    The disk cache lies in ``default`` unless the settings name another place; there is none without either. Of its
    room key filters may take as much as of memory, half of it at most. A cache that cannot be opened is done without:
    another process has it, or the disk refused.
    """
    folder = default
    if settings.cache_dir is not None:  # several archives may share the place
        folder = Path(settings.cache_dir).absolute() / blake2b(cold_url.encode(), digest_size=8).hexdigest()
    for_filters = min(settings.filter_bytes, settings.disk_cache_bytes // 2)

    def disk(folder: Path | None, limit_bytes: int) -> DiskCache | None:
        if folder is None or limit_bytes == 0:
            return None
        try:
            return DiskCache(fs, folder, limit_bytes, max_used_percent=max_used_percent)
        except StoreError as error:
            _LOG.warning("the archive is read without a disk cache: %s", error)
            return None

    cache.disk = disk(folder, settings.disk_cache_bytes - for_filters)
    kept = None if cache.disk is None or folder is None else disk(folder / _FILTERS, for_filters)
    filters = ResidentFilters(objects, settings.filter_bytes, clock, disk=kept)
    cache.others[_FILTERS] = filters
    return filters


def cache_stats(cache: ArchiveCache) -> dict[str, dict[str, int]]:
    """The counters of each layer by name."""
    return {name: asdict(counters) for name, counters in cache.counters().items()}
