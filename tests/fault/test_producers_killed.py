"""SIGKILL of a service while a producer sends: before an answer, in the middle of an append, while it opens."""

from __future__ import annotations

import io
import json
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import ROOT
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.base.client import AppendedRows, ServiceClient
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import UnavailableError


def stream_of(first: int, end: int) -> bytes:
    table = pa.table({"body": [b"%d " % number + b"x" * (number * 97 % 900) for number in range(first, end)]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_each_message_is_there_once_and_where_it_was_said_to_be(
    tmp_path: Path, seed: int, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(seed)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told: dict[int, AppendedRows] = {}
    first, end, kills, repeated = 0, 1, 0, 0
    command = [sys.executable, "-m", "tests.support.processes.producer_worker", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for _ in range(rounds):
            kill_at = chance.choice([chance.randrange(1, 60), chance.randrange(60, 250)])
            worker.stdin.write(json.dumps({"folder": str(tmp_path), "port": port, "kill_at": kill_at}) + "\n")
            worker.stdin.flush()
            with ServiceClient(f"http://127.0.0.1:{port}", tries=1) as client:
                while not select.select([worker.stdout], [], [], 0)[0]:
                    try:
                        results = client.produce("t", stream_of(first, end), f"p:{first}")
                    except UnavailableError:
                        repeated += 1
                        time.sleep(0.01)
                        continue
                    told.update(enumerate(results, first))
                    first, end = end, end + chance.choice([1, 3, 40, 200])
            assert int(worker.stdout.readline()) == -signal.SIGKILL
            kills += 1
        worker.stdin.close()
    with_engine(tmp_path, told, first, end)
    record_property("kills", kills)
    print(f"seed {seed}: {kills} kills, {first} messages acknowledged, {repeated} tries unanswered")


def with_engine(folder: Path, told: dict[int, AppendedRows], first: int, end: int) -> None:
    engine = Store.open(folder / "store", settings=tiny_settings(), cold_url=f"file://{folder}/cold")
    try:
        engine.flush()
        found: dict[int, list[tuple[int, int]]] = {}
        for topic in engine.topics():
            for queue in topic.queues:
                offset = queue.min_offset
                while offset < queue.max_offset:
                    page = engine.pull("t", queue.queue_id, offset, 1000)
                    for one in page.messages:
                        number = int(one.record.body.partition(b" ")[0])
                        found.setdefault(number, []).append((one.record.queue_id, one.record.queue_offset))
                    offset = page.next_offset
        assert {number: [(one.queue_id, one.queue_offset)] for number, one in told.items()} == {
            number: places for number, places in found.items() if number < first
        }
        assert sorted(number for number in found if number >= first) == list(range(first, first + len(found) - first))
        assert max(map(len, found.values()), default=1) == 1
        assert max(found, default=0) < end
        assert engine.check() == []
    finally:
        engine.close()
