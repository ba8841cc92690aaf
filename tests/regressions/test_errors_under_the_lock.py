"""Any OSError while a store was open was reported as one of its lock file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tierlog.tiering.base.fs import LocalFileSystem


def test_an_error_of_the_body_passes_the_lock_unchanged_and_ends_it(tmp_path: Path) -> None:
    fs, error = LocalFileSystem(), PermissionError(13, "Permission denied", "another file")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PermissionError) as raised, fs.lock(tmp_path / "lock"):
        raise error
    assert raised.value is error
    assert os.listdir("/proc/self/fd") == before
    with fs.lock(tmp_path / "lock"):
        pass
