"""What the real ``zstd`` tool makes of an archived segment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.stores.segments import mixed_records, write_segment
from tierlog.tiering.format.record import encode_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd tool"),
]


@pytest.mark.parametrize("count", [0, 1, 150])
def test_it_gives_the_sorted_records(tmp_path: Path, count: int) -> None:
    written = write_segment(mixed_records(count, count), frame_bytes=2048, tail=b"stale")
    path = tmp_path / "segment.zst"
    path.write_bytes(written.data)
    ran = subprocess.run(["zstd", "-d", "-c", str(path)], capture_output=True, check=True, timeout=60)
    assert ran.stdout == b"".join(encode_record(each) for each in written.sorted_records)
    listed = subprocess.run(["zstd", "-l", "-v", str(path)], capture_output=True, check=True, timeout=60, text=True)
    assert "XXH64" in listed.stdout or not count, "every frame has a checksum that the tool verifies"


def test_it_notices_damage(tmp_path: Path) -> None:
    written = write_segment(mixed_records(1), frame_bytes=2048)
    data = bytearray(written.data)
    data[len(data) // 4] ^= 1
    path = tmp_path / "segment.zst"
    path.write_bytes(data)
    ran = subprocess.run(["zstd", "-t", str(path)], capture_output=True, check=False, timeout=60)
    assert ran.returncode != 0
