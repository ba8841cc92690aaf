"""How fast are batches of 1,000 messages appended, until queues and key index have them too?

Bodies of 256 random bytes, a key of 16 hex digits and a tag, four queues, ``async``: one producer hands Arrow columns
to the library, with the service's background beside it, into a log whose segments are pre-written. Timed from the
first append until all is derived. RocketMQ appends as many, one by one (``putMessage``) and in batches
(``putMessages``), asynchronously, until its queues and its index have them. It derives what is written, which tierlog
does with ``hot.visibility=written``; by default tierlog derives what is flushed, so that all is on the disk by then.

Encoding alone is compared with copying: the log's encoder and its write into a pre-written file, against writes of the
same bytes from memory to the same places.

Batches as RocketMQ's clients send them, 500 messages of 100 bytes with keys and a tag in one body, are parsed and
appended by one thread, ``async``.

Then ``--sustained-gib`` of log are appended, all of it derived and on the disk at the end, beside a plain writer of as
many bytes, 1 MiB a call and an fdatasync every 32 MiB; both begin with files that are not there. Two turns are enough.

``python benchmarks/append.py [--messages 1000000] [--runs 5] [--sustained-gib 10] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from benchmarks.corpus import hex_keys
from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.peers.rocketmq import rocketmq
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import Durability, Visibility
from tierlog.tiering.format.client_batch import BatchEntry, encode_client_batch
from tierlog.tiering.format.record import encode_host
from tierlog.tiering.hot import commit_log
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.batch import MessageBatch, encode_batch

BATCH = 1_000
_BODY_BYTES = 256
_CLIENT_BATCH, _CLIENT_BODY_BYTES = 500, 100
_CLIENT_TARGET = 300_000
#: What is appended again and again, so that it takes no time to make: more than a processor's caches hold.
_DISTINCT = 100_000
_FLUSHED_MIB = 32
_SUSTAINED_TURNS = 2
_WRITTEN = "hot.visibility=written, as RocketMQ"
_ENCODING_HELD_BY = (
    "of 120 ns a message the write takes 55 and encoding 65, of which 25 are copying and 11 the body's checksum; the "
    "target leaves 32 for encoding"
)
_DERIVED_HELD_BY = (
    "processor time, a core each: 0.33 to 0.47 us a message to append (encoding 0.07, the write 0.06, looking at "
    "columns 0.07, the rest numbering, flushes and the interpreter) and as much to derive and make pages ready (scan "
    "0.09, hashing 0.07, putting 0.04); neither the disk nor the interpreter's lock, see record 0026"
)
_SUSTAINED_HELD_BY = (
    "the next segment's zeros take as much of the disk as the log, and each message about a microsecond of the two "
    "cores, with index files that grow and are compacted"
)


def batches(distinct: int = _DISTINCT, *, unique_keys: bool = False) -> list[ArrowMessages]:
    """Messages of one topic in Arrow columns, a batch each, with one key or two."""
    per_message = 2 if unique_keys else 1
    bodies = np.random.default_rng(1).integers(0, 256, distinct * _BODY_BYTES, np.uint8)
    keys = [key.decode() for key in hex_keys(distinct * per_message).tolist()]
    found = []
    for start in range(0, distinct, BATCH):
        ends = np.arange(BATCH + 1, dtype=np.int32)
        columns = {
            "body": pa.Array.from_buffers(
                pa.binary(), BATCH,
                [None, pa.py_buffer(ends * _BODY_BYTES), pa.py_buffer(bodies[start * _BODY_BYTES :])],
            ),
            "keys": pa.ListArray.from_arrays(
                ends * per_message, pa.array(keys[start * per_message : (start + BATCH) * per_message])
            ),
            "tag": pa.array(["TagA"] * BATCH),
        }  # fmt: skip
        found.append(ArrowMessages(pa.table(columns), "orders"))
    return found


def opened(folder: Path, *, prewritten: bool = True, start: bool = True, **hot: object) -> Store:
    """A new store; ``prewritten``: with two segments of zeros on the disk, ``start``: with its background running.

    ``hot`` are settings of the hot tier.
    """
    overrides = {f"hot.{name}": value for name, value in {"default_queues": 4, **hot}.items()}
    settings = Settings.load(overrides={"advertise": "127.0.0.1:10911", **overrides})
    engine = Store.open(folder, settings=settings)
    if prewritten:
        log = engine._hot.log
        with patch.object(commit_log, "ZEROS_AHEAD", (log.segment_bytes, log.segment_bytes)):
            while log.write_zeros(engine._hot.between_appends):
                pass
            log.prepare_next()
    if start:
        engine.start()
    return engine


def append(folder: Path, columns: list[ArrowMessages], messages: int, visibility: Visibility) -> float:
    """Messages a second until all is derived."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        engine = opened(Path(inside) / "store", visibility=visibility.value)
        try:
            drained()
            begun = time.perf_counter()
            append_all(engine, columns, messages)
            rate = messages / (time.perf_counter() - begun)
            assert sum(queue.max_offset for queue in engine.topic("orders").queues) == messages
        finally:
            engine.close()
    return rate


def append_all(engine: Store, columns: list[ArrowMessages], messages: int) -> None:
    """Append, and see that everything is derived."""
    for number in range(messages // BATCH):
        engine.append(columns[number % len(columns)], Durability.ASYNC)
    hot = engine._hot
    while hot.dispatch() < hot.log.end:
        hot.flush()  # what is not visible yet


def append_client_batches(folder: Path, messages: int) -> float:
    """Messages a second, parsed and appended by one thread."""
    texts = (b"UNIQ_KEY\x01%032X\x02KEYS\x01order-%d\x02TAGS\x01TagA\x02" % (n, n) for n in range(_CLIENT_BATCH))
    batch = encode_client_batch(BatchEntry(0, b"x" * _CLIENT_BODY_BYTES, text) for text in texts)
    host = encode_host(bytes((10, 1, 2, 3)), 54321)
    with tempfile.TemporaryDirectory(dir=folder) as inside, opened(Path(inside) / "store") as engine:
        drained()
        begun = time.perf_counter()
        for number in range(messages // _CLIENT_BATCH):
            sent = engine.client_messages()
            sent.add_batch("orders", number % 4, batch, born_ms=number, born_host=host)
            engine.append(sent, Durability.ASYNC)
        return messages / (time.perf_counter() - begun)


class Copies:
    """One pre-written file, the messages as they come in and the records as they are in the file."""

    def __init__(self, path: Path, columns: list[ArrowMessages]) -> None:
        self._batches = [MessageBatch.of(each, now_ms=1, max_body_bytes=1 << 20) for each in columns]
        self._sizes = [batch.record_sizes(16) for batch in self._batches]
        self._queue_id = np.zeros(BATCH, np.int32)
        self._queue_offset = np.arange(BATCH, dtype=np.int64)
        self._buffer = np.empty(max(int(sizes.sum()) for sizes in self._sizes), np.uint8)
        self._records = []
        position = 0
        for number, sizes in enumerate(self._sizes):
            self._records.append(self._encoded(number, position).copy())
            position += int(sizes.sum())
        fs = LocalFileSystem()
        fs.create(path, position, prewrite=True)
        self._file = fs.open(path)

    def encode(self) -> float:
        """Messages a second, encoded and written."""
        return self._written(self._encoded)

    def copy(self) -> float:
        """Messages a second whose bytes are only written."""
        return self._written(lambda number, position: self._records[number])

    def _encoded(self, number: int, position: int) -> np.ndarray:
        sizes = self._sizes[number]
        out = self._buffer[: int(sizes.sum())]
        encode_batch(
            self._batches[number], 0, BATCH, sizes, out, physical=position, store_ms=1,
            store_host=np.zeros(8, np.uint8), queue_id=self._queue_id, queue_offset=self._queue_offset,
        )  # fmt: skip
        return out

    def _written(self, data_of: Callable[[int, int], np.ndarray]) -> float:
        drained()
        position = 0
        begun = time.perf_counter()
        for number in range(len(self._batches)):
            data = data_of(number, position)
            self._file.write_at(position, data)
            position += len(data)
        return len(self._batches) * BATCH / (time.perf_counter() - begun)

    def close(self) -> None:
        self._file.close()


def sustained(folder: Path, columns: list[ArrowMessages], gib: float) -> float:
    """MB of log a second over many segments, until all is derived and on the disk."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        engine = opened(Path(inside) / "store", prewritten=False)
        try:
            drained()
            begun = time.perf_counter()
            while engine._hot.log.end < gib * (1 << 30):
                for each in columns:
                    engine.append(each, Durability.ASYNC)
            append_all(engine, columns, 0)
            engine._hot.flush()
            return engine._hot.log.end / (time.perf_counter() - begun) / 1e6
        finally:
            engine.close()


def plainly(folder: Path, gib: float) -> float:
    """MB a second of a program that only writes files of a GiB."""
    piece = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8).tobytes()
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        drained()
        begun = time.perf_counter()
        left = int(gib * 1024)
        for number in range(-(-left // 1024)):
            file = os.open(Path(inside) / str(number), os.O_CREAT | os.O_WRONLY)
            for at in range(min(1024, left)):
                os.pwrite(file, piece, at << 20)
                if (at + 1) % _FLUSHED_MIB == 0:
                    os.fdatasync(file)
            os.fdatasync(file)
            os.close(file)
            left -= 1024
        return int(gib * 1024) * (1 << 20) / (time.perf_counter() - begun) / 1e6


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sustained-gib", type=float, default=10)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    columns = batches()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as inside:
        folder = Path(inside)
        copies = Copies(folder / "copies", columns)
        try:
            found = in_turns({"encode and write": copies.encode, "write": copies.copy}, arguments.runs)
        finally:
            copies.close()
        report.add(Row("encode into a pre-written file", "messages/s", found, target=0.65, held_by=_ENCODING_HELD_BY))
        with rocketmq(folder / "java") as java:
            n = arguments.messages
            sides = {
                "tierlog": lambda: append(folder, columns, n, Visibility.WRITTEN),
                "tierlog, flushed": lambda: append(folder, columns, n, Visibility.FLUSHED),
                "putMessage": lambda: java.rate("append", "dispatched_rate", n=n, prewritten=True),
                "putMessages": lambda: java.rate("append", "dispatched_rate", n=n, batch=BATCH, prewritten=True),
            }
            found = in_turns(sides, arguments.runs)
        what = "append in batches of 1,000, until derived"
        for name, target in (("putMessage", 20), ("putMessages", 10)):
            both = {"tierlog": found["tierlog"], f"RocketMQ {name}": found[name]}
            report.add(Row(what, "messages/s", both, target=target, note=_WRITTEN, held_by=_DERIVED_HELD_BY))
        both = {name: found[name] for name in ("tierlog, flushed", "putMessages")}
        report.add(Row("the same, all of it flushed", "messages/s", both, note="with the default visibility"))
        found = in_turns({"tierlog": lambda: append_client_batches(folder, n)}, arguments.runs)
        what = f"client batches of {_CLIENT_BATCH}, parsed and appended"
        report.add(Row(what, "messages/s", found, target=_CLIENT_TARGET))
        if arguments.sustained_gib:
            gib = arguments.sustained_gib
            sides = {"tierlog": lambda: sustained(folder, columns, gib), "plain writes": lambda: plainly(folder, gib)}
            found = in_turns(sides, min(arguments.runs, _SUSTAINED_TURNS), warm_ups=0)
            what = f"append {gib:g} GiB of log, until derived and on the disk"
            report.add(Row(what, "MB/s", found, target=0.9, held_by=_SUSTAINED_HELD_BY))
    report.save()


if __name__ == "__main__":
    main()
