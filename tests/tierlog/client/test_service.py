"""The client and a running service: what is sent is found, and what is refused says what to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.service.access import line, token
from tests.support.service.served import served, served_app
from tests.support.stores.engines import TINY, tiny_settings
from tierlog.client import (
    AsyncClient,
    AsyncConsumer,
    Client,
    Consumer,
    Decision,
    Message,
    Order,
    PullStatus,
    QueueRef,
    Start,
    StoredMessage,
    Tier,
    TimeAxis,
)
from tierlog.client.errors import (
    ClosedError,
    ForbiddenError,
    HandlerFailedError,
    InvalidRequestError,
    KeyReusedError,
    MemberNotFoundError,
    MessageNotFoundError,
    NoAnswerError,
    NotFoundError,
    StaleGenerationError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from tierlog.client.requests import RetryPolicy
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.app import create_app
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock

BORN_MS = 1_600_000_000_000


@dataclass
class Service:
    engine: Store
    url: str
    client: Client


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = tiny_settings()
    engine = Store.open(tmp_path / "store", settings=settings, cold_url=f"file://{tmp_path}/cold")
    engine.start()
    try:
        with served(engine, settings) as url, Client(url) as client:
            yield Service(engine, url, client)
    finally:
        engine.close()


def test_filters_hints_and_counts_are_those_of_the_service(service: Service) -> None:
    client = service.client
    bodies = [b'{"order": {"id": %d}}' % number for number in range(20)]
    client.append("orders", [Message(body, tag="paid", born_ms=BORN_MS + at) for at, body in enumerate(bodies)])
    service.engine.archive(everything=True, drop_hot=True)
    found = list(
        client.query("orders", tag="paid || sent", contains=["order", "1"], where={"order.id": "17"}).messages()
    )
    assert [message.body for message in found] == [bodies[17]]
    (page,) = client.query("orders", from_ms=BORN_MS, to_ms=BORN_MS + 20)
    assert page.hint is not None
    assert (page.messages, page.hint.axis, page.coverage.complete) == ((), TimeAxis.BORN, True)
    (page,) = client.query("orders", from_ms=BORN_MS, to_ms=BORN_MS + 20, time=TimeAxis.BORN)
    assert (page.hint, len(page.messages)) == (None, 20)
    counts = client.counts("orders", time=TimeAxis.BORN, buckets=1)
    assert (counts.counts, counts.total, counts.exact) == ((20,), 20, True)
    assert (counts.from_ms, counts.to_ms) == (BORN_MS, BORN_MS + 20)

    async def ask() -> None:
        async with AsyncClient(service.url) as other:
            again = await other.counts("orders", time=TimeAxis.BORN, buckets=1)
            assert (again.counts, again.coverage.complete) == ((20,), True)
            pages = other.query("orders", where={"order.id": "3"})
            assert [message.body async for message in pages.messages()] == [bodies[3]]

    asyncio.run(ask())


def until(reached: Callable[[], bool]) -> None:
    while not reached():
        threading.Event().wait(0.01)


def test_what_is_appended_is_found_by_every_way(service: Service) -> None:
    client = service.client
    sent = [
        Message("text", keys=["k1", "k2"], tag="paid", properties={"region": "eu"}, born_ms=5, queue_id=2),
        Message(b"\xff\x00", queue_id=2),
        Message("sharded", sharding_key="customer"),
    ]
    first, second, _ = client.append("orders", sent)
    assert (first.queue_id, second.queue_offset) == (2, 1)
    (found,) = client.query("orders", key="k2").messages()
    assert (found.body, found.keys, found.tag, found.properties) == (b"text", ("k1", "k2"), "paid", {"region": "eu"})
    assert (found.born_ms, found.tier, found.store_ms) == (5, Tier.HOT, first.store_ms)
    last = client.pull("orders", 2, None, limit=1, backward=True)
    rest = client.pull("orders", 2, last.next_offset, backward=True)
    forward = [message.queue_offset for message in client.pull("orders", 2, 0).messages]
    assert [message.queue_offset for message in (*last.messages, *rest.messages)] == forward[::-1]
    page = client.pull("orders", 2, 0)
    assert page.status is PullStatus.FOUND
    assert [one.body for one in page.messages[:2]] == [b"text", b"\xff\x00"]
    assert client.message(first.message_id) == found
    assert client.offset_by_time("orders", 2, 0) == 0
    assert tuple(client.tail("orders", 2, follow=False)) == page.messages
    assert [one.body for one in client.tail("orders", 2, tag="paid", follow=False)] == [b"text"]


def test_both_tiers_are_one_and_say_which_they_are(service: Service) -> None:
    service.client.append("orders", [Message(f"{number}", keys=["k"]) for number in range(500)])
    service.engine.archive(everything=True, drop_hot=True)
    service.client.append("orders", [Message("hot", keys=["k"])])
    pages = service.client.query("orders", key="k", order=Order.OLDEST, page_size=100)
    found = list(pages.messages())
    assert [one.body for one in found] == [b"%d" % number for number in range(500)] + [b"hot"]
    assert {one.tier for one in found} == {Tier.HOT, Tier.COLD}
    assert pages.is_complete
    assert pages.coverage is not None
    assert pages.coverage.stores[0].cold is not None


def test_a_budget_that_is_spent_is_said(service: Service) -> None:
    for part in range(8):
        service.client.append("orders", [Message(f"{part} {number}", keys=["k"]) for number in range(300)])
        service.engine.archive(everything=True, drop_hot=True)
    pages = service.client.query("orders", key="k", max_requests=1)
    found = list(pages)
    assert not pages.is_complete
    assert found[-1].coverage.cut_by == "budget"


def test_a_tail_follows(service: Service) -> None:
    service.client.append("orders", [Message("0", queue_id=0)])
    tail = service.client.tail("orders", 0)
    assert next(tail).body == b"0"
    threading.Timer(0.1, service.client.append, ("orders", [Message("1", queue_id=0)])).start()
    assert next(tail).body == b"1"


def test_a_key_of_ones_own_holds_for_further_calls(service: Service) -> None:
    messages = [Message("a"), Message("b")]
    first = service.client.append("orders", messages, idempotency_key="loader:0")
    assert service.client.append("orders", messages, idempotency_key="loader:0") == first
    with pytest.raises(KeyReusedError):
        service.client.append("orders", [Message("c")], idempotency_key="loader:0")


def test_a_producer_sends_each_message_once_and_in_order(service: Service) -> None:
    with service.client.producer("orders") as producer:
        futures = [producer.submit(f"{number}", queue_id=number % 2) for number in range(3_000)]
    assert [future.result().queue_offset for future in futures] == [number // 2 for number in range(3_000)]
    bodies = [one.body for one in service.client.tail("orders", 1, follow=False)]
    assert bodies == [b"%d" % number for number in range(1, 3_000, 2)]


def test_a_producer_tells_the_message_that_is_wrong(service: Service) -> None:
    with pytest.raises(InvalidRequestError), service.client.producer("orders") as producer:
        futures = [producer.submit(f"{number}" if number != 7 else "") for number in range(20)]
    assert [number for number, future in enumerate(futures) if future.exception()] == [7]
    assert len(list(service.client.query("orders").messages())) == 19


def test_refusals_come_back_as_what_they_are(service: Service) -> None:
    client = service.client
    with pytest.raises(TopicNotFoundError):
        client.topic("none")
    with pytest.raises(InvalidRequestError):
        client.append("bad topic", [Message("x")])
    with pytest.raises(InvalidRequestError, match="body"):
        client.append("orders", [Message("")])
    with pytest.raises(MessageNotFoundError):
        client.message("7F0000010000480500000000000001F0")
    with pytest.raises(NotFoundError):
        client.group("none")
    with pytest.raises(MemberNotFoundError):
        client.heartbeat("audit", "0123456789abcdef")


def test_nobody_there_is_said_within_the_time_that_was_given() -> None:
    with Client("http://127.0.0.1:9", retries=RetryPolicy(within_s=0.3)) as client, pytest.raises(NoAnswerError):
        client.topics()


def test_tokens_decide(tmp_path: Path) -> None:
    entries = f"{line('reader', 'read', '*')}\n{line('sender', 'produce', '*')}"
    settings = Settings.load(overrides={**TINY, "access.tokens": entries})
    engine = Store.open(tmp_path / "store", settings=settings)
    engine.start()
    try:
        app = create_app(engine, settings, control=AccessControl(settings.access, SystemClock()))
        with served_app(app, settings, threading.Event()) as url:
            with Client(url, token=token("sender")) as sender:
                sender.append("orders", [Message("x")])
                with pytest.raises(ForbiddenError):
                    list(sender.query("orders"))
            file = tmp_path / "reader.token"
            file.write_text(token("reader"))
            file.chmod(0o600)
            with Client(url, token_file=file) as reader:
                assert len(list(reader.query("orders").messages())) == 1
            with Client(url) as nobody, pytest.raises(UnauthenticatedError):
                nobody.topics()
    finally:
        engine.close()


def test_a_group_by_hand(service: Service) -> None:
    client = service.client
    client.make_topic("orders", queues=2)
    client.append("orders", [Message("x", queue_id=0)])
    member = client.join("audit", ["orders"])
    queue = QueueRef("orders", member.assignment[0].store_id, 0)
    assert client.commit("audit", {queue: 1}, member=member) == {queue: 1}
    other = client.join("audit", ["orders"])
    with pytest.raises(StaleGenerationError):
        client.commit("audit", {queue: 1}, member=member)
    assert len(client.heartbeat("audit", member.member_id).assignment) == 1
    group = client.group("audit")
    assert (set(group.members), group.lag) == ({member.member_id, other.member_id}, 0)
    for one in (member, other):
        client.leave("audit", one.member_id)
    assert client.committed("audit") == {queue: 1}
    other_queue = QueueRef("orders", queue.store_id, 1)
    assert client.reset_group("audit", Start.EARLIEST, dry_run=True) == {queue: 0, other_queue: 0}
    assert client.committed("audit") == {queue: 1}
    assert client.reset_group("audit", 0, topic="orders", queue_id=0) == {queue: 0}
    assert client.reset_group("audit", Start.LATEST) == {queue: 1, other_queue: 0}
    assert client.committed("audit") == {queue: 1, other_queue: 0}
    client.remove_group("audit")


def test_two_consumers_share_the_queues_and_one_takes_over_from_the_other(service: Service) -> None:
    client = service.client
    client.make_topic("orders", queues=4)
    got: list[StoredMessage] = []
    quick = {"heartbeat_s": 0.05, "commit_interval_s": 0.05}
    with Consumer(client, "audit", ["orders"], got.append, **quick) as first:  # type: ignore[arg-type]  # numbers all
        with Consumer(client, "audit", ["orders"], got.append, **quick) as second:  # type: ignore[arg-type]  # numbers all
            until(lambda: len(first.assignment) == len(second.assignment) == 2)
            client.append("orders", [Message(f"{number}") for number in range(400)])
            until(lambda: len(got) == 400)
        until(lambda: len(first.assignment) == 4)
        client.append("orders", [Message(f"{number}") for number in range(400, 500)])
        until(lambda: len(got) == 500)
    assert sorted(int(one.body) for one in got) == list(range(500))
    assert client.group("audit").lag == 0


def test_a_handler_that_fails_ends_the_consumer_with_its_error(service: Service) -> None:
    service.client.append("orders", [Message("x")])

    def fail(message: StoredMessage) -> None:
        raise KeyError("missing")

    with (
        pytest.raises(HandlerFailedError) as raised,
        Consumer(service.client, "audit", ["orders"], fail, tries=2, first_pause_s=0) as consumer,
    ):
        consumer.wait()
    assert isinstance(raised.value.__cause__, KeyError)
    assert service.client.group("audit").members == {}


def test_a_handler_may_stop_its_consumer_and_a_hook_may_skip(service: Service) -> None:
    service.client.append("orders", [Message("bad", queue_id=0), Message("last", queue_id=0)])

    def handle(message: StoredMessage) -> None:
        if message.body == b"bad":
            raise ValueError("bad")
        consumer.stop()

    consumer = Consumer(
        service.client, "audit", ["orders"], handle, tries=1, on_failure=lambda message, error: Decision.SKIP
    )
    with consumer:
        assert consumer.wait()
    assert sum(service.client.committed("audit").values()) == 2


def test_a_consumer_of_a_topic_that_does_not_exist_is_warned_once(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.client.make_topic("orders", queues=4)
    with Consumer(service.client, "audit", ["ordrs"], lambda one: None, heartbeat_s=0.01) as consumer:
        until(lambda: consumer.counts.joins == 1)
        service.client.make_topic("ordrs", queues=1)
        until(lambda: len(consumer.assignment) == 1)
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert said == ["group audit: no such topics yet: ordrs ('ordrs': did you mean 'orders'?)"]
    member = service.client.join("audit", ["orders", "later"])
    assert (member.missing_topics, member.hint) == (("later",), None)


def test_a_topic_that_comes_later_and_one_that_grows_are_read(service: Service) -> None:
    got: list[bytes] = []
    with Consumer(service.client, "audit", ["later"], lambda one: got.append(one.body), heartbeat_s=0.05):
        service.client.append("later", [Message("1")])
        until(lambda: got == [b"1"])
        service.client.make_topic("later", queues=6)
        service.client.append("later", [Message("2", queue_id=5)])
        until(lambda: got == [b"1", b"2"])


def test_a_consumer_that_begins_at_the_end_or_at_a_time_leaves_out_what_is_before(service: Service) -> None:
    (first,) = service.client.append("orders", [Message("1", queue_id=0)])
    until(lambda: service.client.append("orders", [Message("2", queue_id=0)])[0].store_ms > first.store_ms)
    got: list[bytes] = []
    with Consumer(service.client, "g1", ["orders"], lambda one: got.append(one.body), start=first.store_ms + 1):
        until(lambda: bool(got))
    assert got[0] == b"2"
    got.clear()
    with Consumer(service.client, "g2", ["orders"], lambda one: got.append(one.body), start=Start.LATEST) as late:
        until(lambda: len(late.assignment) == 4)
        until(lambda: len(service.client.committed("g2")) == 4)
        service.client.append("orders", [Message("3", queue_id=0)])
        until(lambda: bool(got))
    assert got == [b"3"]


def test_the_same_on_an_event_loop(service: Service) -> None:
    async def work() -> None:
        async with AsyncClient(service.url) as client:
            async with client.producer("orders") as producer:
                sent = await asyncio.gather(*(producer.send(f"{number}", keys=["k"]) for number in range(500)))
            assert len({(one.queue_id, one.queue_offset) for one in sent}) == 500
            pages = client.query("orders", key="k", page_size=100)
            assert len([one async for one in pages.messages()]) == 500
            assert pages.is_complete
            assert len([one async for one in client.tail("orders", 0, follow=False)]) == 125
            with pytest.raises(TopicNotFoundError):
                await client.topic("none")
            got: list[StoredMessage] = []
            done = asyncio.Event()

            async def handle(message: StoredMessage) -> None:
                got.append(message)
                if len(got) == 500:
                    done.set()

            async with AsyncConsumer(client, "audit", ["orders"], handle, is_ordered=False):
                await done.wait()
            assert len({one.message_id for one in got}) == 500
            assert (await client.group("audit")).lag == 0

    asyncio.run(work())


def test_a_closed_client_ends_its_pauses() -> None:
    client = Client("http://127.0.0.1:9", retries=RetryPolicy(within_s=3600, first_s=600, most_s=600))
    threading.Timer(0.1, client.close).start()
    with pytest.raises(ClosedError):
        client.topics()


def test_a_handler_that_hangs_is_left_alone_and_its_message_comes_again(service: Service) -> None:
    service.client.append("orders", [Message("x", queue_id=0)])
    begun, gate = threading.Event(), threading.Event()

    def hang(message: StoredMessage) -> None:
        begun.set()
        gate.wait(60)

    with Consumer(service.client, "audit", ["orders"], hang, drain_s=0.05):
        assert begun.wait(60)
    assert service.client.committed("audit") == {}
    gate.set()
    got: list[StoredMessage] = []
    with Consumer(service.client, "audit", ["orders"], got.append):
        until(lambda: len(got) == 1)


def test_an_exit_in_a_handler_is_a_failure_of_it(service: Service) -> None:
    service.client.append("orders", [Message("x")])

    def leave(message: StoredMessage) -> None:
        raise SystemExit(1)

    with (
        pytest.raises(HandlerFailedError, match="1 times"),
        Consumer(service.client, "audit", ["orders"], leave, tries=1) as consumer,
    ):
        consumer.wait()
