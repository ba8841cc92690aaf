"""Files that grow by a sector or two, so that segments and index files of a few KiB are grown many times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from tests.support.fs.crash_fs import SECTOR_BYTES
from tierlog.index.local import chained_file
from tierlog.index.rocketmq import classic_index
from tierlog.tiering.hot import commit_log


@contextlib.contextmanager
def small_steps(step_bytes: int = SECTOR_BYTES) -> Iterator[None]:
    """Inside, zeros are written ahead and blocks are given so few bytes at a time."""
    with (
        patch.multiple(commit_log, ZEROS_AHEAD=(step_bytes, 2 * step_bytes), _ZEROS=bytes(step_bytes)),
        patch.multiple(chained_file, FIRST_WINDOW_BYTES=step_bytes, WINDOW_BYTES=2 * step_bytes),
        patch.multiple(classic_index, BLOCKS_BYTES=step_bytes),
    ):
        yield
