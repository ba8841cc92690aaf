"""Readers of an old head: an object that it names may be gone, because a newer head names another in its stead.

Whoever meets a missing object reads the head once more and goes on from there. If that head is the same, or leads to a
missing object again, the archive is damaged, and the error names the object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TypeVar

from tiering.cold.manifest_store import ManifestStore
from tiering.errors import ObjectNotFoundError
from tiering.format.manifest import Head

T = TypeVar("T")


def newer_head(manifest: ManifestStore, head: Head, error: ObjectNotFoundError) -> Head:
    """The head that has replaced ``head``; raises ``error`` if none has."""
    newer = manifest.refresh()
    if newer.version == head.version:
        raise error
    return newer


def despite_deletion(manifest: ManifestStore, head: Head, work: Callable[[Head], T]) -> T:
    """What ``work`` makes of the head, or of the one that has replaced it."""
    try:
        return work(head)
    except ObjectNotFoundError as error:
        newer = newer_head(manifest, head, error)
    return work(newer)


def items_despite_deletion(
    manifest: ManifestStore, head: Head, read: Callable[[Head, int], Generator[tuple[int, T]]], offset: int
) -> Generator[tuple[int, T]]:
    """Numbered items in order, from ``offset`` on: a reader of the new head goes on behind the last that was read."""
    try:
        with contextlib.closing(read(head, offset)) as items:
            for number, item in items:
                offset = number + 1
                yield number, item
        return
    except ObjectNotFoundError as error:
        newer = newer_head(manifest, head, error)
    yield from read(newer, offset)
