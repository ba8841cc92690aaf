"""How many messages a second are acknowledged as flushed, from 64 asyncio tasks, from 64 threads and from one producer?

Messages of 256 random bytes with a key, each sent when the one before is acknowledged. The peer of the many is RocketMQ
with synchronous flushes and 64 threads; the peer of the one is the device itself: as many ``pwrite`` of 4 KiB, each
with its ``fdatasync``, into a pre-written file in the same folder.

Then what flushes that are shared are worth, with a writer that flushes for itself after each append; and what the
append takes that meets the end of a segment, if the next segment was made ahead and if not.

``python benchmarks/group_commit.py [--messages 100000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

import uvloop

from benchmarks.append import opened
from benchmarks.corpus import hex_keys
from benchmarks.harness import Report, Row, drained, in_turns
from benchmarks.limits import LeastLog
from benchmarks.peers.rocketmq import RocketMQ, rocketmq
from tierlog.service.config.settings import Settings
from tierlog.service.engine.producers import AsyncProducer
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message

MANY = 64
#: What holds rows back, by profiles; record 0021 has them.
_TASKS_HELD_BY = (
    "of 7 to 9 us a message 2 are the flush that 64 share, 4 all of the Python there is (append 1.4, event loop and "
    "futures 1, coroutines 0.8, checks 0.5, answers 0.5), the rest a processor that slept through the flush: record "
    "0021; batches that overlap each other's flush, so that it need not sleep, were no faster"
)
_THREADS_HELD_BY = (
    "18 to 26 us of processor time a message, nearly all of it two switches of threads that hand over the "
    "interpreter's lock, each of which wakes a processor"
)
_LONE_HELD_BY = (
    "20 us of Python become 54 after each wait for the disk, as a processor that slept comes back with cold caches: "
    "so it is after any sleep of 100 us, and 26 us after one of spinning. The target leaves about 12 us"
)
_LIMIT = "records, flushes and waking alone"
_PROOF = (
    "a program of 100 lines that makes the same records, writes and flushes them and wakes who waits, and has neither "
    "queues nor index nor topics nor anything that handles a failure"
)
_BODY = os.urandom(256)
_LONE = 3_000
_KEYS = [key.decode() for key in hex_keys(100_000).tolist()]
_PAGE = bytes(4096)
_DEVICE_BYTES = 64 << 20
_ROLLED_BYTES = 64 << 20


def tasks(engine: Store, count: int, messages: int) -> float:
    """Acknowledged messages a second of so many tasks that each await their last one."""

    async def run() -> float:
        async with AsyncProducer(engine) as producer:
            return await _rate_of_tasks(
                count, messages, lambda key: producer.send("orders", _BODY, keys=(key,), tag="TagA")
            )

    return _on_a_loop(run)


def least_tasks(log: LeastLog, count: int, messages: int) -> float:
    """The same of the program that does only what cannot be left out."""
    return _on_a_loop(lambda: _rate_of_tasks(count, messages, lambda key: log.send(("orders", _BODY, key, "TagA"))))


async def _rate_of_tasks(count: int, messages: int, send: Callable[[str], Awaitable[object]]) -> float:
    async def send_all(share: int) -> None:
        for number in range(share):
            await send(_KEYS[number % len(_KEYS)])

    begun = time.perf_counter()
    await asyncio.gather(*(send_all(messages // count) for _ in range(count)))
    return messages // count * count / (time.perf_counter() - begun)


def _on_a_loop(run: Callable[[], Coroutine[object, object, float]]) -> float:
    drained()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def threads(count: int, messages: int, append: Callable[[Message], object]) -> float:
    """The same of threads."""

    def send(share: int) -> None:
        for number in range(share):
            append(Message("orders", _BODY, (_KEYS[number % len(_KEYS)],), "TagA"))

    drained()
    running = [threading.Thread(target=send, args=(messages // count,)) for _ in range(count)]
    begun = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return messages // count * count / (time.perf_counter() - begun)


class Device:
    """What the disk does without any log."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        for position in range(0, _DEVICE_BYTES, 1 << 20):
            os.pwrite(self._fd, bytes(1 << 20), position)
        os.fsync(self._fd)

    def run(self, messages: int) -> float:
        """Writes a second that are each flushed."""
        drained()
        begun = time.perf_counter()
        for number in range(messages):
            os.pwrite(self._fd, _PAGE, number * len(_PAGE) % _DEVICE_BYTES)
            os.fdatasync(self._fd)
        return messages / (time.perf_counter() - begun)


def flush_each(engine: Store) -> Callable[[Message], object]:
    """Whoever appends flushes, whether or not somebody else has done so meanwhile."""
    lock = threading.Lock()

    def append(message: Message) -> None:
        engine.append([message], Durability.ASYNC)
        with lock:
            engine._hot.log._flush_file()  # there is no public way to flush twice what is flushed

    return append


def slowest_roll_ms(folder: Path, *, ahead: bool) -> float:
    """What the slowest of four appends took that met the end of a segment."""
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        settings = Settings.load(overrides={"hot.segment_bytes": _ROLLED_BYTES, "advertise": "127.0.0.1:10911"})
        engine = Store.open(Path(inside), settings=settings)
        batch = [Message("orders", bytes(64 << 10), queue_id=0) for _ in range(16)]
        slowest = 0.0
        while engine._hot.log.last_base < 4 * _ROLLED_BYTES:
            if ahead:  # what the background does beside appends, here between two of them
                engine._hot.prepare_segment()
            base, begun = engine._hot.log.last_base, time.perf_counter()
            engine.append(batch)
            if engine._hot.log.last_base > base:
                slowest = max(slowest, time.perf_counter() - begun)
        engine.close()
    return slowest * 1e3


def measure(
    engine: Store, java: RocketMQ, folder: Path, *, messages: int, runs: int, report: Report
) -> None:  # fmt: skip
    """The rows about one store."""
    device, least = Device(folder / "device"), LeastLog(folder / "least")

    def append(message: Message) -> object:
        return engine.append([message])

    def append_least(message: Message) -> object:
        return least.append_shared((message.topic, message.body, message.keys[0], message.tag))

    def put_message(count: int, many: int) -> float:
        drained()
        return java.rate("append", n=count, threads=many, body=len(_BODY), sync=True, batch=1)

    found = in_turns(
        {
            "64 asyncio tasks": lambda: tasks(engine, MANY, messages),
            "RocketMQ, 64 threads": lambda: put_message(messages, MANY),
            "64 threads": lambda: threads(MANY, messages // 4, append),
            "one flush each": lambda: threads(MANY, messages // 40, flush_each(engine)),
            "least, tasks": lambda: least_tasks(least, MANY, messages),
            "least, threads": lambda: threads(MANY, messages // 4, append_least),
        },
        runs,
    )
    peer = found["RocketMQ, 64 threads"]
    report.add(
        Row("64 asyncio tasks, flushed", "acks/s",
            {"AsyncProducer.send": found["64 asyncio tasks"], "RocketMQ, 64 threads": peer}, target=3.5,
            note="tasks run on uvloop, as the service does", held_by=_TASKS_HELD_BY,
            limit={_LIMIT: found["least, tasks"]}, proof=_PROOF)
    )  # fmt: skip
    report.add(
        Row("64 threads, flushed", "acks/s", {"engine.append": found["64 threads"], "RocketMQ, 64 threads": peer},
            target=1.0, held_by=_THREADS_HELD_BY, limit={_LIMIT: found["least, threads"]}, proof=_PROOF)
    )  # fmt: skip
    report.add(
        Row("64 threads, shared flushes", "acks/s",
            {"engine.append": found["64 threads"], "one flush each": found["one flush each"]})
    )  # fmt: skip
    lone = in_turns(
        {
            "engine.append": lambda: threads(1, _LONE, append),
            "pwrite 4 KiB + fdatasync": lambda: device.run(_LONE),
            "AsyncProducer.send": lambda: tasks(engine, 1, _LONE),
            "RocketMQ": lambda: put_message(_LONE, 1),
            "least, producer": lambda: threads(1, _LONE, append_least),
            "least, task": lambda: least_tasks(least, 1, _LONE),
        },
        runs,
    )
    least_producer, least_task = lone.pop("least, producer"), lone.pop("least, task")
    report.add(
        Row("1 producer, flushed", "acks/s", lone, target=0.9, held_by=_LONE_HELD_BY, limit={_LIMIT: least_producer},
            proof=_PROOF)
    )  # fmt: skip
    device_rates = lone["pwrite 4 KiB + fdatasync"]
    report.add(
        Row("1 asyncio task, flushed", "acks/s",
            {"AsyncProducer.send": lone["AsyncProducer.send"], "pwrite 4 KiB + fdatasync": device_rates}, target=0.9,
            held_by=_LONE_HELD_BY, limit={_LIMIT: least_task}, proof=_PROOF)
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as inside:
        folder = Path(inside)
        engine = opened(folder / "store")
        with rocketmq(folder / "java") as java:
            measure(engine, java, folder, messages=arguments.messages, runs=arguments.runs, report=report)
        engine.close()
        rolls = in_turns(
            {
                "made ahead": lambda: slowest_roll_ms(folder, ahead=True),
                "made by the append": lambda: slowest_roll_ms(folder, ahead=False),
            },
            arguments.runs,
        )
        report.add(Row("1 MiB append at a segment's end, slowest of 4", "ms", rolls, smaller_is_better=True))
    report.save()


if __name__ == "__main__":
    main()
