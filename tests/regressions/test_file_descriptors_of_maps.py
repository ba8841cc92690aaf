"""A store of about a thousand queue files could neither be used nor opened: every mapped file held a descriptor."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tierlog.tiering.base.errors import DiskFailedError
from tierlog.tiering.base.fs import LocalFileSystem

_LIMIT = 64


def map_many(folder: Path) -> None:
    """Map more files than there may be descriptors, and look at them after their names are gone."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_LIMIT, _LIMIT))
    fs, maps, path = LocalFileSystem(), [], folder / "file"
    for number in range(3 * _LIMIT):
        path.write_bytes(number.to_bytes(4) * 2000)
        maps.append((fs.map_read(path), fs.map_write(path), fs.map_private(path)))
        fs.unlink(path)
    for number, arrays in enumerate(maps):
        assert all(bytes(array) == number.to_bytes(4) * 2000 for array in arrays)


def test_files_are_mapped_beyond_the_limit_of_descriptors(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from {__name__} import map_many; map_many(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.parametrize("kind", ["map_read", "map_write", "map_private"])
def test_a_file_is_unmapped_after_the_last_array_over_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789" * 1000)
    whole = getattr(LocalFileSystem(), kind)(path)
    part = whole[4:12].view(np.int64)
    assert maps_of(path) == 1
    del whole
    gc.collect()
    assert maps_of(path) == 1
    assert bytes(part.data) == b"45678901"
    del part
    gc.collect()
    assert maps_of(path) == 0


def test_a_read_only_map_cannot_be_made_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    array = LocalFileSystem().map_read(tmp_path / "file")
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_what_cannot_be_mapped_is_an_error_of_the_disk(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DiskFailedError, match="No such device"):
        LocalFileSystem().map_read(tmp_path)
    assert os.listdir("/proc/self/fd") == before
