"""The caches of an archive as one process runs them: where they lie, what they say of themselves."""

from __future__ import annotations

import logging
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from service.settings import ColdSettings
from tiering.cold.caching.disk import DiskCache
from tiering.cold.reading import ArchiveCache
from tiering.errors import StoreError
from tiering.fs import FileSystem

_LOG = logging.getLogger("tierlog")


def open_disk_cache(
    fs: FileSystem, settings: ColdSettings, cold_url: str, default: Path | None, *, max_used_percent: int = 95
) -> DiskCache | None:
    """The disk cache of one archive, in ``default`` unless the settings name another place; None if there is none.

    A cache that cannot be opened is done without: another process has it, or the disk refused.
    """
    folder = default
    if settings.cache_dir is not None:  # several archives may share the place
        folder = Path(settings.cache_dir).absolute() / blake2b(cold_url.encode(), digest_size=8).hexdigest()
    if folder is None or settings.disk_cache_bytes == 0:
        return None
    try:
        return DiskCache(fs, folder, settings.disk_cache_bytes, max_used_percent=max_used_percent)
    except StoreError as error:
        _LOG.warning("the archive is read without a disk cache: %s", error)
        return None


def cache_stats(cache: ArchiveCache) -> dict[str, dict[str, int]]:
    """The counters of each layer by name."""
    return {name: asdict(counters) for name, counters in cache.counters().items()}
