"""``tierlog dump`` of a tail, sound and damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stores.tails import data_head
from tierlog.service.dump.detection import dump
from tierlog.service.dump.result import DumpOptions
from tierlog.service.dump.source import open_source
from tierlog.tiering.format.tail import TailKind, encode_tail


def shown(path: Path) -> tuple[dict[str, object], list[dict[str, object]], list[str]]:
    found = dump(open_source(str(path)), DumpOptions())
    rows = [*found.read_rows()]
    return found.head, rows, found.findings


def written(folder: Path, data: bytes) -> Path:
    path = folder / f"{4096:020d}"
    path.write_bytes(data)
    return path


def test_range_owner_and_topics(tmp_path: Path) -> None:
    head = replace(data_head(4096, b"records"), topics={"orders": 8})
    said, rows, findings = shown(written(tmp_path, encode_tail(head, b"records")))
    assert (said["tail_kind"], said["first"], said["end"], said["volume_id"], said["raw_bytes"]) == (
        "data",
        4096,
        4103,
        "v",
        7,
    )
    assert rows == [{"topic": "orders", "queues": 8}]
    assert findings == []


def test_fence(tmp_path: Path) -> None:
    fence = replace(data_head(4096, b""), kind=TailKind.FENCE, end=4096)
    said, rows, findings = shown(written(tmp_path, encode_tail(fence)))
    assert (said["tail_kind"], rows, findings) == ("fence", [], [])


@pytest.mark.parametrize("at", [-1, -9])
def test_damaged_bytes_are_found_and_the_head_is_shown_all_the_same(tmp_path: Path, at: int) -> None:
    data = bytearray(encode_tail(data_head(4096, b"records " * 9), b"records " * 9))
    data[at] ^= 1
    said, _, findings = shown(written(tmp_path, bytes(data)))
    assert said["first"] == 4096
    assert len(findings) == 1
