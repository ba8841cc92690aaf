"""tierlog opens a store of its own again to which Apache RocketMQ has appended, and goes on in it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.rocketmq.java_rocketmq import JavaRocketMQ, JavaStore, StoreJob
from tests.support.rocketmq.written_stores import BUILDERS, TOPICS, JudgedStore
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

pytestmark = [pytest.mark.java, pytest.mark.timeout(1_200)]  # a fresh machine loads the jars first

BACK_AGAIN = (
    "clean",
    "ipv6_host",
    "killed",
    "killed_in_a_record",
    "first_segments_removed",
    "record_checksums",
    "classic_index",
)


def put_by_java(chance: random.Random, count: int) -> list[dict[str, object]]:
    """Messages for topics of ours and for one that only Java knows."""
    return [
        {
            "topic": chance.choice((*TOPICS, "made-by-java")),
            "queueId": chance.randrange(3),
            "body": base64.b64encode(chance.randbytes(chance.randrange(1, 1_500))).decode(),
            "bornMs": 1_700_000_000_000 + number,
            "properties": {"KEYS": f"java-{number} both", "TAGS": "标签"},
        }
        for number in range(count)
    ]


@dataclass(frozen=True)
class Continued:
    """A store of ours to which Java appended ``puts``; ``killed`` is how it would have left it if killed then."""

    given: JudgedStore
    killed: Path
    puts: list[dict[str, object]]
    java: JavaStore

    def everything(self) -> dict[tuple[str, int], list[tuple[int, str]]]:
        """Queue offset and SHA-256 of the body of every message that was ever appended, by queue."""
        queues: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        for sent in self.given.sent:
            place = sent.appended.queue_offset, hashlib.sha256(sent.message.body).hexdigest()
            queues[sent.message.topic, sent.appended.queue_id].append(place)
        for put, (_, queue_offset, _) in zip(self.puts, self.java.appended, strict=True):
            body = hashlib.sha256(base64.b64decode(str(put["body"]))).hexdigest()
            queues[str(put["topic"]), int(str(put["queueId"]))].append((queue_offset, body))
        return queues


def killed_copy(folder: Path, name: str) -> Path:
    return folder / f"{name}-killed-by-java"


@pytest.fixture(scope="module")
def continued(rocketmq: JavaRocketMQ, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Continued]:
    folder = tmp_path_factory.mktemp("continued")
    given = {name: BUILDERS[name](folder / name, number) for number, name in enumerate(BACK_AGAIN)}
    puts = {name: put_by_java(random.Random(number), 80) for number, name in enumerate(BACK_AGAIN)}
    jobs = [
        replace(StoreJob.of(store.root, store.settings), append=puts[name], killed_copy=killed_copy(folder, name))
        for name, store in given.items()
    ]
    return {
        name: Continued(given[name], killed_copy(folder, name), puts[name], found)
        for name, found in zip(given, rocketmq.stores(jobs), strict=True)
    }


def everything_pulled(engine: Store) -> dict[tuple[str, int], list[tuple[int, str]]]:
    pulled: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for topic in engine.topics():
        for queue in topic.queues:
            offset = queue.min_offset
            while offset < queue.max_offset:
                answer = engine.pull(topic.name, queue.queue_id, offset, 100)
                pulled.setdefault((topic.name, queue.queue_id), []).extend(
                    (stored.record.queue_offset, hashlib.sha256(stored.record.body).hexdigest())
                    for stored in answer.messages
                )
                assert answer.next_offset > offset
                offset = answer.next_offset
    return pulled


@pytest.mark.parametrize("stop", ["cleanly", "killed"])
@pytest.mark.parametrize("name", BACK_AGAIN)
def test_we_go_on_where_java_stopped(continued: dict[str, Continued], name: str, stop: str) -> None:
    there = continued[name]
    expected = there.everything()
    root = there.killed if stop == "killed" else there.given.root
    assert (root / "abort").exists() == (stop == "killed")
    with contextlib.closing(Store.open(root, settings=there.given.settings)) as engine:
        assert engine.check() == []
        assert everything_pulled(engine) == expected
        answer = engine.query(Query("made-by-java", "both", limit=1_000))
        assert len(answer.messages) == sum(put["topic"] == "made-by-java" for put in there.puts)
        for (topic, queue_id), places in expected.items():
            assert [offset for offset, _ in places] == list(range(len(places)))
            appended = engine.append([Message(topic, b"and on", queue_id=queue_id)])[0]
            assert appended.queue_offset == len(places)
            assert appended.store_ms >= there.java.appended[-1][2]
        assert engine.check() == []
