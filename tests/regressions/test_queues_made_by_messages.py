"""One message to queue 1,023 made a topic have 1,024 queues for good, and their files took half a gigabyte."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.access import GuardedService, line
from tests.support.stores.engines import tiny_settings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.catalogue import QueueInfo
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue
from tierlog.tiering.message.batch import Message

QUEUE_FILE_UNITS = 300_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GuardedService]:
    made = GuardedService(
        tmp_path,
        [
            line("writer", "produce", "shop-*"),
            line("admin", "admin", "shop-*"),
            line("reader", "read", "shop-*"),
            line("root", "read,produce,admin", "*"),
        ],
    )
    yield made
    assert made.engine.check() == []
    made.close()


def open_engine(folder: Path, **settings: object) -> Store:
    return Store.open(folder, settings=tiny_settings(**settings))


@pytest.mark.parametrize("form", ["json", "ndjson", "many", "keyed"])
def test_a_produce_token_gives_no_topic_more_queues(service: GuardedService, form: str) -> None:
    service.ask("PUT", "/v1/topics/shop-old", {"queues": 2}, by="admin")
    count = 300 if form == "many" else 1
    for topic, least in (("shop-old", 2), ("shop-new", 4)):
        messages = [*({"body": "x"} for _ in range(count)), {"body": "x", "queue_id": 1023}]
        headers = {"Idempotency-Key": "p:0"} if form == "keyed" else {}
        if form == "ndjson":
            headers["Content-Type"] = "application/x-ndjson"
            answer = service.ask(
                "POST", f"/v1/topics/{topic}/messages", None, by="writer", headers=headers,
                content=b"".join(b'{"body":"x","queue_id":1023}\n' for _ in range(2)),
            )  # fmt: skip
        else:
            answer = service.ask(
                "POST", f"/v1/topics/{topic}/messages", {"messages": messages}, by="writer", headers=headers
            )
        assert answer.status_code == 400
        assert f"topic '{topic}' has {least} queues, and no queue 1023" in answer.json()["detail"]
        assert f"PUT /v1/topics/{topic}" in answer.json()["hint"]
    assert {topic.name: len(topic.queues) for topic in service.engine.topics()} == {"shop-old": 2}
    # by the call that is for it, and then messages go there
    assert service.ask("PUT", "/v1/topics/shop-old", {"queues": 8}, by="writer").status_code == 403
    assert service.ask("PUT", "/v1/topics/shop-old", {"queues": 8}, by="admin").status_code == 200
    appended = {"messages": [{"body": "x", "queue_id": 7}]}
    assert service.ask("POST", "/v1/topics/shop-old/messages", appended, by="writer").status_code == 200


def test_the_message_that_is_wrong_is_refused_alone_where_it_is_sent(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    pending = engine.pending_messages()
    pending.add("t", b"good", queue_id=3)
    with pytest.raises(InvalidRequestError, match="no queue 4"):
        pending.add("t", b"bad", queue_id=4)
    assert len(engine.append(pending)) == 1
    engine.close()


def test_messages_make_topics_up_to_a_bound_and_an_operator_more(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, max_topics=2)
    engine.append([Message("a", b"x"), Message("b", b"x")])
    with pytest.raises(ConflictError, match="there are 2 topics"):
        engine.append([Message("a", b"x"), Message("c", b"x")])
    assert len(engine.append([Message("a", b"x")])) == 1
    engine.create_topic("c", 1)
    assert len(engine.append([Message("c", b"x")])) == 1
    engine.close()


def test_groups_have_a_bound_that_is_a_setting(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, max_groups=1)
    engine.append([Message("t", b"x")])
    engine.groups.join("first", ["t"])
    with pytest.raises(ConflictError, match="there are 1 groups"):
        engine.groups.join("second", ["t"])
    engine.close()


def test_a_queue_file_takes_blocks_as_it_is_written(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, hot__queue_file_units=QUEUE_FILE_UNITS)
    engine.create_topic("t", 16)
    engine.append([Message("t", b"x", queue_id=queue_id) for queue_id in range(16)])
    engine.flush()
    files = [path for path in StorePaths(tmp_path).consumequeue.rglob("*") if path.is_file()]
    assert len(files) == 16
    assert {path.stat().st_size for path in files} == {QUEUE_FILE_UNITS * 20}  # RocketMQ asks for their full length
    assert sum(os.stat(path).st_blocks * 512 for path in files) <= 16 * 64 * 1024
    engine.close()
    settings: Settings = tiny_settings(hot__queue_file_units=QUEUE_FILE_UNITS)
    again = Store.open(tmp_path, settings=settings)
    assert [again.pull("t", queue_id, 0, 1).messages[0].record.body for queue_id in range(16)] == [b"x"] * 16
    assert again.check() == []
    again.close()


def test_listing_topics_costs_what_the_caller_sees_and_no_look_a_queue(
    service: GuardedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        service.engine.create_topic(f"other-{number}", 50)
    service.engine.create_topic("shop-1", 500)
    service.engine.append([Message("shop-1", b"x", queue_id=queue_id) for queue_id in (0, 499)])
    service.engine.flush()
    looks: list[str] = []
    hot = service.engine._hot
    dispatch, shown, made = hot.dispatch, SnapshotQueue.__init__, QueueInfo.__init__

    def dispatched() -> int:
        looks.append("snapshot")
        return dispatch()

    def looked_at(queue: SnapshotQueue, *given: Any) -> None:
        looks.append("queue")
        shown(queue, *given)

    def described(queue: QueueInfo, *given: Any, **named: Any) -> None:
        looks.append("described")
        made(queue, *given, **named)

    monkeypatch.setattr(hot, "dispatch", dispatched)
    monkeypatch.setattr(SnapshotQueue, "__init__", looked_at)
    monkeypatch.setattr(QueueInfo, "__init__", described)
    for path, queues in (("/v1/topics", 40 * 50 + 500), ("/v1/topics/shop-1", 500)):
        looks.clear()
        assert service.ask("GET", path, by="root").status_code == 200
        assert Counter(looks) == {"snapshot": 1, "queue": 2, "described": queues}
    looks.clear()
    (found,) = service.ask("GET", "/v1/topics", by="reader").json()["topics"]
    assert (found["topic"], [queue["max_offset"] for queue in found["offsets"]]) == ("shop-1", [1, *[0] * 498, 1])
    assert Counter(looks) == {"snapshot": 1, "queue": 2, "described": 500}
