"""What a request that is sent again does, and how long that holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.stores.dumps import dumped
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.appends import IdempotencyKey
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    ConflictError,
    InvalidRequestError,
    KeyReusedError,
    MessageTooLargeError,
    RequestUnderWayError,
)
from tierlog.tiering.format.properties import SHARDING_KEY
from tierlog.tiering.hot.producers import SequenceRun
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.batch import Message

KEY = IdempotencyKey("p")


class StoreWorld:
    """An engine that can be opened again, with a clock of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.open()

    def open(self, **overrides: object) -> None:
        settings = tiny_settings(**overrides)
        url = f"file://{self.folder}/cold"
        self.engine = Store.open(self.folder / "store", settings=settings, cold_url=url, clock=self.clock)

    def reopen(self, **overrides: object) -> None:
        self.engine.close()
        self.open(**overrides)

    def send(self, first: int, end: int, *, producer: str = "p") -> Sequence[Appended]:
        return self.engine.append(batch(first, end), key=IdempotencyKey(producer, first))

    @property
    def count(self) -> int:
        self.engine.flush()
        topics = self.engine.topics()
        return sum(queue.max_offset for topic in topics for queue in topic.queues)


@pytest.fixture
def store(tmp_path: Path) -> StoreWorld:
    return StoreWorld(tmp_path)


def batch(first: int, end: int) -> list[Message]:
    return [Message("t", b"body %d" % number, [f"k{number}"], "tag", {"p": "v"}) for number in range(first, end)]


def drop_hot(store: StoreWorld) -> None:
    store.engine.archive(everything=True, drop_hot=True)


@pytest.mark.parametrize("again", [lambda store: None, StoreWorld.reopen, drop_hot])
def test_a_request_sent_again_is_answered_as_the_first_time(
    store: StoreWorld, again: Callable[[StoreWorld], object]
) -> None:
    first = store.send(0, 500)  # over several segments
    again(store)
    assert store.send(0, 500) == first
    assert store.count == 500
    assert store.send(100, 200) == first[100:200]
    assert store.send(490, 510)[:10] == first[490:]
    assert store.count == 510
    store.engine.close()


def test_only_what_is_missing_is_appended(store: StoreWorld) -> None:
    middle = store.send(10, 20)
    end = store.send(30, 40)
    whole = store.send(0, 50)
    assert (whole[10:20], whole[30:40]) == (middle, end)
    assert store.count == 50
    assert store.send(0, 50) == whole
    store.engine.close()


def test_producers_and_topics_have_numbers_of_their_own(store: StoreWorld) -> None:
    store.send(0, 5)
    store.send(0, 5, producer="other")
    store.engine.append([Message("elsewhere", b"x")], key=KEY)
    assert store.count == 11
    store.engine.close()


@pytest.mark.parametrize(
    "other",
    [
        Message("t", b"other", ["k0"], "tag", {"p": "v"}),
        Message("t", b"body 0", [], "tag", {"p": "v"}),
        Message("t", b"body 0", ["k0"], "other", {"p": "v"}),
        Message("t", b"body 0", ["k0"], "tag", {"p": "other"}),
        Message("t", b"body 0", ["k0"], "tag", {"p": "v"}, 5),
        Message("t", b"body 0", ["k0"], "tag", {"p": "v"}, None, 3),
    ],
)
def test_a_key_for_other_messages_is_refused(store: StoreWorld, other: Message) -> None:
    store.send(0, 1)
    with pytest.raises(KeyReusedError, match="message 0 is not the one that number 0") as raised:
        store.engine.append([other, *batch(1, 2)], key=KEY)
    assert raised.value.position == 0
    assert store.count == 1
    store.engine.close()


def test_columns_are_sent_again_like_messages(store: StoreWorld) -> None:
    columns = {
        "body": [f"body {n}" for n in range(30)], "keys": [[f"k{n}"] for n in range(30)], "tag": ["tag"] * 30,
        "properties": pa.array([[("p", "v")]] * 30, pa.map_(pa.string(), pa.string())),
    }  # fmt: skip
    messages: Sequence[Message] = ArrowMessages(pa.table(columns), "t")
    first = store.engine.append(messages[:20], key=KEY)
    assert store.engine.append(messages, key=KEY)[:20] == first
    assert store.send(0, 30)[:20] == first
    assert store.count == 30
    store.engine.close()


def test_a_sharding_key_may_lead_elsewhere_by_now(store: StoreWorld) -> None:
    message = Message("t", b"x", properties={SHARDING_KEY: "a"}, queue_id=1)
    first = store.engine.append([message], key=KEY)
    moved = Message("t", b"x", properties={SHARDING_KEY: "a"}, queue_id=2)
    assert store.engine.append([moved], key=KEY) == first
    store.engine.close()


def test_what_is_under_way_is_not_begun_again(store: StoreWorld) -> None:
    window = store.engine._hot.producers
    with window.claim("t", "p", 10, 20):
        for first, end in ((0, 11), (19, 30), (12, 13), (0, 40)):
            with pytest.raises(RequestUnderWayError):
                store.send(first, end)
        store.send(0, 10)
        store.send(20, 30)
        store.send(10, 20, producer="other")
    store.send(10, 20)
    assert store.count == 40
    store.engine.close()


def test_two_requests_at_once_append_once(store: StoreWorld) -> None:
    outcomes: list[object] = []
    start = threading.Barrier(4)

    def send() -> None:
        start.wait()
        try:
            outcomes.append(list(store.send(0, 50)))
        except RequestUnderWayError as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count == 50
    assert {str(one) for one in outcomes} <= {str(list(store.send(0, 50))), str(RequestUnderWayError)}
    store.engine.close()


def test_what_is_older_than_the_window_counts_as_never_seen(store: StoreWorld) -> None:
    store.reopen(produce__window_ms=10_000)
    store.send(0, 5)
    store.clock.advance(9_999)
    store.send(0, 6)
    assert store.count == 6
    assert store.engine.stats()["produce_window_requests"] == 2
    store.clock.advance(2)
    store.send(0, 5)
    assert store.count == 11
    store.engine.close()


@pytest.mark.parametrize("reopened", [False, True])
def test_no_more_requests_are_known_than_the_window_holds(store: StoreWorld, reopened: bool) -> None:
    store.reopen(produce__window_requests=3)
    for number in range(5):
        store.send(number, number + 1, producer=f"p{number}")
    if reopened:
        store.reopen(produce__window_requests=3)
    assert store.engine.stats()["produce_window_requests"] == 3
    for number in (4, 3, 2):
        store.send(number, number + 1, producer=f"p{number}")
    assert store.count == 5
    store.send(0, 1, producer="p0")
    assert store.count == 6
    store.engine.close()


def test_a_request_is_known_until_as_many_others_came_as_the_window_holds(store: StoreWorld) -> None:
    """docs/producing.md says which rate of requests that allows, for as long as a client tries."""
    store.reopen(produce__window_requests=100)
    store.send(0, 1, producer="one")
    for number in range(99):
        store.send(number, number + 1, producer=f"p{number}")
    store.send(0, 1, producer="one")
    assert store.count == 100
    store.send(99, 100, producer="p99")
    store.send(0, 1, producer="one")
    assert store.count == 102
    store.engine.close()


def test_a_store_without_producers_has_no_file_and_scans_nothing(store: StoreWorld) -> None:
    store.engine.append(batch(0, 10))
    store.reopen()
    assert not (store.folder / "store" / "tierlog" / "producers.json").exists()
    assert not store.engine._hot.producers.is_in_use
    store.engine.close()


def test_a_file_that_cannot_be_read_is_made_again_from_the_log(store: StoreWorld) -> None:
    first = store.send(0, 300)
    store.engine.close()
    (store.folder / "store" / "tierlog" / "producers.json").write_text("{")
    store.open()
    assert store.send(0, 300) == first
    assert store.count == 300
    store.engine.close()


def test_what_was_erased_is_not_appended_again(store: StoreWorld) -> None:
    store.send(0, 3)
    store.engine.removal.erase(Query("t", key="k1"))
    with pytest.raises(ConflictError, match="message 1 was appended before, and is erased or expired"):
        store.send(0, 5)
    assert store.count == 3
    store.engine.close()


def test_a_body_that_looks_like_a_mark_is_none(store: StoreWorld) -> None:
    mark = b"TL_PID\x01q\x02TL_SEQ\x010\x02"
    store.engine.append([Message("t", mark * 50)] * 20)
    store.send(0, 5)
    store.engine.close()
    (store.folder / "store" / "tierlog" / "producers.json").write_text("{")
    store.open()
    assert store.engine._hot.producers.known("t", "q", 0, 10) == []
    assert [(run.first, run.end) for run in store.engine._hot.producers.known("t", "p", 0, 10)] == [(0, 5)]
    store.engine.close()


def test_the_marks_are_the_stores(store: StoreWorld) -> None:
    for name in ("TL_PID", "TL_SEQ"):
        with pytest.raises(InvalidRequestError, match=f"property '{name}' is written by the store"):
            store.engine.append([Message("t", b"x", properties={name: "1"})])
    store.send(0, 1)
    (found,) = store.engine.query(Query("t", key="k0")).messages
    assert found.properties == {"p": "v"}
    assert (found.record.properties["TL_PID"], found.record.properties["TL_SEQ"]) == ("p", "0")
    store.engine.close()
    (shown,) = dumped(store.folder / "store" / "commitlog" / f"{0:020d}", limit=1).rows
    assert shown["properties"] == {"p": "v", "TL_PID": "p", "TL_SEQ": "0"}


def test_a_mark_that_does_not_fit_is_refused_before_anything_is_written(store: StoreWorld) -> None:
    message = Message("t", b"x", properties={"p": "v" * 32_750})
    store.engine.append([message])
    with pytest.raises(MessageTooLargeError, match="message 0: property text"):
        store.engine.append([message], key=KEY)
    assert store.engine.read_only_reason is None
    assert store.count == 1
    store.engine.close()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a", IdempotencyKey("a", 0)),
        ('"8e03978e-40d5-43dd-bc93-6894a57f9324"', IdempotencyKey("8e03978e-40d5-43dd-bc93-6894a57f9324", 0)),
        ("job-7_3.~x:42", IdempotencyKey("job-7_3.~x", 42)),
        ('"a:5"', IdempotencyKey("a", 5)),
    ],
)
def test_a_key_names_the_producer_and_the_first_number(text: str, key: IdempotencyKey) -> None:
    assert IdempotencyKey.parse(text) == key


@pytest.mark.parametrize(
    "text", ["", '""', '"a', "a b", "a:", "a:-1", "a:1:2", ":1", "ü", "a" * 65, "a:" + "9" * 19, "a\n"]
)
def test_a_bad_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="bad Idempotency-Key"):
        IdempotencyKey.parse(text)


def test_runs_lie_in_one_segment_each(store: StoreWorld) -> None:
    store.send(0, 2000)
    runs: list[SequenceRun] = store.engine._hot.producers.known("t", "p", 0, 2000)
    assert len(runs) > 2
    assert all(run.physical // 65_536 == (run.physical_end - 1) // 65_536 for run in runs)
    store.engine.close()
