"""Transactions: what is committed arrives once, what is rolled back never, and whoever says nothing is asked."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter

import pytest

from tests.support.fs.crash_fs import PowerCut
from tests.support.stores.engines import small_settings, tiny_settings
from tests.support.world import World
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.copies import messages_from
from tierlog.service.delivery.transactions import (
    CHECK_EVERY_MS,
    DROPPED_TOPIC,
    MAX_CHECKS,
    TIMEOUT_MS,
    TransactionOutcome,
    Transactions,
    half_message,
)
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError, MessageNotFoundError
from tierlog.tiering.format.properties import UNIQ_KEY, encode_properties
from tierlog.tiering.format.record import SysFlag
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.stored_message import StoredMessage, offset_in_message_id
from tierlog.tiering.message.waiting import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN
BORN_HOST = bytes((10, 1, 2, 3)) + (54321).to_bytes(4)


class TransactionWorld(World):
    """A store with producers that prepare messages and answer, or do not."""

    transactions: Transactions

    def __init__(self, settings: Settings | None = None, seed: int = 0) -> None:
        super().__init__(settings=settings or tiny_settings(hot__default_queues=2), seed=seed)
        self.halves: dict[str, tuple[int, int]] = {}
        self.open()

    def open(self, volume: str | None = None, **options: object) -> Store:
        if volume is not None:
            self.fs.kill()
        engine = super().open(volume, **options)  # type: ignore[arg-type]
        self.transactions = Transactions(engine, self.clock)
        return engine

    def prepare(self, body: str, **properties: str) -> Appended:
        asked = {UNIQ_KEY: body, "TAGS": "t", "TRAN_MSG": "true", "PGROUP": "group", **properties}
        half = half_message(
            "orders", 1, encode_properties(asked), self.clock.now_ms(), sys_flag=int(SysFlag.TRANSACTION_PREPARED)
        )
        messages = ClientMessages(1 << 20)
        messages.add(
            half.topic, half.queue_id, body.encode(), half.properties, flag=3, sys_flag=half.sys_flag,
            born_ms=self.clock.now_ms(), born_host=BORN_HOST,
        )  # fmt: skip
        (appended,) = self.engine.append(messages)
        self.halves[body] = offset_in_message_id(appended.message_id), appended.queue_offset
        return appended

    def end(self, body: str, outcome: TransactionOutcome, group: str = "group") -> None:
        self.transactions.end(*self.halves[body], outcome, group=group)

    def arrived(self, topic: str = "orders") -> list[StoredMessage]:
        queues = self.engine.find_queues(topic) or 0
        return [one for queue in range(queues) for one in messages_from(self.engine, topic, queue, 0)]

    def bodies(self, topic: str = "orders") -> list[str]:
        return sorted(message.record.body.decode() for message in self.arrived(topic))

    def checked(self) -> list[str]:
        return [message.record.body.decode() for message in self.transactions.due_checks()]


def test_a_half_message_is_not_there_until_it_is_committed() -> None:
    world = TransactionWorld()
    world.prepare("a")
    world.prepare("b")
    world.prepare("c")
    assert world.bodies() == []
    world.end("a", COMMIT)
    world.end("b", ROLLBACK)
    world.end("c", UNKNOWN)
    assert world.bodies() == ["a"]
    assert world.transactions.open_count() == 1


def test_a_committed_message_is_what_rocketmq_makes_of_it() -> None:
    world = TransactionWorld()
    world.prepare("a")
    world.end("a", COMMIT)
    (half,) = world.arrived(HALF_TOPIC)
    assert half.record.sys_flag == 0
    assert half.record.properties == {
        UNIQ_KEY: "a", "TAGS": "t", "TRAN_MSG": "true", "PGROUP": "group", "REAL_TOPIC": "orders", "REAL_QID": "1",
        "__transactionId__": "a",
    }  # fmt: skip
    (message,) = world.arrived()
    record = message.record
    assert record.properties == {UNIQ_KEY: "a", "TAGS": "t", "PGROUP": "group", "__transactionId__": "a"}
    assert (record.queue_id, record.flag, record.sys_flag) == (1, 3, SysFlag.TRANSACTION_COMMIT)
    assert (record.prepared_offset, record.born_host) == (half.record.physical_offset, BORN_HOST)
    (op,) = world.arrived(OP_TOPIC)
    assert (op.tag, op.record.body) == ("d", b"0,")


def test_the_first_answer_counts() -> None:
    world = TransactionWorld()
    for body in ("a", "b"):
        world.prepare(body)
    world.end("a", COMMIT)
    world.end("a", COMMIT)
    world.end("a", ROLLBACK)
    world.end("b", ROLLBACK)
    world.open()
    world.end("b", COMMIT)
    assert world.bodies() == ["a"]


def test_only_its_producer_ends_it() -> None:
    world = TransactionWorld()
    world.prepare("a")
    with pytest.raises(InvalidRequestError, match="group"):
        world.end("a", COMMIT, group="other")
    offset, queue_offset = world.halves["a"]
    for place in ((offset, queue_offset + 1), (offset + 1, queue_offset), (1 << 50, 0)):
        with pytest.raises(MessageNotFoundError):
            world.transactions.end(*place, COMMIT)
    assert world.bodies() == []


def test_a_committed_message_with_a_delay_waits_for_its_time() -> None:
    world = TransactionWorld()
    world.prepare("a", TIMER_DELAY_MS="5000")
    world.end("a", COMMIT)
    assert (world.bodies(), world.bodies(TIMER_TOPIC)) == ([], ["a"])


def test_who_says_nothing_is_asked_again_and_again_and_then_given_up() -> None:
    world = TransactionWorld()
    world.prepare("a")
    world.clock.advance(TIMEOUT_MS - 1)
    assert world.checked() == []
    world.clock.advance(1)
    for _ in range(MAX_CHECKS):
        assert world.checked() == ["a"]
        assert world.checked() == []
        world.clock.advance(CHECK_EVERY_MS)
    assert world.checked() == []
    assert (world.bodies(DROPPED_TOPIC), world.transactions.open_count()) == (["a"], 0)
    world.end("a", COMMIT)
    assert world.bodies() == []


def test_a_producer_may_ask_for_more_time() -> None:
    world = TransactionWorld()
    world.prepare("a", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    world.clock.advance(59_999)
    assert world.checked() == []
    world.clock.advance(1)
    assert world.checked() == ["a"]


@pytest.mark.parametrize("way", ["kill", "power cut", "restore"])
def test_after_a_restart_what_has_ended_stays_so_and_the_rest_is_asked_for(way: str) -> None:
    world = TransactionWorld()
    for number in range(12):
        world.prepare(f"{number:02}")
        if number % 3:
            world.end(f"{number:02}", COMMIT if number % 3 == 1 else ROLLBACK)
    if way == "restore":
        world.archive()
        world.engine.close()
        world.open("other", restore=True)
    else:
        if way == "power cut":
            world.cut_power()
        world.open()
    world.clock.advance(TIMEOUT_MS)
    assert world.checked() == ["00", "03", "06", "09"]
    world.end("03", COMMIT)
    world.end("04", COMMIT)
    assert world.bodies() == ["01", "03", "04", "07", "10"]


def test_producers_that_answer_at_once_share_appends_and_each_message_arrives_once() -> None:
    world = TransactionWorld()
    for number in range(30):
        world.prepare(f"{number:02}")
    failures: list[BaseException] = []

    def answer(start: int) -> None:
        try:
            for number in range(start, start + 30):
                world.end(f"{number % 30:02}", COMMIT)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=answer, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert world.bodies() == [f"{number:02}" for number in range(30)]


@pytest.mark.parametrize("rounds", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_each_transaction_ends_once_whatever_is_cut_off(seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    for _ in range(rounds):
        world = TransactionWorld(
            small_settings(hot__segment_bytes=16_384, cold__disk_cache_bytes=0), seed=chance.randrange(1 << 16)
        )
        told: dict[str, TransactionOutcome] = {}
        tried: dict[str, set[TransactionOutcome]] = {}
        for number in range(25):
            body = f"{number}-{'x' * chance.choice([5, 1500])}"
            world.prepare(body)
            known = chance.choice(sorted(world.halves))
            outcome = chance.choice([COMMIT, COMMIT, ROLLBACK])
            is_cut = chance.random() < 0.4
            if is_cut:
                world.fs.cut_at = world.fs.calls + chance.randrange(1, 8)
            tried.setdefault(known, set()).add(outcome)
            with contextlib.suppress(PowerCut):
                world.end(known, outcome)
                told.setdefault(known, outcome)
            world.fs.cut_at = None
            if world.fs.is_dead:
                world.fs = world.fs.after_kill() if chance.random() < 0.5 else world.fs.crash(chance.randrange(99))
                world.open()
            if chance.random() < 0.1:
                world.engine.archive(everything=chance.random() < 0.5, drop_hot=chance.random() < 0.5)
        world.open()
        world.clock.advance(TIMEOUT_MS)
        asked = set(world.checked())
        found = Counter(world.bodies())
        assert max(found.values(), default=1) == 1
        for body in world.halves:
            has_ended = body not in asked
            assert has_ended or body not in told
            assert has_ended or body not in found
            if body in found:
                assert COMMIT in tried[body]
            if told.get(body) is ROLLBACK and tried[body] == {ROLLBACK}:
                assert body not in found
            if told.get(body) is COMMIT and tried[body] == {COMMIT}:
                assert body in found
        assert world.engine.check() == []
