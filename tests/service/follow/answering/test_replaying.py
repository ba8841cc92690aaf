"""Topics that are replayed: consumers read all that is kept of a topic, in queues that keep their numbers for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.rocketmq.answering_world import AnsweringWorld, answering_world, log_of
from tests.support.rocketmq.pulled import decoded
from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.stores.followed import BrokerLog
from tests.support.stores.irregular import irregular_log, sent
from tests.support.world import read_all
from tierlog.service.follow.answering.replay import ReplayQueue, ReplayQueues, renamed_records
from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.format.record import Record, RecordVersion, encode_host, encode_record
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import PullFlag, RequestCode, ResponseCode

_TOPIC = "archive%orders"


def log(name: str, queues: int = 2, count: int = 60) -> BrokerLog:
    """A log whose bodies say where they are from, with tags in turn."""
    tags = ("TagA", "TagB")
    return log_of(
        [
            Message("orders", f"{name}-{number}".encode(), tag=tags[number // queues % 2], queue_id=number % queues)
            for number in range(count)
        ]
    )


def registered(world: AnsweringWorld) -> None:
    """Wait until consumers are told of the topic."""
    asked = world.nameserver.asked
    world.wait_until(lambda: any(one.fields.get("brokerId") == "0" for one in asked))


def pull(client: RemotingClient, queue_id: int, offset: int, **more: object) -> Any:
    flags = PullFlag.SUBSCRIPTION
    asked = {
        "consumerGroup": "replayer", "topic": _TOPIC, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": int(flags), "subscription": "*", "expressionType": "TAG", "subVersion": 1, **more,
    }  # fmt: skip
    return client.ask(RequestCode.PULL_MESSAGE, asked)


def everything(client: RemotingClient, queue_id: int) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        answer = pull(client, queue_id, offset)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        found += decoded(answer.body)
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])


def test_the_queues_of_all_stores_lie_side_by_side_and_are_read_from_their_beginnings(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a"), log("b", 3)]) as world, world.client() as client:
        registered(world)
        world.followed[0].engine.archive_all()
        places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        for number, (store, queue_id) in enumerate(places):
            expected = [one.record for one in read_all(world.followed[store].engine.store, "orders", queue_id)]
            found = everything(client, number)
            assert [one.body for one in found] == [one.body for one in expected]
            assert {(one.topic, one.queue_id) for one in found} == {(_TOPIC, number)}
            same = ("queue_offset", "physical_offset", "store_ms", "born_ms", "properties_text", "store_host", "flag")
            assert [[getattr(one, name) for name in same] for one in found] == [
                [getattr(one, name) for name in same] for one in expected
            ]
        assert pull(client, len(places), 0).code == ResponseCode.TOPIC_NOT_EXIST


def test_offsets_and_times_are_those_of_the_queue(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a")]) as world, world.client() as client:
        registered(world)
        records = everything(client, 1)
        place = {"topic": _TOPIC, "queueId": 1}
        assert client.done(RequestCode.GET_MIN_OFFSET, place).fields["offset"] == "0"
        assert client.done(RequestCode.GET_MAX_OFFSET, place).fields["offset"] == str(len(records))
        times = {"timestamp": records[12].store_ms, **place}
        at = int(client.done(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, times).fields["offset"])
        assert records[at].store_ms == records[12].store_ms
        first = client.done(RequestCode.GET_EARLIEST_MSG_STORETIME, place).fields["timestamp"]
        assert first == str(records[0].store_ms)
        config = client.document(RequestCode.GET_TOPIC_CONFIG, {"topic": _TOPIC})
        assert (config["perm"], config["readQueueNums"]) == (4, 2)
        stats = client.done(RequestCode.GET_TOPIC_STATS_INFO, {"topic": _TOPIC}).body.decode()
        assert stats.count('"maxOffset":30') == 2


def test_a_tag_of_the_heartbeat_filters_pulls_that_say_none(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a")]) as world, world.client() as client:
        registered(world)
        said = {"sysFlag": 0, "subscription": None, "expressionType": None}
        assert pull(client, 0, 0, **said).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        client.heartbeat("replayer", topics={_TOPIC: "TagB"})
        found = decoded(pull(client, 0, 0, **said).body)
        assert {one.properties["TAGS"] for one in found} == {"TagB"}
        assert {one.properties["TAGS"] for one in decoded(pull(client, 0, 0, **said, subVersion=9).body)} == {
            "TagA", "TagB"
        }  # fmt: skip


def test_offsets_of_a_group_are_kept_and_are_not_those_of_its_namesake(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a"), log("b")]) as world, world.client() as client:
        registered(world)
        stores = [one.engine.store for one in world.followed]
        stores[1].groups.copy({"replayer": {("orders", 1): 29}})
        place = {"consumerGroup": "replayer", "topic": _TOPIC, "queueId": 3}
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields["offset"] == "0"
        client.done(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 7})
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields["offset"] == "7"
        assert stores[1].groups.committed("archive%replayer").offsets == {("orders@1", "broker-b", 1): 7}
        assert stores[1].groups.committed("replayer").offsets == {("orders", "broker-b", 1): 29}
        progress = client.done(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "replayer", "topic": ""}).body
        assert b'"consumerOffset":7' in progress
        topics = client.document(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "replayer"})["topicList"]
        assert topics == [_TOPIC]
        readers = client.document(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": _TOPIC})["groupList"]
        assert readers == ["replayer"]


def test_offsets_that_come_beside_pulls_are_kept_too(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a")]) as world, world.client() as client:
        registered(world)
        pull(client, 0, 5, sysFlag=int(PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET), commitOffset=5)
        place = {"consumerGroup": "replayer", "topic": _TOPIC, "queueId": 0}
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields["offset"] == "5"
        store = world.followed[0].engine.store
        world.door.stop(5)
        assert store.groups.committed("archive%replayer").offsets == {("orders@1", "broker-a", 0): 5}


def test_a_group_goes_back_to_a_time_and_its_members_are_told(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a")]) as world, world.client() as client:
        registered(world)
        records = everything(client, 0)
        client.heartbeat("replayer", topics={_TOPIC: "*"})
        asked = {"group": "replayer", "topic": _TOPIC, "timestamp": records[9].store_ms, "isForce": True}
        answer = client.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)
        place = {"consumerGroup": "replayer", "topic": _TOPIC, "queueId": 0}
        offset = int(client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields["offset"])
        assert records[offset].store_ms == records[9].store_ms
        assert f'"queueId":0,"topic":"{_TOPIC}"}}:{offset}'.encode() in answer.body
        while (pushed := client.push()).code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            assert pushed.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert pushed.body == answer.body


def test_a_pull_at_the_end_waits_for_what_the_broker_sends_next(tmp_path: Path) -> None:
    whole = log("a", count=62)
    cut = log("a", count=60)
    assert whole.data.startswith(cut.data)
    with answering_world(tmp_path, [cut], is_started=True) as world, world.client() as client:
        registered(world)
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        number = client.send(
            RequestCode.PULL_MESSAGE,
            {"consumerGroup": "g", "topic": _TOPIC, "queueId": 0, "queueOffset": 30, "maxMsgNums": 32, "sysFlag": flags,
             "suspendTimeoutMillis": 20_000, "subscription": "*", "expressionType": "TAG", "commitOffset": 0},
        )  # fmt: skip
        world.wait_until(lambda: world.door.numbers().waiting == 1)
        whole.feed(world.followed[0].engine)
        world.followed[0].engine.flush()
        assert [one.body for one in decoded(client.answer_to(number).body)] == [b"a-60"]


def test_queues_are_locked_for_those_who_consume_in_order(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a")]) as world, world.client() as client:
        registered(world)
        queue = {"brokerName": "tierlog-DefaultCluster-archive", "queueId": 0, "topic": _TOPIC}
        for client_id, locked in (("one", [queue]), ("two", [])):
            body = json.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": [queue]}).encode()
            assert client.document(RequestCode.LOCK_BATCH_MQ, {}, body)["lockOKMQSet"] == locked


def test_while_a_store_is_opened_again_its_queues_say_so(tmp_path: Path) -> None:
    with answering_world(tmp_path, [log("a"), log("b")]) as world, world.client() as client:
        registered(world)
        world.followed[1].broker.store = None
        assert pull(client, 0, 0).code == ResponseCode.SUCCESS
        assert pull(client, 2, 0).code == ResponseCode.SYSTEM_BUSY


def test_a_topic_that_is_made_again_gets_queues_beside_those_of_before(tmp_path: Path) -> None:
    records = [*sent("orders", 0, range(40)), *sent("orders", 1, range(10), 40), *sent("orders", 0, range(30), 50)]
    whole = irregular_log(records)
    first = BrokerLog(whole.log.data[: whole.records[50].at])
    with answering_world(tmp_path, [first], is_started=True) as world, world.client() as client:
        registered(world)
        followed = world.followed[0]
        place = {"consumerGroup": "replayer", "topic": _TOPIC, "queueId": 0}
        client.done(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 33})
        assert pull(client, 2, 0).code == ResponseCode.TOPIC_NOT_EXIST
        whole.log.feed(followed.engine)
        followed.engine.flush()
        world.wait_until(lambda: len(followed.engine.store.generation_counts()["orders"]) == 2)
        world.wait_until(lambda: world.registered("tierlog-DefaultCluster-archive")[_TOPIC]["readQueueNums"] == 3)
        for queue_id, numbers in enumerate((range(40), range(40, 50), range(50, 80))):
            found = everything(client, queue_id)
            assert [one.properties["KEYS"] for one in found] == [f"key-{number}" for number in numbers]
            assert [one.queue_offset for one in found] == list(range(len(numbers)))
            ends = {"topic": _TOPIC, "queueId": queue_id}
            assert client.done(RequestCode.GET_MAX_OFFSET, ends).fields["offset"] == str(len(numbers))
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields["offset"] == "33"
        client.done(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "queueId": 2, "commitOffset": 4})
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields["offset"] == "33"
        committed = followed.engine.store.groups.committed("archive%replayer").offsets
        assert committed == {("orders@1", "broker-a", 0): 33, ("orders@2", "broker-a", 0): 4}
        progress = client.done(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "replayer", "topic": ""}).body.decode()
        assert [f'"brokerOffset":{end}' in progress for end in (40, 10, 30)] == [True] * 3
        reset = {"group": "replayer", "topic": _TOPIC, "timestamp": -1, "isForce": True}
        client.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields["offset"] == "40"


# Which queue is which.


def test_queues_that_come_later_get_later_numbers(tmp_path: Path) -> None:
    queues = ReplayQueues(tmp_path / "queues.json", _disk(tmp_path))
    queues.extend({"b": {"orders": [1]}, "a": {"orders": [2]}})
    first = [ReplayQueue("a", 0), ReplayQueue("a", 1), ReplayQueue("b", 0)]
    assert queues.of("orders") == first
    queues.extend({"a": {"orders": [3]}, "b": {"orders": [1]}, "c": {"orders": [1], "other": [1]}})
    after = [*first, ReplayQueue("a", 2), ReplayQueue("c", 0)]
    assert queues.of("orders") == after
    queues.extend({"a": {"orders": [1]}})
    assert queues.of("orders") == after
    queues.extend({"a": {"orders": [3, 2]}, "b": {"orders": [1, 0, 1]}})
    after += [ReplayQueue("a", 0, 2), ReplayQueue("a", 1, 2), ReplayQueue("b", 0, 3)]
    assert queues.of("orders") == after


def test_what_was_told_is_the_same_after_a_power_cut(tmp_path: Path) -> None:
    fs = _disk(tmp_path)
    queues = ReplayQueues(tmp_path / "queues.json", fs)
    queues.extend({"b": {"orders": [2]}})
    queues.extend({"a": {"orders": [1]}, "b": {"orders": [2, 3]}})
    told = list(queues.of("orders"))
    again = ReplayQueues(tmp_path / "queues.json", fs.crash(1, lose_everything=True))
    again.extend({"a": {"orders": [1]}, "b": {"orders": [2, 3]}})
    assert again.of("orders") == told


@pytest.mark.parametrize("text", [b"", b"[]", b'{"orders": 1}', b'{"orders": [["a"]]}'])
def test_a_file_that_is_none_is_named(tmp_path: Path, text: bytes) -> None:
    fs = _disk(tmp_path)
    file = fs.open(tmp_path / "queues.json")
    file.write_at(0, text)
    file.close()
    with pytest.raises(CorruptionError, match="which queue is which"):
        ReplayQueues(tmp_path / "queues.json", fs)


def _disk(root: Path) -> CrashFileSystem:
    fs = CrashFileSystem()
    fs.make_dirs(root)
    return fs


# Records that say another topic.


@pytest.mark.parametrize("version", list(RecordVersion))
@pytest.mark.parametrize("host", [bytes(4), bytes(16)])
def test_a_renamed_record_is_otherwise_the_same(version: RecordVersion, host: bytes) -> None:
    body, properties = b"body" * 9, b"KEYS\x01k\x02"
    address = encode_host(host, 1)
    record = Record(
        0, version, 0, 3, 7, 11, 13, 0, 17, address, 19, encode_host(bytes(4), 2), 23, 29, body, "orders", properties
    )
    data = encode_record(record) + encode_record(record)
    for found in decoded(renamed_records(data, "archive%orders", 5)):
        assert (found.topic, found.queue_id) == ("archive%orders", 5)
        same = ("flag", "queue_offset", "physical_offset", "born_ms", "born_host", "store_ms", "store_host", "version",
                "reconsume_times", "prepared_offset", "body", "properties_text")  # fmt: skip
        assert [getattr(found, name) for name in same] == [getattr(record, name) for name in same]
