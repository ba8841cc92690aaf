"""Archives by their URLs, one opening a process: for jobs and commands that have no settings of a store.

Credentials never travel: every process finds its own by the usual AWS means, and the endpoint of an S3-compatible
server in ``TIERLOG_S3_ENDPOINT``.
"""

from __future__ import annotations

import functools
import os

from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.urls import open_object_store

_ENDPOINT = "TIERLOG_S3_ENDPOINT"


@functools.lru_cache(maxsize=8)
def open_objects(url: str) -> ObjectStore:
    """Returns the object store at a canonical URL, one a process."""
    return open_object_store(url, clock=SystemClock(), endpoint_url=os.environ.get(_ENDPOINT))


@functools.lru_cache(maxsize=32)
def open_manifest(url: str, store_id: str, grace_ms: int | None = None) -> ManifestStore:
    """Returns the manifest of one store of the archive at a canonical URL, one a process; nothing is asked yet.

    ``grace_ms`` is the store's own if it is not the default, for those who commit.
    """
    options = ColdOptions() if grace_ms is None else ColdOptions(grace_ms=grace_ms)
    return ManifestStore(
        open_objects(url),
        ColdKeys(store_id),
        randomness=SystemRandomness(),
        options=options,
        cache=ArchiveCache(options.cache_bytes),
    )
