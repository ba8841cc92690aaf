"""How many messages a second does one service take over HTTP, and how long does a request wait?

``tierlog serve`` in a process of its own, wrk as the client: bodies of one JSON message, 100 in JSON, 1,000 as NDJSON
and 10,000 as Arrow, each with durability ``async`` and ``flushed``, over 1, 16 and 64 connections, for ``--seconds``
each. The peer, in the same run: a FastAPI application that only parses the same body and answers how many messages it
saw. Every message that was answered is counted in the store afterwards; a request that wrk cut off at its end may have
been appended too, at most one for each connection. All of it shares the machine: wrk, the service and its disk.

``PYTHONPATH=. python benchmarks/http_load.py [--seconds 3] [--connections 1 16 64] [--body 200]``
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pyarrow as pa
import uvicorn
from fastapi import FastAPI, Request

_SCRIPT = Path(__file__).parent / "wrk" / "post.lua"
_JSON, _NDJSON, _ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Shape:
    """One kind of request."""

    name: str
    media_type: str
    messages: int

    def body(self, size: int) -> bytes:
        """The body with so many messages of so many bytes."""
        rows = [{"body": "x" * size, "keys": [f"key-{number}"]} for number in range(self.messages)]
        if self.media_type == _JSON:
            return json.dumps({"messages": rows}).encode()
        if self.media_type == _NDJSON:
            return "".join(json.dumps(row) + "\n" for row in rows).encode()
        table = pa.Table.from_pylist(
            [{"body": row["body"].encode(), "keys": row["keys"]} for row in rows],
            pa.schema([("body", pa.binary()), ("keys", pa.list_(pa.string()))]),
        )
        out = io.BytesIO()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        return out.getvalue()


SHAPES = (
    Shape("one JSON", _JSON, 1),
    Shape("100 JSON", _JSON, 100),
    Shape("1,000 NDJSON", _NDJSON, 1_000),
    Shape("10,000 Arrow", _ARROW, 10_000),
)


@dataclass(frozen=True)
class Figures:
    """What wrk counted."""

    requests: int
    duration_us: int
    p50_us: int
    p99_us: int
    refused: int
    broken: int

    def messages_a_second(self, shape: Shape) -> float:
        """Messages in answered requests."""
        return self.requests * shape.messages / (self.duration_us / 1e6)


def peer_app() -> FastAPI:
    """Parses a body as its media type says, and nothing else."""
    app = FastAPI()

    @app.post("/peer")
    async def peer(request: Request) -> dict[str, int]:
        data = await request.body()
        match request.headers["content-type"]:
            case "application/json":
                return {"messages": len(json.loads(data)["messages"])}
            case "application/x-ndjson":
                return {"messages": len([json.loads(line) for line in data.splitlines()])}
            case _:
                return {"messages": pa.ipc.open_stream(data).read_all().num_rows}

    return app


def load(url: str, shape: Shape, body: Path, connections: int, seconds: int) -> Figures:
    """Ask for a while."""
    threads = min(2, connections)
    command = [
        "wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(_SCRIPT), url, "--",
        str(body), shape.media_type,
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Figures(**json.loads(said.strip().splitlines()[-1]))


@contextlib.contextmanager
def service(*command: str, is_ready: Callable[[str], bool]) -> Iterator[str]:
    """The URL that a process prints last on its line on standard error."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if is_ready(line):
                threading.Thread(target=process.stderr.read, daemon=True).start()  # it logs each request
                yield line.split()[-1]
                break
        else:
            raise SystemExit("the service did not start")
    finally:
        process.terminate()
        process.wait()


def stored_messages(url: str) -> int:
    """How many messages the store has, all topics and queues counted, once requests that wrk cut off are done too."""
    counted = -1
    while True:
        urlopen(UrlRequest(f"{url}/v1/admin/flush", method="POST")).close()
        with urlopen(f"{url}/v1/topics") as answer:
            topics = json.load(answer)["topics"]
        offsets = [queue for topic in topics for queue in topic["offsets"]]
        before, counted = counted, sum(queue["max_offset"] - queue["min_offset"] for queue in offsets)
        if before == counted:
            return counted
        time.sleep(0.5)


def measure(url: str, peer: str, arguments: argparse.Namespace, folder: Path) -> None:
    """All shapes, one line each."""
    for shape in SHAPES:  # kernels are compiled with the first of each
        (folder / "body").write_bytes(shape.body(arguments.body))
        load(f"{url}/v1/topics/bench/messages", shape, folder / "body", 1, 2)
    print(f"{'request':13} {'durability':10} conns  messages/s  p50 ms  p99 ms  peer messages/s  ratio")
    for shape in SHAPES:
        body = folder / "body"
        body.write_bytes(shape.body(arguments.body))
        for connections in arguments.connections:
            beside = load(f"{peer}/peer", shape, body, connections, arguments.seconds)
            for durability in ("async", "flushed"):
                before = stored_messages(url)
                where = f"{url}/v1/topics/bench/messages?durability={durability}"
                found = load(where, shape, body, connections, arguments.seconds)
                stored = stored_messages(url) - before
                answered = (found.requests - found.refused) * shape.messages
                if not answered <= stored <= answered + connections * shape.messages:
                    raise SystemExit(f"{answered} messages were acknowledged, {stored} are there")
                rate, other = found.messages_a_second(shape), beside.messages_a_second(shape)
                print(
                    f"{shape.name:13} {durability:10} {connections:5} {rate:11,.0f} {found.p50_us / 1000:7.1f} "
                    f"{found.p99_us / 1000:7.1f} {other:16,.0f} {rate / other:6.2f}"
                    + (f"  ({found.refused} refused, {found.broken} broken)" if found.refused + found.broken else ""),
                    flush=True,
                )


def main() -> None:
    """Both services, then every kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--body", type=int, default=200, help="bytes of a message's body")
    parser.add_argument("--peer-port", type=int, default=18099, help="where the peer listens")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        uvicorn.run(peer_app(), host="127.0.0.1", port=arguments.peer_port, log_level="info", access_log=False)
        return
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed, and nothing was measured: apt-get install wrk")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        serve = ("-m", "service.cli.main", "serve", "--root", str(folder / "store"), "--port", "0")
        beside = (__file__, "--as-peer", "--peer-port", str(arguments.peer_port))
        with (
            service(*serve, is_ready=lambda line: "serving" in line) as url,
            service(*beside, is_ready=lambda line: "startup complete" in line),
        ):
            measure(url, f"http://127.0.0.1:{arguments.peer_port}", arguments, folder)


if __name__ == "__main__":
    main()
