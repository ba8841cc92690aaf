"""How much memory does the service take under producers and readers that want more than it can do?

``tierlog serve`` runs as a process of its own, with a history of ``--rows`` messages. For ``--seconds``,
``--producers`` append batches (NDJSON and JSON, each with an Idempotency-Key, sent again until acknowledged) and
``--readers`` stream the whole history with ``all=true``, ``--slow`` of them at 16 KiB every 200 ms. Printed are the
memory of the process (anonymous pages, as those of mapped files are the page cache's), the bound that its settings
imply, how often it answered with which status, and whether every acknowledged message is there once.

``python benchmarks/http_memory.py [--rows 1000000] [--producers 200] [--readers 50] [--slow 20] [--seconds 60]``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa

from tierlog.service.config.serve import ServeSettings

_BATCH, _ARROW_BATCH = 50, 1_000
_ARROW = "application/vnd.apache.arrow.stream"
_SAMPLE_S, _PAUSE_S = 0.2, 0.2
#: Memory for a byte of a page: as it is read and written out, and as it waits to be sent.
_READ_WEIGHT, _SENT_WEIGHT = 10, 3


@dataclass
class Report:
    """What was measured; sizes in bytes."""

    rows: int = 0
    idle_bytes: int = 0
    peak_bytes: int = 0
    bound_bytes: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    found_once: int = 0
    found_more: int = 0
    missing: int = 0
    rows_read: int = 0


@dataclass
class Load:
    """What is asked for."""

    rows: int = 1_000_000
    producers: int = 200
    readers: int = 50
    slow: int = 20
    seconds: float = 60.0
    body_memory_bytes: int = 64 << 20


class _Counts:
    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.rows_read = 0


def measure(root: Path, load: Load) -> Report:
    """One run on a new store below ``root``."""
    with _served(root, load) as (process, port):
        for first in range(0, load.rows, _ARROW_BATCH):
            _preload(port, first, min(_ARROW_BATCH, load.rows - first))
        report, counts = Report(rows=load.rows, idle_bytes=_anonymous_bytes(process.pid)), _Counts()
        report.peak_bytes = asyncio.run(_run(process.pid, port, load, counts))
        limits = ServeSettings(body_memory_bytes=load.body_memory_bytes)
        pages = limits.stream_threads * _READ_WEIGHT + limits.max_streams * _SENT_WEIGHT
        report.bound_bytes = report.idle_bytes + limits.body_memory_bytes + pages * limits.stream_page_bytes
        report.statuses, report.rows_read = dict(sorted(counts.statuses.items())), counts.rows_read
        report.acknowledged = len(counts.acknowledged)
        there = _bodies(port) if counts.acknowledged else Counter[str]()
        report.found_once = sum(there[body] == 1 for body in counts.acknowledged)
        report.found_more = sum(count > 1 for count in there.values())
        report.missing = sum(body not in there for body in counts.acknowledged)
        return report


@contextlib.contextmanager
def _served(root: Path, load: Load) -> Iterator[tuple[subprocess.Popen[str], int]]:
    environment = {
        **os.environ, "TIERLOG_SERVE_BODY_MEMORY_BYTES": str(load.body_memory_bytes), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tierlog.service.main", "serve", "--root", str(root / "store"), "--port", "0"]
    with (root / "log").open("w+") as log:
        process = subprocess.Popen(
            [*command, "--cold", f"file://{root}/cold"], stderr=log, text=True, env=environment
        )  # fmt: skip
        try:
            yield process, _port(process, root / "log")
        finally:
            process.terminate()
            process.wait(30)


def _port(process: subprocess.Popen[str], log: Path) -> int:
    waiting = threading.Event()
    for _ in range(600):
        for line in log.read_text().splitlines():
            if "serving http" in line:
                return int(line.strip().rstrip('"}').rpartition(":")[2])
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        waiting.wait(0.1)
    raise RuntimeError("the service did not start")


def _preload(port: int, first: int, count: int) -> None:
    table = pa.table({"body": [f"history {number} ".ljust(200, "h") for number in range(first, first + count)]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    url = f"http://127.0.0.1:{port}/v1/topics/history/messages?durability=async"
    with urlopen(Request(url, sink.getvalue(), {"Content-Type": _ARROW, "Accept": _ARROW})) as answer:
        answer.read()


async def _run(pid: int, port: int, load: Load, counts: _Counts) -> int:
    stop = asyncio.Event()
    tasks = [asyncio.ensure_future(_produce(port, number, stop, counts)) for number in range(load.producers)]
    tasks += [
        asyncio.ensure_future(_read(port, stop, counts, is_slow=number < load.slow)) for number in range(load.readers)
    ]
    peak = 0
    for _ in range(int(load.seconds / _SAMPLE_S)):
        await asyncio.sleep(_SAMPLE_S)
        peak = max(peak, _anonymous_bytes(pid))
    stop.set()
    await asyncio.gather(*tasks)
    await asyncio.sleep(_SAMPLE_S)  # connections that were closed are gone then
    return peak


async def _produce(port: int, producer: int, stop: asyncio.Event, counts: _Counts) -> None:
    for batch in itertools.count():
        bodies = [f"p{producer}-{batch}-{number}" for number in range(_BATCH)]
        messages = [{"body": body.ljust(200, "."), "keys": [f"k{producer}"]} for body in bodies]
        is_json = producer % 2 == 0
        body = json.dumps({"messages": messages}) if is_json else "\n".join(map(json.dumps, messages))
        kind = "application/json" if is_json else "application/x-ndjson"
        head = (
            f"POST /v1/topics/load/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
            f"Connection: close\r\nIdempotency-Key: b{producer}:{batch * _BATCH}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        while True:
            status = await _status(port, (head + body).encode())
            counts.statuses[f"append {status}"] += 1
            if status == "200":
                counts.acknowledged.update(bodies)
                break
            if stop.is_set():
                return
            await asyncio.sleep(_PAUSE_S)
        if stop.is_set():
            return


async def _status(port: int, request: bytes) -> str:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(request)
            return (await reader.read()).split(b" ", 2)[1].decode()
    except (OSError, IndexError):
        return "no answer"


async def _read(port: int, stop: asyncio.Event, counts: _Counts, *, is_slow: bool) -> None:
    head = (
        b"GET /v1/topics/history/messages?all=true HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/x-ndjson\r\n\r\n"
    )
    while not stop.is_set():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 14)
            with contextlib.closing(writer):
                writer.write(head)
                status = (await reader.readline()).split(b" ", 2)[1].decode()
                counts.statuses[f"stream {status}"] += 1
                last = b""
                while not stop.is_set() and (data := await asyncio.wait_for(reader.read(1 << 14), 120)):
                    counts.rows_read += data.count(b"\n")
                    last = (last + data)[-7:]
                    if last.endswith(b"\r\n0\r\n\r\n") or status != "200":
                        break
                    if is_slow:
                        await asyncio.sleep(_PAUSE_S)
        except (OSError, IndexError, TimeoutError):
            counts.statuses["stream no answer"] += 1
        await asyncio.sleep(_PAUSE_S)


def _bodies(port: int) -> Counter[str]:
    """How often each body of the load is there."""
    url = f"http://127.0.0.1:{port}/v1/topics/load/messages?all=true"
    found: Counter[str] = Counter()
    last: dict[str, Any] = {}
    with urlopen(Request(url, headers={"Accept": "application/x-ndjson"})) as answer:
        for line in answer:
            last = json.loads(line)
            if "body" in last:
                found[last["body"].rstrip(".")] += 1
    if not last.get("coverage", {}).get("complete"):
        raise RuntimeError(f"the answer has no end: {last}")
    return found


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no RssAnon")


def main() -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in asdict(Load()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), Load(**vars(parser.parse_args())))
    print(json.dumps(asdict(report), indent=1))
    sizes = {name: getattr(report, f"{name}_bytes") / (1 << 20) for name in ("idle", "peak", "bound")}
    print(", ".join(f"{name} {size:.0f} MiB" for name, size in sizes.items()))
    return int(report.peak_bytes > report.bound_bytes or bool(report.missing or report.found_more))


if __name__ == "__main__":
    sys.exit(main())
