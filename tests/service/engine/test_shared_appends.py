"""Threads that append one message each share appends: each has its own answer, and nobody waits for ever."""

from __future__ import annotations

import itertools
import threading
from collections import Counter

import pytest

from tests.service.cli.test_flush import wait_until
from tests.service.engine.test_producer import bodies, opened
from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.fs.faulty_fs import FaultyFileSystem
from tierlog.service.engine import appends
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError, ReadOnlyError, StoreError, TopicNotFoundError
from tierlog.tiering.message.batch import Message

LOG = "*/commitlog/*"


class Senders:
    """Threads that append a message each; the first is on its way, and the others wait for it."""

    def __init__(self, engine: Store, fs: FaultyFileSystem) -> None:
        self.engine = engine
        self.answers: dict[bytes, Appended | BaseException] = {}
        self._threads: list[threading.Thread] = []
        self.held = fs.hold("flush", LOG)
        self.start(Message("orders", b"first", queue_id=0))
        self.held.wait_until_reached()

    def start(self, message: Message) -> None:
        self._threads.append(threading.Thread(target=self._append, args=(message,)))
        self._threads[-1].start()

    def join_in(self, *messages: Message) -> None:
        """Return when all of them wait in one batch."""
        shared = self.engine._appends._shared
        for message in messages:
            before = len(shared._next.senders)
            self.start(message)
            wait_until(lambda before=before: len(shared._next.senders) > before, "it did not join")  # type: ignore[misc]

    def finish(self) -> None:
        self.held.release()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "it waits for ever"

    def _append(self, message: Message) -> None:
        try:
            self.answers[message.body] = self.engine.append([message])[0]
        except BaseException as error:
            self.answers[message.body] = error


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(CrashFileSystem())


def test_those_who_wait_share_one_append_and_each_is_told_of_its_own(fs: FaultyFileSystem) -> None:
    engine = opened(fs)
    senders = Senders(engine, fs)
    senders.join_in(*(Message("orders", b"%d" % number, queue_id=0) for number in range(9)))
    before = engine._hot.log.flushes
    senders.finish()
    assert engine._hot.log.flushes - before == 2
    for body, answer in senders.answers.items():
        assert isinstance(answer, Appended)
        assert engine.message(answer.message_id).record.body == body
    assert len(senders.answers) == 10
    assert engine.counted.messages.reading() == {("flushed",): 10}
    engine.close()


def test_what_was_acknowledged_survives_a_power_cut(fs: FaultyFileSystem) -> None:
    engine = opened(fs)
    senders = Senders(engine, fs)
    senders.join_in(*(Message("orders", b"%d" % number, queue_id=0) for number in range(5)))
    senders.finish()
    assert isinstance(fs.inner, CrashFileSystem)
    again = opened(fs.inner.crash(0, lose_everything=True))
    assert bodies(again) == [b"first", *(b"%d" % number for number in range(5))]
    again.close()


def test_a_message_that_is_refused_takes_no_other_with_it(fs: FaultyFileSystem) -> None:
    engine = opened(fs, create_topics=False)
    engine.create_topic("orders", 1)
    senders = Senders(engine, fs)
    senders.join_in(
        Message("orders", b"good", queue_id=0), Message("nowhere", b"bad"), Message("orders", b"good too", queue_id=0)
    )
    with pytest.raises(InvalidRequestError, match="empty body"):
        engine.append([Message("orders", b"")])
    senders.finish()
    assert isinstance(senders.answers[b"bad"], TopicNotFoundError)
    assert sorted(bodies(engine)) == [b"first", b"good", b"good too"]
    assert Counter(type(one) for one in senders.answers.values())[Appended] == 3
    engine.close()


def test_nobody_is_acknowledged_by_a_flush_that_failed(fs: FaultyFileSystem) -> None:
    engine = opened(fs)
    senders = Senders(engine, fs)
    senders.join_in(*(Message("orders", b"%d" % number, queue_id=0) for number in range(4)))
    fs.refuse("flush", LOG)
    senders.finish()
    assert len(senders.answers) == 5
    late = [answer for body, answer in senders.answers.items() if body != b"first"]
    assert all(isinstance(one, ReadOnlyError) for one in late)
    with pytest.raises(ReadOnlyError):
        engine.append([Message("orders", b"x")])
    engine.close()


def test_who_is_interrupted_leaves_the_others_their_place(
    fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(fs)
    senders = Senders(engine, fs)
    senders.join_in(*(Message("orders", b"%d" % number, queue_id=0) for number in range(3)))
    shared = engine._appends._shared
    append, interrupted = shared._append, list[bool]()

    def interrupt(pending: object) -> object:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return append(pending)  # type: ignore[arg-type]

    monkeypatch.setattr(shared, "_append", interrupt)
    senders.finish()
    assert Counter(type(one) for one in senders.answers.values()) == {Appended: 1, KeyboardInterrupt: 1, StoreError: 2}
    assert len(engine.append([Message("orders", b"after")])) == 1
    engine.close()


@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_who_is_interrupted_while_it_waits_is_missed_by_nobody(
    fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Those who waited call each other; a stand-in waits for the call and passes it on."""
    engine = opened(fs)
    senders = Senders(engine, fs)
    wait, waits = appends._Sender.wait, itertools.count()

    def interrupt(sender: appends._Sender) -> None:
        if next(waits) == place:
            raise KeyboardInterrupt
        wait(sender)

    monkeypatch.setattr(appends._Sender, "wait", interrupt)
    senders.join_in(*(Message("orders", b"%d" % number, queue_id=0) for number in range(6)))
    senders.finish()
    assert Counter(type(one) for one in senders.answers.values()) == {Appended: 6, KeyboardInterrupt: 1}
    assert sorted(bodies(engine)) == [*(b"%d" % number for number in range(6)), b"first"]
    engine.close()


def test_a_large_message_goes_alone(fs: FaultyFileSystem) -> None:
    engine = opened(fs, hot__segment_bytes=1 << 20)
    senders = Senders(engine, fs)
    senders.start(Message("orders", b"x" * 100_000, queue_id=0))
    wait_until(lambda: engine._hot.log.end > 100_000, "it waited to be written")
    assert not engine._appends._shared._next.senders
    senders.finish()
    assert all(isinstance(one, Appended) for one in senders.answers.values())
    engine.close()
