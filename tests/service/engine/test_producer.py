"""What a producer that takes messages one by one promises: when they are there, in what order, and who is told what."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import tierlog.service.engine.producers
from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.producers import Producer
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ClosedError,
    DiskFullError,
    InvalidRequestError,
    ReadOnlyError,
    TopicNotFoundError,
)
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.types import Durability

ROOT = Path("/store")


def opened(fs: FileSystem | None = None, **overrides: object) -> Store:
    settings = tiny_settings(**overrides)
    return Store.open(ROOT, settings=settings, fs=fs or CrashFileSystem(), clock=ManualClock())


def bodies(engine: Store, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """What a reader sees of a queue."""
    least, following = engine.offsets(topic, queue_id)
    found = engine.pull(topic, queue_id, least, 10_000).messages if following > least else []
    return [message.record.body for message in found]


def test_what_was_flushed_is_readable_in_its_order() -> None:
    engine = opened()
    producer = Producer(engine)
    for number in range(2_500):
        producer.send("orders", b"%d" % number, keys=[f"k{number}"], tag="tag", queue_id=0)
    producer.flush()
    assert bodies(engine) == [b"%d" % number for number in range(2_500)]
    producer.close()
    engine.close()


@pytest.mark.parametrize("durability", [Durability.ASYNC, Durability.FLUSHED])
def test_what_was_flushed_survives_a_power_cut(durability: Durability) -> None:
    fs = CrashFileSystem()
    engine = opened(fs)
    producer = Producer(engine, durability)
    for number in range(1_200):
        producer.send("orders", b"%d" % number, queue_id=0)
    producer.flush()
    flushed = [b"%d" % number for number in range(1_200)]
    producer.send("orders", b"after it", queue_id=0)
    again = opened(fs.crash(0, lose_everything=True))
    assert bodies(again) == flushed
    again.close()


def test_a_power_cut_anywhere_loses_nothing_that_a_flush_promised(seed: int) -> None:
    promised = {0: 0}
    fs = CrashFileSystem(seed=seed)
    engine = opened(fs)

    def work() -> None:
        with Producer(engine, Durability.ASYNC) as producer:
            for number in range(60):
                producer.send("orders", b"%d" % number * 40, queue_id=0)
                if number % 7 == 0:
                    producer.flush()
                    promised[fs.calls] = number + 1

    wrecks = []
    fs.on_call = lambda number, operation, path: wrecks.append((number, fs.crash(seed + number)))
    work()
    fs.on_call = None
    assert len(wrecks) > 20
    for number, wreck in wrecks:
        again = opened(wreck)
        found = bodies(again) if [topic.name for topic in again.topics()] else []
        least = max(count for call, count in promised.items() if call < number)
        assert found == [b"%d" % number * 40 for number in range(len(found))]
        assert len(found) >= least
        again.close()


def test_with_ends_in_a_flush() -> None:
    engine = opened()
    with Producer(engine, Durability.ASYNC) as producer:
        producer.send("orders", b"x", queue_id=0)
    assert bodies(engine) == [b"x"]
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("orders", b"y")
    engine.close()


def test_the_caller_is_told_where_each_message_went() -> None:
    engine, told = opened(), list[Appended]()
    with Producer(engine, appended=told.extend) as producer:
        for number in range(2_100):
            producer.send("orders", b"%d" % number)
    assert [engine.message(one.message_id).record.body for one in told] == [b"%d" % number for number in range(2_100)]
    engine.close()


def test_what_is_wrong_with_a_message_is_raised_where_it_is_sent() -> None:
    engine = opened()
    with Producer(engine) as producer:
        producer.send("orders", b"first", queue_id=0)
        with pytest.raises(InvalidRequestError, match="empty body"):
            producer.send("orders", b"")
        producer.send("orders", b"second", queue_id=0)
    assert bodies(engine) == [b"first", b"second"]
    engine.close()


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tierlog.service.engine.producers, "BATCH_BYTES", 1_000)
    engine = opened()
    with Producer(engine, Durability.ASYNC) as producer:
        for _ in range(20):
            producer.send("orders", b"x" * 300, queue_id=0)
            assert producer._pending.text_bytes <= 1_300
        assert engine.stats()["appended_messages"] == 16
    engine.close()


def test_what_the_store_cannot_take_now_stays_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    engine = opened(fs, hot__disk_max_used_percent=40, hot__disk_full_percent=50)
    monkeypatch.setattr(tierlog.service.engine.producers, "BATCH_MESSAGES", 3)
    producer = Producer(engine)
    with monkeypatch.context() as full:
        full.setattr(fs, "free_bytes", lambda path: 1)
        full.setattr(fs, "total_bytes", lambda path: 100)
        for number in range(3):
            producer.send("orders", b"%d" % number, queue_id=0)
        with pytest.raises(DiskFullError):
            producer.send("orders", b"not taken", queue_id=0)
        with pytest.raises(DiskFullError):
            producer.flush()
    assert isinstance(engine._clock, ManualClock)
    engine._clock.advance(2_000)
    producer.send("orders", b"3", queue_id=0)
    producer.close()
    assert bodies(engine) == [b"0", b"1", b"2", b"3"]
    engine.close()


def test_a_batch_that_the_store_refuses_is_given_up() -> None:
    """Otherwise one message would keep all that come later from being appended."""
    engine = opened(create_topics=False)
    engine.create_topic("orders", 1)
    producer = Producer(engine)
    producer.send("nowhere", b"x")
    with pytest.raises(TopicNotFoundError):
        producer.flush()
    producer.send("orders", b"y")
    producer.close()
    assert bodies(engine) == [b"y"]
    engine.close()


def test_a_flush_that_fails_promises_nothing() -> None:
    fs = FaultyFileSystem(CrashFileSystem())
    engine = opened(fs)
    producer = Producer(engine)
    producer.send("orders", b"x")
    fs.refuse("flush", "*/commitlog/*")
    for _ in range(2):
        with pytest.raises(ReadOnlyError):
            producer.flush()
    engine.close()


def test_threads_share_a_producer_and_keep_their_order() -> None:
    engine = opened()
    with Producer(engine, Durability.ASYNC) as producer:

        def send(thread: int) -> None:
            for number in range(700):
                producer.send("orders", b"%d" % number, queue_id=thread)

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for queue_id in range(4):
        assert bodies(engine, queue_id=queue_id) == [b"%d" % number for number in range(700)]
    engine.close()


def test_it_is_counted_as_what_it_is() -> None:
    engine = opened()
    with Producer(engine) as producer:
        for number in range(5):
            producer.send("orders", b"%d" % number)
    assert engine.counted.messages.reading() == {("flushed",): 5}
    engine.close()
