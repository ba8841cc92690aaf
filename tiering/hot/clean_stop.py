"""What tells RocketMQ that a store was not stopped cleanly: the file ``abort``, and a time in ``checkpoint``.

Without ``abort`` RocketMQ takes every file as it is. With it, it drops the key index files of its own format that end
after ``index_ms``, because nobody knows what of them reached the disk.
"""

from __future__ import annotations

import os
from dataclasses import replace

from tiering.format.checkpoint import Checkpoint
from tiering.fs import FileSystem, replace_file
from tiering.paths import StorePaths


def mark_in_use(fs: FileSystem, paths: StorePaths, index_ms: int) -> None:
    """Say durably that index files which end after ``index_ms`` are not to be trusted; before one is changed.

    Killed in between: ``abort`` alone, and the files are as the clean stop left them.
    """
    replace_file(fs, paths.abort, str(os.getpid()).encode(), paths.tmp)
    if fs.exists(paths.checkpoint):
        found = Checkpoint.decode(fs.read(paths.checkpoint))
        if found.index_ms > index_ms:
            replace_file(fs, paths.checkpoint, replace(found, index_ms=index_ms).encode(), paths.tmp)
