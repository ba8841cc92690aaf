"""How much of the log reaches a socket in a second when a consumer pulls records as they lie there?

A topic holds ``--messages`` with bodies of 1,000 bytes, a key, a unique key and a tag, in the page cache. A pull of
``--limit`` of them is a header of 64 bytes and slices of the log, written by ``sendmsg`` to a TCP connection on
loopback, which another process reads to its end. tierlog compares each record with its queue's unit and with its
checksums. First all messages lie in one queue, so a pull is one slice; then in 8 queues of 2 topics by turns, so each
record is a slice.

It is compared with two plain copies to the same connection, in which nothing is looked at: ``sendmsg`` of the same
slices, found beforehand; and ``sendfile`` of as many bytes of the log's files in pieces of the size of a pull, which
are neighbours also where the records of a queue are not.

``python benchmarks/pull_records.py [--messages 300000] [--limit 256] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness import Report, Row, drained, in_turns
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message
from tierlog.tiering.read.pull_records import Part

_BATCH = 10_000
_HEADER = bytes(64)
_LEAST = 1e9
#: What the kernel takes in one call of ``sendmsg``.
_MOST_PARTS = 1024
Queues = Sequence[tuple[str, int]]
_ONE_QUEUE: Queues = [("orders-topic-00", 0)]
_BY_TURNS: Queues = [(f"orders-topic-0{topic}", queue) for topic in range(2) for queue in range(4)]


def fill(engine: Store, count: int, queues: Queues) -> None:
    """Append the messages, in each batch a queue after the other."""
    chance = random.Random(1)
    for start in range(0, count, _BATCH):
        engine.append(
            [
                Message(
                    queues[number % len(queues)][0], chance.randbytes(1000), [f"{chance.getrandbits(64):016x}"], "TagA",
                    properties={"UNIQ_KEY": f"{chance.getrandbits(128):032X}"},
                    queue_id=queues[number % len(queues)][1],
                )
                for number in range(start, min(start + _BATCH, count))
            ],
            Durability.ASYNC,
        )  # fmt: skip
    engine.flush()


_READER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
room = bytearray(1 << 20)
while connection.recv_into(room):
    pass
"""


@contextmanager
def reading_process() -> Iterator[socket.socket]:
    """A connection that another process reads as fast as it can."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = subprocess.Popen([sys.executable, "-c", _READER, str(server.getsockname()[1])])
        connection, _ = server.accept()
    with connection:
        yield connection
    reader.wait()


def write(connection: socket.socket, parts: list[memoryview | bytes]) -> None:
    """Write all parts."""
    first = 0
    while first < len(parts):
        written = connection.sendmsg(parts[first : first + _MOST_PARTS])
        while first < len(parts) and written >= len(parts[first]):
            written -= len(parts[first])
            first += 1
        if written:
            parts[first] = memoryview(parts[first])[written:]


def pull_all(engine: Store, queues: Queues, limit: int, connection: socket.socket) -> float:
    """Bytes of records a second, from the first of each queue to its last."""
    sent = 0
    begin = time.perf_counter()
    for topic, queue in queues:
        offset = 0
        while True:
            with engine.pull_records(topic, queue, offset, limit) as pulled:
                if not pulled.count:
                    break
                write(connection, [_HEADER, *pulled.parts])
            sent += pulled.bytes
            offset = pulled.next_offset
    return sent / (time.perf_counter() - begin)


def look_at_all(engine: Store, queues: Queues, limit: int) -> float:
    """As :func:`pull_all`, with nothing written."""
    found = 0
    begin = time.perf_counter()
    for topic, queue in queues:
        offset = 0
        while True:
            with engine.pull_records(topic, queue, offset, limit) as pulled:
                if not pulled.count:
                    break
            found += pulled.bytes
            offset = pulled.next_offset
    return found / (time.perf_counter() - begin)


def send_slices(pulls: Sequence[Sequence[Part]], connection: socket.socket) -> float:
    """Bytes of records a second, of pulls whose slices are known."""
    begin = time.perf_counter()
    for parts in pulls:
        write(connection, [_HEADER, *parts])
    return sum(len(part) for parts in pulls for part in parts) / (time.perf_counter() - begin)


def slices_of(engine: Store, queues: Queues, limit: int) -> list[Sequence[Part]]:
    """The slices of all pulls; nothing of this store is ever removed, so they stay."""
    found: list[Sequence[Part]] = []
    for topic, queue in queues:
        offset = 0
        while True:
            with engine.pull_records(topic, queue, offset, limit) as pulled:
                if not pulled.count:
                    break
                found.append(pulled.parts)
            offset = pulled.next_offset
    return found


def send_files(engine: Store, folder: Path, piece_bytes: int, connection: socket.socket) -> float:
    """Bytes of the log's files a second."""
    sent = 0
    begin = time.perf_counter()
    for segment in engine._hot.log.segments():
        with (folder / f"{segment.base_offset:020}").open("rb") as file:
            end = min(segment.end, engine._hot.log.end) - segment.base_offset
            position = 0
            while position < end:
                stop = min(position + piece_bytes, end)
                connection.sendall(_HEADER)
                while position < stop:
                    position += os.sendfile(connection.fileno(), file.fileno(), position, stop - position)
            sent += end
    return sent / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    report = Report.of(__file__, __doc__)
    given.dir.mkdir(parents=True, exist_ok=True)
    for where, queues, target in (("one queue", _ONE_QUEUE, 0.5), ("8 queues by turns", _BY_TURNS, None)):
        with tempfile.TemporaryDirectory(dir=given.dir) as folder, reading_process() as connection:
            settings = Settings.load(overrides={"advertise": "127.0.0.1:10911"})
            with closing(Store.open(Path(folder, "tierlog"), settings=settings)) as engine:
                fill(engine, given.messages, queues)
                drained()
                slices = slices_of(engine, queues, given.limit)
                piece_bytes = sum(map(len, slices[0]))
                log = Path(folder, "tierlog", "commitlog")
                sides = in_turns(
                    {
                        "tierlog": partial(pull_all, engine, queues, given.limit, connection),
                        "the same slices": partial(send_slices, slices, connection),
                        "sendfile": partial(send_files, engine, log, piece_bytes, connection),
                        "tierlog, nothing written": partial(look_at_all, engine, queues, given.limit),
                    },
                    given.runs,
                )
                slices.clear()
            ours, sent = sides["tierlog"], sides["sendfile"]
            report.add(Row(f"{where}: of a copy of the slices", "bytes/s", sides, 0.5))
            report.add(Row(f"{where}: of sendfile", "bytes/s", {"tierlog": ours, "sendfile": sent}, target))
            report.add(Row(f"{where}: by itself", "bytes/s", {"tierlog": ours}, _LEAST))
    report.save()


if __name__ == "__main__":
    main()
