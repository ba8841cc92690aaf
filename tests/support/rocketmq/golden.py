"""Stores that Apache RocketMQ wrote, and what RocketMQ itself answered about them (tests/golden/rocketmq/README.md)."""

from __future__ import annotations

import json
import lzma
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

ROCKETMQ = Path(__file__).resolve().parents[2] / "golden" / "rocketmq"

#: Whole store directories; ``indexfiles`` and ``tiered`` are something else.
STORES = (
    "clean",
    "propcrc",
    "crashed-plain",
    "crashed-torn",
    "crashed-flip",
    "crashed-stale",
    "upgrade/5.1.4",
    "upgrade/5.3.3",
    "upgrade/5.5.0",
)

#: How many answers about ``crashed-stale`` differ, for a reason that tests/golden/test_rocketmq_stores.py has.
STALE_DIFFERENCES = {"queues": 4, "queue entries": 2, "getMessage": 19, "offsetByTime": 28}


def unpack(name: str, folder: Path, *, archive: str = "store.tar.xz") -> Path:
    """Unpack a fixture into a folder, which is made, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ROCKETMQ / name / archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


@cache
def expected(name: str) -> dict[str, Any]:
    """What RocketMQ said of a fixture; shared between tests, so nobody may change it."""
    document: dict[str, Any] = json.loads(lzma.decompress((ROCKETMQ / name / "expected.json.xz").read_bytes()))
    return document
