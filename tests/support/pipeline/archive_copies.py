"""An archive out of memory on a disk, where the pipeline's processes find it by its URL."""

from __future__ import annotations

from pathlib import Path

from tierlog.pipeline.base.archive import open_objects
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.urls import canonical_url


def put_on_disk(objects: ObjectStore, folder: Path) -> str:
    """Copy every object into a folder that holds no archive yet; the folder's URL."""
    url = canonical_url(f"file://{folder}")
    target = open_objects(url)
    for info in objects.list(""):
        target.put(info.key, objects.get(info.key)[0])
    return url
