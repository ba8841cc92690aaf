"""Apache RocketMQ opens a store that tierlog wrote, finds in it what was appended, and changes none of its bytes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.rocketmq.java_rocketmq import JavaMessage, JavaRocketMQ, JavaStore, StoreJob, StoreQuery
from tests.support.rocketmq.written_stores import BUILDERS, KEYS, TAGS, TOPICS, JudgedStore, Sent, digests
from tierlog.service.config.settings import Settings
from tierlog.tiering.format.hashing import key_hash
from tierlog.tiering.format.properties import RECORD_CHECKSUM

pytestmark = [pytest.mark.java, pytest.mark.timeout(1_200)]  # a fresh machine loads the jars first

#: Where the body begins in a record with IPv4 hosts.
BODY_AT = 88


@dataclass(frozen=True)
class Verdict:
    """What was given to RocketMQ, what it found, and a digest of every file before and after."""

    given: JudgedStore
    found: JavaStore
    before: dict[str, str]
    after: dict[str, str]


def below(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in files.items() if path.startswith(f"{folder}/")}


def job_for(given: JudgedStore) -> StoreJob:
    queries = index_queries(given) if given.settings.index.classic else []
    return replace(StoreJob.of(given.root, given.settings), queries=queries)


def index_queries(given: JudgedStore) -> list[StoreQuery]:
    """Every key and tag, and unique keys, without and with limits that cut."""
    last_ms = given.sent[-1].appended.store_ms
    unique = [sent.message.properties.get("UNIQ_KEY", "") for sent in given.sent[::7]]
    asked = [
        *((topic, key, "K") for topic in TOPICS for key in (*KEYS, "no-such-key")),
        *((topic, tag, "T") for topic in TOPICS for tag in (*TAGS[1:], "NoSuchTag")),
        *((topic, key, "U") for topic in TOPICS for key in unique if key),
        ("no-such-topic", "k1", "K"),
    ]
    return [
        (topic, key, most, from_ms, to_ms, kind)
        for topic, key, kind in asked
        for most, from_ms, to_ms in (
            (64, 0, last_ms),
            (1_000, 0, last_ms + 1),
            (3, 0, last_ms),
            (64, last_ms - 60_000, last_ms - 20_000),
            (64, last_ms - 150_000, last_ms - 110_000),
        )
    ]


@pytest.fixture(scope="module")
def verdicts(rocketmq: JavaRocketMQ, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    folder = tmp_path_factory.mktemp("stores")
    given = {name: build(folder / name, number) for number, (name, build) in enumerate(BUILDERS.items())}
    before = {name: digests(store.root) for name, store in given.items()}
    found = rocketmq.stores([job_for(store) for store in given.values()])
    return {
        name: Verdict(store, answer, before[name], digests(store.root))
        for (name, store), answer in zip(given.items(), found, strict=True)
    }


@pytest.fixture(params=BUILDERS)
def verdict(request: pytest.FixtureRequest, verdicts: dict[str, Verdict]) -> Verdict:
    return verdicts[request.param]


def as_java(sent: Sent, found: JavaMessage, settings: Settings) -> JavaMessage:
    """What Java must say of a message; size, tags code and checksum are Java's own word."""
    message, appended = sent.message, sent.appended
    properties = dict(message.properties)
    if message.keys:
        properties["KEYS"] = " ".join(message.keys)
    if message.tag:
        properties["TAGS"] = message.tag
    if settings.hot.record_checksum:
        properties[RECORD_CHECKSUM] = found.properties[RECORD_CHECKSUM]
    assert settings.advertise is not None
    store_host = settings.advertise.replace("2001:db8::7", "2001:db8:0:0:0:0:0:7")  # as Java writes it
    return JavaMessage(
        sent.physical_offset, found.size, 2 if len(message.topic) > 127 else 1, message.topic, appended.queue_id,
        appended.queue_offset, message.born_ms or appended.store_ms, sent.born_host, appended.store_ms, store_host,
        hashlib.sha256(message.body).hexdigest(), properties, appended.message_id, found.tags_code,
    )  # fmt: skip


def test_every_message_is_read_and_none_is_added(verdict: Verdict) -> None:
    found, expected = verdict.found.messages, verdict.given.hot
    assert len(found) == len(expected)
    assert found == [as_java(sent, seen, verdict.given.settings) for sent, seen in zip(expected, found, strict=True)]


def test_log_begins_and_ends_where_ours_does(verdict: Verdict) -> None:
    assert verdict.found.min_physical_offset == verdict.given.border
    assert verdict.found.max_physical_offset == verdict.given.end


def test_every_queue_holds_its_messages_in_order(verdict: Verdict) -> None:
    records = {message.physical_offset: message for message in verdict.found.messages}
    in_log: dict[tuple[str, int], list[Sent]] = defaultdict(list)
    for sent in verdict.given.sent:
        in_log[sent.message.topic, sent.appended.queue_id].append(sent)
    assert verdict.found.queues.keys() == in_log.keys()
    for key, queue in verdict.found.queues.items():
        hot = [sent for sent in in_log[key] if sent.physical_offset in records]
        next_offset = in_log[key][-1].appended.queue_offset + 1
        assert (queue.min_offset, queue.max_offset) == (next_offset - len(hot), next_offset), key
        assert queue.pulled == [sent.physical_offset for sent in hot]
        assert queue.units == [
            (sent.physical_offset, records[sent.physical_offset].size, records[sent.physical_offset].tags_code)
            for sent in hot
        ]


def test_nothing_is_truncated_or_rewritten(verdict: Verdict) -> None:
    before, after = verdict.before, verdict.after
    assert below("commitlog", after) == below("commitlog", before)
    assert below("tierlog", after) == below("tierlog", before)
    if verdict.given.queues_are_complete:
        assert below("consumequeue", after) == below("consumequeue", before)
    index = below("index", before)
    if "abort" in before:  # RocketMQ drops and writes again index files of its own
        index = {path: digest for path, digest in index.items() if path.count("/") > 1}
    assert index.items() <= after.items()
    assert "abort" not in after


def test_stores_are_such_that_every_border_is_crossed(verdicts: dict[str, Verdict]) -> None:
    clean, removed = verdicts["clean"], verdicts["first_segments_removed"]
    assert len(below("commitlog", clean.before)) > 8
    assert len(clean.found.blanks) > 8
    assert len(below("consumequeue", clean.before)) > 2 * len(clean.found.queues)
    assert {message.version for message in clean.found.messages} == {1, 2}
    assert removed.found.min_physical_offset > 0
    assert any(queue.min_offset == queue.max_offset for queue in removed.found.queues.values())
    assert any(queue.min_offset % 5 for queue in removed.found.queues.values())


@dataclass(frozen=True)
class PlainItem:
    """One item of the classic index and the time that is read back from it."""

    hash: int
    physical_offset: int
    store_ms: int


def plain_items(given: JudgedStore) -> list[PlainItem]:
    """Every item in order; the first of a second or later file reads back too late (RocketMQ's own doing)."""
    items: list[PlainItem] = []
    previous_ms = 0
    for sent in given.sent:
        message, store_ms = sent.message, sent.appended.store_ms
        keys = [message.properties.get("UNIQ_KEY", ""), *message.keys, f"T#{message.tag}" if message.tag else ""]
        for key in filter(None, keys):
            is_late = items and len(items) % (given.settings.index.classic_items - 1) == 0
            read_ms = store_ms + (store_ms - previous_ms if is_late else 0)
            items.append(PlainItem(key_hash(message.topic, key), sent.physical_offset, read_ms))
            previous_ms = store_ms
    return items


def plain_answer(given: JudgedStore, items: list[PlainItem], query: StoreQuery) -> list[int]:
    """The newest items, 64 at most, whose record is still there, in the order of the log."""
    topic, key, most, from_ms, to_ms, kind = query
    hash = key_hash(topic, f"T#{key}" if kind == "T" else key)
    found = [item.physical_offset for item in items if item.hash == hash and from_ms <= item.store_ms <= to_ms]
    return [offset for offset in found[-min(most, 64) :] if offset >= given.border]


@pytest.mark.parametrize("name", ["classic_index", "classic_index_after_removal"])
def test_key_queries_on_the_classic_index_equal_a_plain_model(verdicts: dict[str, Verdict], name: str) -> None:
    given, found = verdicts[name].given, verdicts[name].found
    items, queries = plain_items(given), index_queries(given)
    assert len(items) > 5 * given.settings.index.classic_items
    assert found.queries == [plain_answer(given, items, query) for query in queries]
    assert max(len(answer) for answer in found.queries) > 12


def test_key_queries_after_a_kill_find_every_message(verdicts: dict[str, Verdict]) -> None:
    """RocketMQ indexes again what is in no complete file, and the last record of the last complete one twice."""
    verdict = verdicts["killed_with_classic_index"]
    items, queries = plain_items(verdict.given), index_queries(verdict.given)
    assert len(items) > 4 * verdict.given.settings.index.classic_items
    for query, found in zip(queries, verdict.found.queries, strict=True):
        if query[2:4] == (64, 0):
            assert sorted(set(found)) == sorted(set(plain_answer(verdict.given, items, query))), query
            assert len(found) < 64


def test_the_judge_sees_a_flipped_bit_and_a_missing_checksum(rocketmq: JavaRocketMQ, tmp_path: Path) -> None:
    plain = BUILDERS["killed_after_a_roll"](tmp_path / "plain", 1)
    flipped = BUILDERS["killed_before_dispatch"](tmp_path / "flipped", 2)
    last = flipped.sent[-1]
    position = last.physical_offset % 16_384
    with (flipped.root / "commitlog" / f"{last.physical_offset - position:020d}").open("r+b") as file:
        file.seek(position + BODY_AT)
        byte = file.read(1)[0]
        file.seek(position + BODY_AT)
        file.write(bytes([byte ^ 1]))
    unsummed, damaged = rocketmq.stores([replace(job_for(plain), record_checksum=True), job_for(flipped)])
    assert (unsummed.messages, unsummed.max_physical_offset) == ([], 0)
    assert len(damaged.messages) == len(flipped.sent) - 1
    assert damaged.max_physical_offset == last.physical_offset
