"""How fast are messages appended one by one through the library, until queues and key index have them too?

Bodies of 256 random bytes, a key of 16 hex digits and a tag, ``async``, one thread: a call for each message, with
queues and index derived beside it. Each run is timed twice on both sides: until the last message is written, which is
what the calls alone took, and until all is derived, which counts, as whoever only postpones work is no faster.
RocketMQ derives what is written, which tierlog does with ``hot.visibility=written``; by default all is on the disk as
well by then. ``Producer.send`` keeps messages and encodes 1,000 at a time, so its calls answer nothing;
``engine.append`` of one message answers where it went, as RocketMQ's ``putMessage`` does.

``python benchmarks/append_single.py [--messages 500000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.append import opened
from benchmarks.corpus import hex_keys
from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.peers.rocketmq import rocketmq
from tierlog.service.engine.producers import Producer
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability, Visibility
from tierlog.tiering.message.batch import Message

_BODY_BYTES = 256
_DISTINCT = 50_000
#: By a profile; record 0021 has it.
_HELD_BY = (
    "of 2.8 us a message processors work 1.5: 0.7 to check and keep it, 0.15 to lay it out, 0.5 to encode and write;"
    " the rest is waiting: writes that meet a flush of what came before, the slowest for 0.1 to 0.4 s"
)
#: ``engine.append`` of one message gets that share of the messages.
_FEWER = 10


def corpus() -> list[tuple[bytes, str]]:
    """Bodies and keys."""
    octets = np.random.default_rng(1).integers(0, 256, _DISTINCT * _BODY_BYTES, np.uint8).tobytes()
    bodies = [octets[start : start + _BODY_BYTES] for start in range(0, len(octets), _BODY_BYTES)]
    return list(zip(bodies, [key.decode() for key in hex_keys(_DISTINCT).tolist()], strict=True))


class Calls:
    """What one side's runs took, of which a turn asks for two figures one after the other."""

    def __init__(self, run: Callable[[], tuple[float, float]]) -> None:
        self._run = run
        #: Calls a second until the last message was written, of every run.
        self.written: list[float] = []

    def until_derived(self) -> float:
        """Calls a second of a new run until all is derived."""
        written, derived = self._run()
        self.written.append(written)
        return derived


def timed(
    folder: Path, count: int, append: Callable[[Store], object], visibility: Visibility = Visibility.WRITTEN
) -> tuple[float, float]:
    """Calls a second on a new store: until all is written, and until all is derived."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        engine = opened(Path(inside) / "store", visibility=visibility.value)
        try:
            drained()
            begun = time.perf_counter()
            append(engine)
            written = time.perf_counter()
            end = engine._hot.log.end
            if visibility is Visibility.FLUSHED:
                engine._hot.flush(end)
            while engine._hot.dispatch() < end:
                pass
            derived = time.perf_counter()
            assert sum(queue.max_offset for queue in engine.topic("orders").queues) == count
        finally:
            engine.close()
    return count / (written - begun), count / (derived - begun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    messages = corpus()
    few = arguments.messages // _FEWER

    def produce(engine: Store) -> None:
        producer = Producer(engine, Durability.ASYNC)
        send = producer.send
        for _ in range(arguments.messages // _DISTINCT):
            for body, key in messages:
                send("orders", body, keys=(key,), tag="TagA")
        engine.append(producer._pending, Durability.ASYNC)  # written, as the others' last one, not flushed

    def append_each(engine: Store) -> None:
        for number in range(few):
            body, key = messages[number % _DISTINCT]
            engine.append([Message("orders", body, (key,), "TagA")], Durability.ASYNC)

    with tempfile.TemporaryDirectory(dir=arguments.dir) as inside:
        folder = Path(inside)
        with rocketmq(folder / "java") as java:
            count = arguments.messages - arguments.messages % _DISTINCT

            def put_message() -> tuple[float, float]:
                drained()
                found = java.run("append", n=count, threads=1, body=_BODY_BYTES, sync=False, batch=1)
                return float(found["rate"]), float(found["dispatched_rate"])

            sides = {
                "Producer.send": Calls(lambda: timed(folder, count, produce)),
                "RocketMQ putMessage": Calls(put_message),
                "engine.append of one": Calls(lambda: timed(folder, few, append_each)),
                "all of it flushed": Calls(lambda: timed(folder, count, produce, Visibility.FLUSHED)),
            }
            found = in_turns({name: side.until_derived for name, side in sides.items()}, arguments.runs)
    flushed = {"Producer.send": found.pop("all of it flushed"), "RocketMQ putMessage": found["RocketMQ putMessage"]}
    note = "hot.visibility=written, as RocketMQ"
    report.add(Row("append one by one, until derived", "calls/s", found, target=3.0, note=note, held_by=_HELD_BY))
    report.add(Row("the same, all of it flushed", "calls/s", flushed, note="with the default visibility"))
    written = {name: sides[name].written[-arguments.runs :] for name in found}
    report.add(Row("append one by one, the calls alone", "calls/s", written))
    report.save()


if __name__ == "__main__":
    main()
