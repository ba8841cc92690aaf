"""How much memory does a node need for each million archived messages, and is it bounded?

A node whose messages (256 bytes, two keys each) are all archived is opened in a process of its own, as it is after a
restart: its key filters come from its disk. Then random keys are looked up over all of the archive and every queue is
pulled at places all over it, until all that reads keep is there: manifest, page directories, seek tables, queue rows
(*metadata*) and filters. Once with room for all of it, which says what a million messages take; once with little
room, where memory must not depend on how much is archived. Memory is RssAnon, above that of a node without an archive.

``python benchmarks/memory.py [--millions 0.5 2] [--runs 2] [--dir build/bench]``
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.corpus import drawn, hex_keys
from benchmarks.harness import Report, Row
from tests.soak.growth import resident_mib
from tierlog.index.search.query import Query
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.arrow_input import ArrowMessages

_TOPIC, _QUEUES, _BATCH, _BODY_BYTES = "t", 4, 50_000, 256
_LOOK_UPS, _PULLS = 2_000, 100
_MIB = 1 << 20
#: Bytes for metadata and data, and for filters: room for all metadata of a few million messages, and little room.
_ROOM = {"all of it": (32 * _MIB, 1 << 30), "little": (4 * _MIB, 2 * _MIB)}
_SETTLE_S = 3.0


def settings(room: str) -> Settings:
    cache_bytes, filter_bytes = _ROOM[room]
    return Settings.load(
        overrides={
            "advertise": "127.0.0.1:10911", "hot.segment_bytes": 64 << 20, "hot.default_queues": _QUEUES,
            "hot.disk_max_used_percent": 100, "hot.disk_full_percent": 100,
            "index.items": 1_000_000, "index.slots": 250_000,
            "cold.cache_bytes": cache_bytes, "cold.filter_bytes": filter_bytes, "cold.disk_cache_bytes": 2 << 30,
        }
    )  # fmt: skip


def fill(folder: Path, messages: int) -> None:
    """Append and archive; no hot copy is left."""
    engine = _opened(folder, "all of it")
    engine.create_topic(_TOPIC, _QUEUES)
    keys = hex_keys(2 * messages).astype("U16")
    for first in range(0, messages, _BATCH):
        bodies = [np.random.default_rng(first + number).bytes(_BODY_BYTES) for number in range(_BATCH)]
        both = pa.ListArray.from_arrays(
            pa.array(np.arange(_BATCH + 1, dtype=np.int32) * 2), pa.array(keys[2 * first : 2 * (first + _BATCH)])
        )
        engine.append(ArrowMessages(pa.table({"body": bodies, "keys": both}), _TOPIC), Durability.ASYNC)
        if first % (1 << 20) == 0:
            engine.archive(drop_hot=True)
    if messages:
        engine.archive(everything=True, drop_hot=True)
    engine.close()


def read(folder: Path, messages: int, room: str) -> dict[str, float]:
    """MiB after everything was read that reads keep."""
    engine = _opened(folder, room)
    engine.start()
    if messages:
        for key in hex_keys(2 * messages)[drawn(_LOOK_UPS, 2 * messages)].tolist():
            answer = engine.query(Query(_TOPIC, key.decode(), limit=10))
            assert answer.coverage.complete
            assert len(answer.messages) == 1
        for queue_id in range(_QUEUES):
            first, end = engine.offsets(_TOPIC, queue_id)
            for offset in np.linspace(first, end - 1, _PULLS).astype(int).tolist():
                assert engine.pull(_TOPIC, queue_id, offset, 1).messages
    time.sleep(_SETTLE_S)  # what was fetched ahead is given back
    cache: Any = engine.stats()["cache"]
    found = {"resident": resident_mib(_own_pid())}
    return found | {layer: cache[layer]["bytes"] / _MIB for layer in ("metadata", "data", "filters")}


def _own_pid() -> int:
    return int(Path("/proc/self").readlink().name)


def _opened(folder: Path, room: str) -> Store:
    return Store.open(folder / "store", settings=settings(room), cold_url=(folder / "cold").absolute().as_uri())


def _in_a_process(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--millions", type=float, nargs=2, default=[0.5, 2])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    parser.add_argument("--fill", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill:
        fill(Path(given.fill[0]), int(given.fill[1]))
        return
    if given.read:
        print(json.dumps(read(Path(given.read[0]), int(given.read[1]), given.read[2])))
        return
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    few, many = (int(millions * 1e6) for millions in given.millions)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        for messages in (0, few, many):
            _in_a_process("--fill", f"{name}/{messages}", str(messages))
        found = {
            (room, messages): [
                json.loads(_in_a_process("--read", f"{name}/{messages}", str(messages), room))
                for _ in range(given.runs)
            ]
            for room in _ROOM
            for messages in (0, few, many)
        }
    _tell(report, found, few, many)
    report.save()


def _tell(report: Report, found: dict[tuple[str, int], list[dict[str, float]]], few: int, many: int) -> None:
    def column(room: str, messages: int, layer: str) -> list[float]:
        return [one[layer] for one in found[room, messages]]

    def rows(what: str, sides: dict[str, list[float]], target: float | None = None, note: str = "") -> None:
        report.add(Row(what, "MiB", sides, target=target, smaller_is_better=True, note=note))

    for layer in ("metadata", "filters", "resident"):
        pairs = zip(column("all of it", many, layer), column("all of it", few, layer), strict=True)
        rows(f"{layer}, of a million more", {"tierlog": [(more - less) / (many - few) * 1e6 for more, less in pairs]})
    rows("resident, nothing archived", {"tierlog": column("little", 0, "resident")})
    sides = {f"{messages:,} messages": column("little", messages, "resident") for messages in (many, few)}
    rows("resident, little room", sides, target=1.05, note="caches of 4 MiB, filters of 2 MiB")


if __name__ == "__main__":
    main()
