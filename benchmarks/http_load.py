"""How many messages a second does one service take over HTTP, beside a service that only parses the same body?

``tierlog serve`` in a process of its own, wrk as the client: bodies of one JSON message, 100 in JSON, 1,000 as NDJSON
and 10,000 as Arrow (answered as Arrow; the others as JSON), each with durability ``async`` and ``flushed``. The peer,
in turns with it: a FastAPI application with ``json`` and pyarrow, on uvicorn with uvloop and httptools as tierlog is,
that parses the body and answers how many messages it saw; both log a line for each request. Every message that was
answered is counted in the store afterwards; a request that wrk cut off at its end may have been appended too, at most
one for each connection. All of it shares the machine: wrk, the service and its disk.

``PYTHONPATH=. python benchmarks/http_load.py [--seconds 1] [--runs 5] [--body 200] [--dir build/bench]``
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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pyarrow as pa
import uvicorn
from fastapi import FastAPI, Request

from benchmarks.harness import Report, Row, in_turns

_SCRIPT = Path(__file__).parent / "wrk" / "post.lua"
_JSON, _NDJSON, _ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"


#: Of batches, by a profile of the service while it took 10,000 messages a request.
_HELD_BY = (
    "two thirds of the service's time are the kernel's, 46 % alone the copy into new pages of the log, which the host "
    "of this virtual machine supplies slowly (record 0027); the interpreter has 11 %, compiled loops 9 %, copies of "
    "bodies 6 %"
)


@dataclass(frozen=True)
class Shape:
    """One kind of request."""

    name: str
    media_type: str
    messages: int
    connections: int
    #: What durability ``async`` is to reach: messages a second, or the ratio to the peer.
    least: float | None = None
    least_ratio: float | None = None

    def body(self, size: int) -> bytes:
        """The body with so many messages of so many bytes."""
        rows = [{"body": "x" * size, "keys": [f"key-{number}"]} for number in range(self.messages)]
        if self.media_type == _JSON:
            return json.dumps({"messages": rows}).encode()
        if self.media_type == _NDJSON:
            return "".join(json.dumps(row) + "\n" for row in rows).encode()
        table = pa.Table.from_pylist(
            [{"body": b"x" * size, "keys": row["keys"]} for row in rows],
            pa.schema([("body", pa.binary()), ("keys", pa.list_(pa.string()))]),
        )
        out = io.BytesIO()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        return out.getvalue()


SHAPES = (
    Shape("one JSON", _JSON, 1, 64, least_ratio=0.7),
    Shape("one JSON, one client", _JSON, 1, 1),
    Shape("100 JSON", _JSON, 100, 16),
    Shape("1,000 NDJSON", _NDJSON, 1_000, 8, least=200_000),
    Shape("10,000 Arrow", _ARROW, 10_000, 4, least=1_000_000),
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


def load(url: str, shape: Shape, body: Path, seconds: int) -> Figures:
    """Ask for a while."""
    command = [
        "wrk", f"-t{min(2, shape.connections)}", f"-c{shape.connections}", f"-d{seconds}s", "--timeout", "30s",
        "-s", str(_SCRIPT), url, "--", str(body), shape.media_type, _ARROW if shape.media_type == _ARROW else _JSON,
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Figures(**json.loads(said.strip().splitlines()[-1]))


@contextlib.contextmanager
def service(log: Path, *command: str, is_ready: Callable[[str], bool]) -> Iterator[str]:
    """The URL that a process writes last on its line into its log."""
    with log.open("w") as written:
        process = subprocess.Popen([sys.executable, *command], stdout=written, stderr=written)
    try:
        while (line := next(filter(is_ready, log.read_text().splitlines()), None)) is None:
            if process.poll() is not None:
                raise SystemExit(f"the service did not start: {log.read_text()}")
            time.sleep(0.05)
        yield line.split()[-1]
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


def measure(url: str, peer: str, shape: Shape, arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """The rows of one kind of request."""
    body = folder / "body"
    body.write_bytes(shape.body(arguments.body))
    found: dict[str, list[Figures]] = {"async": [], "flushed": [], "peer": []}

    def side(name: str) -> Callable[[], float]:
        where = f"{peer}/peer" if name == "peer" else f"{url}/v1/topics/bench/messages?durability={name}"

        def run() -> float:
            found[name].append(load(where, shape, body, arguments.seconds))
            return found[name][-1].messages_a_second(shape)

        return run

    asked = UrlRequest(f"{url}/v1/topics/bench/messages", body.read_bytes(), {"Content-Type": shape.media_type})
    urlopen(asked).close()  # kernels are compiled with the first of each kind, if they are not yet
    before = stored_messages(url)
    rates = in_turns({name: side(name) for name in found}, arguments.runs)
    _check_stored(stored_messages(url) - before, [*found["async"], *found["flushed"]], shape)
    for durability in ("async", "flushed"):
        what, runs = f"{shape.name}, {durability}", found[durability][1:]
        note = (
            f"{shape.connections} connections, p50 {min(one.p50_us for one in runs) / 1000:.1f} ms, "
            f"p99 {max(one.p99_us for one in runs) / 1000:.1f} ms, {sum(one.refused for one in runs)} refused, "
            f"{sum(one.broken for one in runs)} broken"
        )
        aimed_at = shape if durability == "async" else None
        if aimed_at is not None and aimed_at.least is not None:
            yield Row(what, "messages/s", {"tierlog": rates[durability]}, aimed_at.least, note=note, held_by=_HELD_BY)
            what, note = f"{shape.name}, {durability}, beside the peer", ""
        sides = {"tierlog": rates[durability], "only parsed": rates["peer"]}
        yield Row(what, "messages/s", sides, aimed_at.least_ratio if aimed_at is not None else None, note=note)


def _check_stored(stored: int, runs: list[Figures], shape: Shape) -> None:
    """What was acknowledged is there, and no more than what wrk had on its way when it ended."""
    answered = sum(one.requests - one.refused for one in runs) * shape.messages
    if not answered <= stored <= answered + len(runs) * shape.connections * shape.messages:
        raise SystemExit(f"{answered} messages were acknowledged, {stored} are there")


def main() -> None:
    """Both services, then every kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=1, help="of each run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--body", type=int, default=200, help="bytes of a message's body")
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where the store is made")
    parser.add_argument("--peer-port", type=int, default=18099, help="where the peer listens")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        port = arguments.peer_port
        uvicorn.run(peer_app(), host="127.0.0.1", port=port, loop="uvloop", http="httptools")
        return
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed, and nothing was measured: apt-get install wrk")
    arguments.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name)
        serve = ("-m", "tierlog.service.main", "serve", "--root", str(folder / "store"), "--port", "0")
        beside = (__file__, "--as-peer", "--peer-port", str(arguments.peer_port))
        with (
            service(folder / "log", *serve, is_ready=lambda line: "serving" in line) as url,
            service(folder / "peer-log", *beside, is_ready=lambda line: "startup complete" in line),
        ):
            for shape in SHAPES:
                for row in measure(url, f"http://127.0.0.1:{arguments.peer_port}", shape, arguments, folder):
                    report.add(row)
    report.save()


if __name__ == "__main__":
    main()
