"""Sends through the remoting door: what is in the log afterwards, and what is refused."""

import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.rocketmq.remoting_world import HandClock, remoting_world
from tests.support.stores.engines import small_settings
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.shared_sends import Sent, SharedSends
from tierlog.tiering.base.errors import ClosedError, InvalidRequestError
from tierlog.tiering.format.record import Record, encode_host
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import HeaderForm

_TEXT = "KEYS\x01order-1\x02UNIQ_KEY\x017F00AB\x02TAGS\x01TagA\x02shop\x01é\x02"


def fields(**more: object) -> dict[str, object]:
    """Returns the header of a message as Java's producer sends it, with its short names."""
    return {
        "a": "producers", "b": "orders", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1_700_000_000_123, "h": 5,
        "i": _TEXT, "j": 0, "k": False, "m": False, **more,
    }  # fmt: skip


def client_batch(*messages: tuple[bytes, bytes]) -> bytes:
    """Returns the body of a batch of bodies and property texts."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 3, len(body))
        + body
        + struct.pack(">h", len(text))
        + text
        for body, text in messages
    )


def records(store: Store, topic: str, queue_id: int) -> list[Record]:
    return [one.record for one in store.pull(topic, queue_id, 0, 1000).messages]


@pytest.mark.parametrize("form", HeaderForm)
def test_a_message_is_in_the_log_as_it_was_sent(tmp_path: Path, form: HeaderForm) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(form=form) as client:
        answer = client.done(RequestCode.SEND_MESSAGE_V2, fields(), b"hello")
        (record,) = records(world.store, "orders", 1)
        assert (record.body, record.properties_text, record.flag, record.born_ms, record.reconsume_times) == (
            b"hello", _TEXT.encode(), 5, 1_700_000_000_123, 0,
        )  # fmt: skip
        host, port = client.socket.getsockname()
        assert record.born_host == encode_host(bytes(map(int, host.split("."))), port)
        assert record.store_host == encode_host(bytes([127, 0, 0, 1]), world.host_and_port[1])
        assert answer.fields == {
            "msgId": record.message_id, "queueId": "1", "queueOffset": "0", "transactionId": "7F00AB",
            "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        }  # fmt: skip


def test_the_long_names_of_the_go_client_say_the_same(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        long = {
            "producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 2, "queueId": 1,
            "sysFlag": 0, "bornTimestamp": 7, "flag": 3, "properties": _TEXT, "reconsumeTimes": 2, "unitMode": False,
            "batch": False,
        }  # fmt: skip
        client.done(RequestCode.SEND_MESSAGE, long, b"hello")
        (record,) = records(world.store, "orders", 1)
        assert (record.flag, record.born_ms, record.reconsume_times, record.properties_text) == (
            3,
            7,
            2,
            _TEXT.encode(),
        )


@pytest.mark.parametrize(
    ("code", "is_batch"), [(RequestCode.SEND_BATCH_MESSAGE, False), (RequestCode.SEND_MESSAGE_V2, True)]
)
def test_a_batch_is_in_one_queue_in_its_order(tmp_path: Path, code: RequestCode, is_batch: bool) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        sent = [(b"body %d" % number, b"KEYS\x01k%d\x02" % number) for number in range(50)]
        for first in (0, 50):
            answer = client.done(code, fields(m=is_batch, e=3), client_batch(*sent))
            assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("3", str(first))
        found = records(world.store, "orders", 3)
        assert [(one.body, one.properties_text, one.flag) for one in found] == [(*one, 3) for one in sent] * 2
        assert answer.fields["msgId"].split(",") == [one.message_id for one in found[50:]]


def test_a_new_topic_has_the_queues_that_its_producer_asked_for_within_the_settings(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"hot.default_queues": 6}) as world, world.client() as client:
        for topic, asked in (("four", 4), ("many", 1000), ("none", 0), ("negative", -3)):
            client.done(RequestCode.SEND_MESSAGE_V2, fields(b=topic, d=asked, e=0), b"x")
        assert world.store.queue_counts() == {"four": 4, "many": 6, "none": 6, "negative": 1}


def test_no_topic_is_made_where_that_is_the_operators(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"create_topics": False}) as world, world.client() as client:
        assert client.ask(RequestCode.SEND_MESSAGE_V2, fields(), b"x").code == ResponseCode.TOPIC_NOT_EXIST
        assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).code == ResponseCode.TOPIC_NOT_EXIST
        assert world.store.queue_counts() == {}


def test_no_more_topics_are_made_than_there_may_be(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"max_topics": 1}) as world, world.client() as client:
        client.done(RequestCode.SEND_MESSAGE_V2, fields(b="first"), b"x")
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, fields(b="second"), b"x")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "max_topics is 1" in str(answer.remark)
        assert list(world.store.queue_counts()) == ["first"]


def test_a_client_that_leaves_the_queue_to_the_broker_gets_all_in_turn(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        chosen = {
            client.done(RequestCode.SEND_MESSAGE_V2, fields(e=-1), b"x").fields["queueId"] for _ in range(4)
        }  # fmt: skip
        assert chosen == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("changed", "body", "code"),
    [
        pytest.param({"e": 4}, b"x", ResponseCode.INVALID_PARAMETER, id="no such queue"),
        pytest.param({"b": "no topic"}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="a name with a blank"),
        pytest.param({"b": ""}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="no name"),
        pytest.param({"b": "t" * 128}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="a name that is too long"),
        pytest.param({"b": None}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="no topic"),
        pytest.param({"b": "TBW102"}, b"x", ResponseCode.NO_PERMISSION, id="what new topics are made like"),
        pytest.param({"b": "rmq_sys_wheel_timer"}, b"x", ResponseCode.NO_PERMISSION, id="the timer's topic"),
        pytest.param({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", ResponseCode.NO_PERMISSION, id="half messages' topic"),
        pytest.param({"c": "other", "b": "new"}, b"x", ResponseCode.TOPIC_NOT_EXIST, id="like another topic"),
        pytest.param({}, b"", ResponseCode.MESSAGE_ILLEGAL, id="no body"),
        pytest.param({}, bytes(2049), ResponseCode.MESSAGE_ILLEGAL, id="a body that is too long"),
        pytest.param({"i": "p\x01" + "v" * 33_000}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="too long properties"),
        pytest.param({"g": None}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="no born time"),
        pytest.param({"g": "soon"}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="a born time that is none"),
        pytest.param({"h": 1 << 31}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="a flag that is no int32"),
        pytest.param({"m": True}, b"junk", ResponseCode.MESSAGE_ILLEGAL, id="a batch that is none"),
        pytest.param({"i": "DELAY\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, id="a delay that is no number"),
    ],
)  # fmt: skip
def test_what_no_broker_would_take_is_refused_and_nobody_elses_is(
    tmp_path: Path, changed: dict[str, object], body: bytes, code: ResponseCode
) -> None:
    with remoting_world(tmp_path / "store", {"hot.max_body_bytes": 2048}) as world, world.client() as client:
        world.store.create_topic("orders", 4)
        numbers = [
            client.send(RequestCode.SEND_MESSAGE_V2, fields(), b"before"),
            client.send(RequestCode.SEND_MESSAGE_V2, {**fields(), **changed}, body),
            client.send(RequestCode.SEND_MESSAGE_V2, fields(), b"behind"),
        ]
        assert [client.answer_to(number).code for number in numbers] == [0, code, 0]
        assert sorted(one.body for one in records(world.store, "orders", 1)) == [b"before", b"behind"]


def test_many_senders_share_appends(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        world.store.create_topic("orders", 4)
        appends: list[int] = []
        append = world.store.append

        def counted(messages: Any, *more: Any) -> Any:
            appends.append(len(messages))
            return append(messages, *more)

        world.store.append = counted  # type: ignore[method-assign, assignment]
        numbers = [client.send(RequestCode.SEND_MESSAGE_V2, fields(), b"%d" % number) for number in range(1000)]
        found = [client.answer_to(number) for number in numbers]
        assert [int(one.fields["queueOffset"]) for one in found] == list(range(1000))
        assert sum(appends) == 1000
        assert len(appends) < 500
        assert [one.body for one in records(world.store, "orders", 1)] == [b"%d" % number for number in range(1000)]


def test_a_oneway_message_is_appended_and_not_answered(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        client.send(RequestCode.SEND_MESSAGE_V2, fields(e=0), b"oneway", oneway=True)
        client.done(RequestCode.SEND_MESSAGE_V2, fields(e=0), b"behind")
        world.wait_until(lambda: world.store.offsets("orders", 0)[1] == 2)
        assert {one.body for one in records(world.store, "orders", 0)} == {b"oneway", b"behind"}
        assert client.first_answers({client.send(RequestCode.GET_BROKER_CLUSTER_INFO)})
        assert not client.pushed


def test_a_message_with_a_delay_comes_at_its_time_with_what_it_had(tmp_path: Path) -> None:
    clock = HandClock()
    with remoting_world(tmp_path / "store", clock=clock, store_clock=clock) as world, world.client() as client:
        sent = client.done(RequestCode.SEND_MESSAGE_V2, fields(i=_TEXT + "DELAY\x013\x02"), b"later")
        assert "recallHandle" in sent.fields
        assert world.store.offsets("orders", 1) == (0, 0)
        clock.advance(10_000)
        world.wait_until(lambda: world.store.offsets("orders", 1) == (0, 1))
        (record,) = records(world.store, "orders", 1)
        assert (record.body, record.flag, record.properties["shop"]) == (b"later", 5, "é")


def _has_retries(store: Store, count: int) -> bool:
    return store.find_queues("%RETRY%g") is not None and store.offsets("%RETRY%g", 0)[1] == count


def test_what_a_consumer_sends_back_comes_again_and_at_last_is_a_dead_letter(tmp_path: Path) -> None:
    clock = HandClock()
    with remoting_world(tmp_path / "store", clock=clock, store_clock=clock) as world, world.client() as client:
        client.done(RequestCode.SEND_MESSAGE_V2, fields(), b"hard")
        (record,) = records(world.store, "orders", 1)
        for attempt, delay_ms in enumerate((10_000, 30_000)):
            back = {"group": "g", "offset": record.physical_offset, "delayLevel": 0, "maxReconsumeTimes": 2}
            client.done(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            clock.advance(delay_ms)
            world.wait_until(partial(_has_retries, world.store, attempt + 1))
            record = records(world.store, "%RETRY%g", 0)[-1]
            assert (record.body, record.reconsume_times, record.flag) == (b"hard", attempt + 1, 5)
            assert record.properties["RETRY_TOPIC"] == "orders"
        back = {"group": "g", "offset": record.physical_offset, "delayLevel": 0, "maxReconsumeTimes": 2}
        client.done(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        (dead,) = records(world.store, "%DLQ%g", 0)
        assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"hard", "orders")


def test_a_message_that_is_not_there_cannot_be_sent_back(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        for offset in (0, -1, 1 << 40):
            answer = client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": offset, "delayLevel": 0})
            assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_retry_that_was_tried_too_often_is_a_dead_letter_where_the_client_sends_it_itself(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        client.done(RequestCode.SEND_MESSAGE_V2, fields(b="%RETRY%g", e=0, j=17, l=16), b"hard")
        client.done(RequestCode.SEND_MESSAGE_V2, fields(b="%RETRY%g", e=0, j=16, l=16), b"once more")
        assert [one.body for one in records(world.store, "%DLQ%g", 0)] == [b"hard"]
        assert [one.body for one in records(world.store, "%RETRY%g", 0)] == [b"once more"]


# the part that shares appends, by itself


def _sent(topic: str, body: bytes) -> Sent:
    return Sent(topic, 0, body, b"", 0, 0, 1, encode_host(bytes(4), 0))


class _Sender:
    """Shares appends of a store, and keeps what each was told."""

    def __init__(self, store: Store) -> None:
        self.told: dict[bytes, Sequence[Appended] | BaseException] = {}
        self._all = threading.Condition()
        self.sends = SharedSends(store, lambda begin: begin(), lambda tell: tell())
        self.sends.start()

    def add(self, topic: str, body: bytes) -> None:
        def done(found: Sequence[Appended] | BaseException) -> None:
            with self._all:
                self.told[body] = found
                self._all.notify_all()

        self.sends.add(_sent(topic, body), done)

    def wait(self, count: int) -> None:
        with self._all:
            assert self._all.wait_for(lambda: len(self.told) >= count, 60)


def test_one_who_is_refused_leaves_the_others_of_its_append_as_they_were(tmp_path: Path) -> None:
    settings = small_settings(max_topics=1)
    with Store.open(tmp_path / "store", settings=settings) as store:
        store.create_topic("orders", 1)
        held, append = threading.Event(), store.append

        def slow(messages: Any, *more: Any) -> Any:
            held.wait(60)
            return append(messages, *more)

        store.append = slow  # type: ignore[method-assign, assignment]
        sender = _Sender(store)
        sender.add("orders", b"first")  # holds up those behind it
        for number in range(10):
            sender.add("orders" if number != 5 else "one-too-many", b"%d" % number)
        held.set()
        sender.wait(11)
        refused = {body for body, found in sender.told.items() if isinstance(found, BaseException)}
        assert refused == {b"5"}
        sender.sends.stop(10)
        assert len(store.pull("orders", 0, 0, 100).messages) == 10


def test_what_is_wrong_with_a_message_is_said_at_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", settings=small_settings()) as store:
        sender = _Sender(store)
        with pytest.raises(InvalidRequestError):
            sender.add("orders", b"")
        sender.sends.stop(10)
        with pytest.raises(ClosedError):
            sender.add("orders", b"late")


class _Loop:
    """Turns of a loop that a test makes by hand."""

    def __init__(self, store: Store) -> None:
        self.turns: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.told: list[bytes] = []
        self.sends = SharedSends(store, self.turns.put, self.turns.put)
        self.sends.start()

    def add(self, body: bytes) -> None:
        self.sends.add(_sent("orders", body), lambda found: self.told.append(body))

    def turn(self) -> None:
        self.turns.get(timeout=60)()


def test_those_who_send_again_when_they_are_answered_share_the_next_append(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", settings=small_settings()) as store:
        store.create_topic("orders", 1)
        counts: list[int] = []
        append = store.append

        def counted(messages: Any, *more: Any) -> Any:
            counts.append(len(messages))
            return append(messages, *more)

        store.append = counted  # type: ignore[method-assign, assignment]
        loop = _Loop(store)
        for number in range(4):
            loop.add(b"%d" % number)
        loop.turn()  # four are handed to the thread
        loop.add(b"4")  # and one comes meanwhile
        loop.turn()  # the four are told
        for number in range(5, 8):
            loop.turn()  # looks, and waits for company as long as some comes in each turn
            loop.add(b"%d" % number)
        loop.turn()
        loop.turn()
        assert counts == [4, 4]
        assert loop.told == [b"%d" % number for number in range(8)]
        loop.sends.stop(10)


def test_nobody_is_waited_for_who_does_not_send_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", settings=small_settings()) as store:
        store.create_topic("orders", 1)
        loop = _Loop(store)
        for number in range(4):
            loop.add(b"%d" % number)
        loop.turn()
        loop.add(b"4")
        while len(loop.told) < 5:  # a few turns without anybody else
            loop.turn()
        assert loop.told[-1] == b"4"
        loop.sends.stop(10)


def test_what_waits_for_company_is_appended_at_the_stop(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", settings=small_settings()) as store:
        store.create_topic("orders", 1)
        loop = _Loop(store)
        for number in range(3):
            loop.add(b"%d" % number)  # no turn comes any more
        loop.sends.stop(10)
        assert [one.record.body for one in store.pull("orders", 0, 0, 10).messages] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("seed", range(4))
def test_what_was_told_to_be_appended_survives_any_power_cut(seed: int) -> None:
    fs, root, settings = CrashFileSystem(), Path("/store"), small_settings()
    store = Store.open(root, settings=settings, fs=fs)
    between, append = threading.Lock(), store.append

    def guarded(messages: Any, *more: Any) -> Any:
        with between:
            return append(messages, *more)

    store.append = guarded  # type: ignore[method-assign, assignment]
    sender = _Sender(store)
    for number in range(200):
        sender.add("orders", b"%d" % number)
        if number % 20 == 19:
            sender.wait(number - 9)
    with between:
        told = {body for body, found in sender.told.items() if not isinstance(found, BaseException)}
        after = fs.crash(seed, lose_everything=seed == 0)
    sender.sends.stop(10)
    assert told
    with Store.open(root, settings=settings, fs=after) as store:
        found = {one.record.body for queue in range(store.queues_of("orders"))
                 for one in store.pull("orders", queue, 0, 1000).messages}  # fmt: skip
        assert found >= told
