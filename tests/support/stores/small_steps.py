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
def small_steps() -> Iterator[None]:
    """Inside, zeros are written ahead and blocks are given by sectors."""
    with (
        patch.multiple(commit_log, ZEROS_AHEAD=(SECTOR_BYTES, 2 * SECTOR_BYTES), _ZEROS=bytes(SECTOR_BYTES)),
        patch.multiple(chained_file, FIRST_WINDOW_BYTES=SECTOR_BYTES, WINDOW_BYTES=2 * SECTOR_BYTES),
        patch.multiple(classic_index, BLOCKS_BYTES=SECTOR_BYTES),
    ):
        yield
