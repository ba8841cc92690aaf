"""Rebuilds what a store derives from its log on the local disk: consume queues and key index.

A damaged kind of files is removed as a whole, and the next open derives it from the log, as it does with files that
are missing. Killed anywhere: fewer files, and the next open derives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tierlog.index.objects.derivation import remove_tree
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.checks.findings import Finding

#: What a line of ``check`` about derived files begins with, and what they are called.
_QUEUES = ("I2 queue", "I3 queue")
_INDEX = ("I3 index",)


def repair_local(fs: FileSystem, root: Path, lines: Sequence[str], *, dry_run: bool) -> list[Finding]:
    """Removes local files that are not what the log implies, as ``lines`` of a check say; returns a line for each.

    The store must not be in use: raises :class:`StoreLockedError`.
    """
    paths, done = StorePaths(root.absolute()), list[Finding]()
    for starts, what, places in (
        (_QUEUES, "consume queues", (paths.consumequeue,)),
        (_INDEX, "key index", (paths.index, paths.index_json)),
    ):
        about = [line for line in lines if line.startswith(starts)]
        if about:
            text = f"{what} {'would be ' if dry_run else ''}derived again from the log ({len(about)} findings)"
            done.append(Finding(None, text))
            if not dry_run:
                _remove(fs, paths, places)
    return done


def _remove(fs: FileSystem, paths: StorePaths, places: Iterable[Path]) -> None:
    with fs.lock(paths.lock):
        for place in places:
            if fs.is_dir(place):
                remove_tree(fs, place)
            elif fs.exists(place):
                fs.unlink(place)
            fs.flush_dir(place.parent)
