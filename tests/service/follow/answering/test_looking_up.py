"""Look-ups that tools make at every broker of a topic: each message is found once, here or there."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.rocketmq.answering_world import CLUSTER, AnsweringWorld, answering_world, log_of
from tests.support.rocketmq.fake_broker import FakeBroker
from tests.support.rocketmq.pulled import decoded
from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.stores.followed import SEGMENT_BYTES, BrokerLog, broker_log
from tests.support.stores.irregular import irregular_log, sent
from tierlog.service.follow.answering.live_brokers import EVERYTHING, LiveBrokers
from tierlog.service.follow.answering.node import entries
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.format.record import Record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

_EVER = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, "maxNum": 64}


def found(client: RemotingClient, key: str, topic: str = "orders", **more: object) -> list[Record]:
    answer = client.ask(RequestCode.QUERY_MESSAGE, {"topic": topic, "key": key, **_EVER, **more})
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    return decoded(answer.body)


def records(log: BrokerLog) -> list[Record]:
    """All messages of ``orders``, in the order of the log, from a store that has nothing else to say."""
    found, at = [], 0
    while at < log.end:
        size = int.from_bytes(log.data[at : at + 4], "big")
        if log.data[at + 4 : at + 8] == bytes.fromhex("CBD43194"):
            at += size
            continue
        found += decoded(log.data[at : at + size])
        at += size
    return [one for one in found if one.topic == "orders"]


def key_of(record: Record) -> str:
    return record.properties["KEYS"]


def test_what_the_broker_no_longer_has_is_found_and_what_it_has_is_left_to_it(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        border = 2 * SEGMENT_BYTES
        world.followed[0].keep_from(border)
        everything = records(log)
        assert {one.physical_offset < border for one in everything} == {True, False}
        for record in everything:
            expected = [record] if record.physical_offset < border else []
            assert found(client, key_of(record)) == expected
            answer = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": record.physical_offset})
            assert (answer.code == ResponseCode.SUCCESS) == bool(expected)


def test_hits_of_the_live_broker_do_not_crowd_out_older_ones(tmp_path: Path) -> None:
    log = log_of([Message("orders", b"%d" % number, ("same",)) for number in range(300)])
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        everything = records(log)
        world.followed[0].keep_from(everything[3].physical_offset)
        assert len(everything) - 3 > 256
        assert found(client, "same", maxNum=2) == everything[2:0:-1]


def test_a_client_may_ask_as_it_does_for_an_own_id(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        world.followed[0].keep_from(log.end)
        (record,) = found(client, "key-3", _UNIQUE_KEY_QUERY="true", indexType="U", maxNum=0)
        assert key_of(record) == "key-3"


def test_the_border_moves_with_the_brokers_removal(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        assert found(client, "key-0") == []
        world.followed[0].keep_from(SEGMENT_BYTES)
        world.wait_until(lambda: found(client, "key-0"))


def test_of_a_broker_that_is_down_everything_is_found(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        world.followed[0].live.close()
        assert [found(client, key_of(one)) for one in records(log)] == [[one] for one in records(log)]


def test_while_a_master_is_down_what_its_slave_has_is_left_to_the_slave(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, FakeBroker() as slave, world.client() as client:
        border = SEGMENT_BYTES
        slave.tell_bounds(border, log.end)
        one = world.followed[0]
        one.broker.slaves = (slave.address,)
        assert found(client, "key-0") == []  # clients ask a master that is there
        one.live.close()
        everything = records(log)
        world.wait_until(lambda: found(client, "key-0") == everything[:1])  # it is noticed that the master is down
        for record in everything:
            assert found(client, key_of(record)) == ([record] if record.physical_offset < border else [])


def test_of_a_store_that_took_over_everything_is_found(tmp_path: Path) -> None:
    with answering_world(tmp_path) as world, world.client() as client:
        world.followed[0].broker.state = FollowState.PROMOTED
        assert len(found(client, "key-0")) == 1


def test_of_two_writers_each_answers_for_what_it_took(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        one = world.followed[0]
        last = records(log)[-1]
        one.broker.state, one.broker.end = FollowState.TWO_WRITERS, last.physical_offset
        assert found(client, "key-0") == []
        assert found(client, key_of(last)) == [last]
        assert client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": last.physical_offset}).code == ResponseCode.SUCCESS


def test_a_broker_that_tells_us_nothing_is_left_what_it_was_known_to_have(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        one = world.followed[0]
        one.live.refuse(RequestCode.GET_BROKER_RUNTIME_INFO, ResponseCode.NO_PERMISSION)
        assert found(client, "key-0") == []
        one.broker.live_min_offset = SEGMENT_BYTES
        world.wait_until(lambda: found(client, "key-0"))
        assert found(client, key_of(records(log)[-1])) == []


def test_each_broker_has_a_border_of_its_own(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log, log]) as world, world.client() as client:
        first, second = world.followed
        first.keep_from(SEGMENT_BYTES)
        second.keep_from(2 * SEGMENT_BYTES)
        hits = {key_of(one): len(found(client, key_of(one))) for one in records(log)}
        expected = {
            key_of(one): (one.physical_offset < SEGMENT_BYTES) + (one.physical_offset < 2 * SEGMENT_BYTES)
            for one in records(log)
        }
        assert hits == expected
        assert set(hits.values()) == {0, 1, 2}


def test_an_offset_that_two_brokers_had_is_not_guessed_about(tmp_path: Path) -> None:
    log, other = broker_log(), broker_log(topics=("payments",))
    with answering_world(tmp_path, [log, other]) as world, world.client() as client:
        for one in world.followed:
            one.keep_from(one.log.end)
        asked = {"offset": records(log)[0].physical_offset}
        answer = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, asked)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "2 brokers" in str(answer.remark)
        named = client.done(RequestCode.VIEW_MESSAGE_BY_ID, {**asked, "topic": "orders"})
        assert decoded(named.body) == [records(log)[0]]


def test_archived_messages_are_found_when_the_bucket_answers(tmp_path: Path) -> None:
    log = broker_log()
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        one = world.followed[0]
        one.keep_from(log.end)
        one.engine.archive_all()
        one.engine.store.run_tiers()
        assert [found(client, key_of(each)) for each in records(log)[:5]] == [[each] for each in records(log)[:5]]


def test_what_is_asked_in_vain_is_refused_and_counted_by_its_name(tmp_path: Path) -> None:
    with answering_world(tmp_path) as world, world.client() as client:
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE,
                     RequestCode.POP_MESSAGE, RequestCode.UPDATE_AND_CREATE_TOPIC, 99_999):  # fmt: skip
            assert client.ask(code, {"topic": "orders"}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert client.ask(RequestCode.PULL_MESSAGE, _pull("orders")).code == ResponseCode.TOPIC_NOT_EXIST
        counted = world.counted()
        refused = "request_code_not_supported"
        assert counted["send_message_v2", refused] == counted["other", refused] == 1
        assert counted["pull_message", "topic_not_exist"] == 1


def _pull(topic: str) -> dict[str, object]:
    return {"consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 0}


def test_a_groups_members_are_those_of_the_live_broker_and_ours(tmp_path: Path) -> None:
    with answering_world(tmp_path) as world, world.client(client_id="here@1") as client:
        live = world.followed[0].live
        live.answer(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerIdList": ["there@1", "here@1"]})
        client.heartbeat("shop", topics={"orders": "*"})
        asked = {"consumerGroup": "shop"}
        members = client.document(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)["consumerIdList"]
        assert members == ["here@1", "there@1"]
        live.close()
        assert client.document(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)["consumerIdList"] == ["here@1"]
        client.done(RequestCode.UNREGISTER_CLIENT, {"clientID": "here@1", "consumerGroup": "shop"})
        assert client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked).code == ResponseCode.SYSTEM_ERROR


def test_tools_that_ask_every_broker_of_a_topic_get_an_empty_part_and_no_error(tmp_path: Path) -> None:
    with answering_world(tmp_path) as world, world.client() as client:
        topic = {"topic": "orders"}
        assert client.document(RequestCode.GET_TOPIC_STATS_INFO, topic)["offsetTable"] == {}
        assert client.document(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **topic})["offsetTable"] == {}
        assert client.document(RequestCode.GET_TOPIC_CONFIG, topic)["perm"] == 0
        assert client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "none"}).code == ResponseCode.TOPIC_NOT_EXIST
        reset = {"group": "g", "timestamp": 0, "isForce": True, **topic}
        assert client.document(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)["offsetTable"] == {}
        assert client.document(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"})["topicList"] == []
        assert client.document(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic)["groupList"] == []
        world.followed[0].engine.store.groups.copy({"copied": {("orders", 0): 3}})
        assert client.document(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic)["groupList"] == ["copied"]
        assert client.document(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]["tierlog.broker-a"] == "following"
        assert f"brokerName=tierlog-{CLUSTER}" in client.done(RequestCode.GET_BROKER_CONFIG).body.decode()


def test_a_consumer_that_heartbeats_here_is_shown_to_tools(tmp_path: Path) -> None:
    with answering_world(tmp_path) as world, world.client(client_id="here@1") as client:
        client.heartbeat("shop", topics={"orders": "TagA"})
        shown = client.document(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "shop"})
        assert [one["clientId"] for one in shown["connectionSet"]] == ["here@1"]
        assert shown["subscriptionTable"]["orders"]["subString"] == "TagA"
        nobody = client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "other"})
        assert nobody.code == ResponseCode.CONSUMER_NOT_ONLINE


def registered(world: AnsweringWorld, name: str) -> dict[str, tuple[int, int]]:
    return {topic: (of["perm"], of["readQueueNums"]) for topic, of in world.registered(name).items()}


def test_nameservers_are_told_of_a_broker_that_gives_nothing_and_one_that_replays(tmp_path: Path) -> None:
    with answering_world(tmp_path) as world:
        asked = world.nameserver.asked
        world.wait_until(lambda: sum(one.code == RequestCode.REGISTER_BROKER for one in asked) >= 2)
        own = f"tierlog-{CLUSTER}"
        assert registered(world, own) == dict.fromkeys(("%RETRY%shop", "orders", own), (0, 1))
        queues = world.followed[0].engine.store.queue_counts()["orders"]
        assert registered(world, f"{own}-archive")["archive%orders"] == (4, queues)
        told = {one.fields["brokerName"]: one.fields for one in asked if one.code == RequestCode.REGISTER_BROKER}
        assert told[own]["clusterName"] == CLUSTER
        assert (told[own]["brokerId"], told[own]["enableActingMaster"]) == ("1", "true")
        assert told[f"{own}-archive"]["clusterName"] != CLUSTER
        world.door.stop(2)
        gone = [one.fields["brokerName"] for one in asked if one.code == RequestCode.UNREGISTER_BROKER]
        assert sorted(gone) == [own, f"{own}-archive"]


def test_nothing_is_replayed_unless_it_is_wanted(tmp_path: Path) -> None:
    with answering_world(tmp_path, replay=False) as world, world.client() as client:
        world.wait_until(lambda: any(one.code == RequestCode.REGISTER_BROKER for one in world.nameserver.asked))
        names = {one.fields.get("brokerName") for one in world.nameserver.asked}
        assert f"tierlog-{CLUSTER}-archive" not in names
        assert client.ask(RequestCode.PULL_MESSAGE, _pull("archive%orders")).code == ResponseCode.TOPIC_NOT_EXIST
        assert registered(world, f"tierlog-{CLUSTER}")


def test_a_brokers_own_name_is_never_taken(tmp_path: Path) -> None:
    with answering_world(tmp_path) as world:
        world.followed[0].broker.name = f"tierlog-{CLUSTER}"
        names = [one.name for one in entries(world.door.broker)]
        assert names == [f"tierlog-{CLUSTER}-archive"]


def key_row(record: Record, key: str, kind: str = "K") -> str:
    """The row that tools since 5.4 print of a message, and send back as the last one that they had."""
    hour_ms = record.store_ms - record.store_ms % 3_600_000
    message_id = record.properties.get("UNIQ_KEY", record.message_id)
    return f"{hour_ms}@{record.topic}@{kind}@{key}@{message_id}@{record.physical_offset}"


def pages(client: RemotingClient, key: str, most: int, kind: str = "K") -> list[list[Record]]:
    """What a tool gets that goes on behind the last row of each answer."""
    answers = [found(client, key, maxNum=most, indexType=kind)]
    while answers[-1] and len(answers) < 99:
        last = key_row(answers[-1][-1], key, kind)
        answers.append(found(client, key, maxNum=most, indexType=kind, lastKey=last))
    return answers[:-1]


def test_a_tool_goes_on_behind_the_last_row_it_had_until_it_has_each_once(tmp_path: Path) -> None:
    logs = [
        log_of([
            Message("orders", b"%d" % number, ("same",), "TagA", properties={"UNIQ_KEY": f"{name}{number:03}"})
            for number in range(100)
        ])
        for name in "ab"
    ]  # fmt: skip
    with answering_world(tmp_path, logs) as world, world.client() as client:
        everything = records(logs[0])
        for one in world.followed:
            one.keep_from(everything[60].physical_offset)
        for key, kind in (("same", "K"), ("TagA", "T")):
            answers = pages(client, key, 7, kind)
            assert [len(one) for one in answers] == [7] * 17 + [1]
            offsets = [one.physical_offset for page in answers for one in page]
            assert sorted(offsets) == sorted(2 * [one.physical_offset for one in everything[:60]])
            times = [one.store_ms for page in answers for one in page]
            assert times == sorted(times, reverse=True)


def test_behind_a_row_that_the_live_broker_gave_are_all_older_ones(tmp_path: Path) -> None:
    log = log_of([Message("orders", b"%d" % number, ("same",)) for number in range(40)])
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        everything = records(log)
        world.followed[0].keep_from(everything[20].physical_offset)
        last = key_row(everything[30], "same")
        assert found(client, "same", lastKey=last, indexType="K") == everything[:20][::-1]


def test_a_row_that_nobody_has_any_more_is_known_by_its_hour(tmp_path: Path) -> None:
    log = log_of([Message("orders", b"%d" % number, ("same",)) for number in range(5)])
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        everything = records(log)
        world.followed[0].keep_from(log.end)
        hour_ms = everything[0].store_ms - everything[0].store_ms % 3_600_000
        known = f"{hour_ms}@orders@K@same@{'A' * 32}@7"
        assert found(client, "same", lastKey=known, indexType="K") == everything[::-1]
        before = f"{hour_ms - 3_600_000}@orders@K@same@{'A' * 32}@7"
        assert found(client, "same", lastKey=before, indexType="K") == []
        for said in ("nothing", "1@orders@K@other@A@7", f"{hour_ms}@other@K@same@A@7", "x@orders@K@same@A@7"):
            asked = {"topic": "orders", "key": "same", **_EVER, "lastKey": said}
            assert client.ask(RequestCode.QUERY_MESSAGE, asked).code == ResponseCode.INVALID_PARAMETER


def test_hits_of_the_live_broker_are_not_read_for_those_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of([Message("orders", bytes(10), ("same",), "TagA") for _ in range(300)])
    with answering_world(tmp_path, [log]) as world, world.client() as client:
        everything = records(log)
        world.followed[0].keep_from(everything[2].physical_offset)
        read: list[int] = []
        decode = HotSnapshot.guessed_record

        def noted(snapshot: HotSnapshot, offset: int) -> Record:
            read.append(offset)
            return decode(snapshot, offset)

        monkeypatch.setattr(HotSnapshot, "guessed_record", noted)
        assert found(client, "same", maxNum=1) == [everything[1]]
        assert found(client, "TagA", indexType="T") == everything[1::-1]
        assert set(read) <= {one.physical_offset for one in everything[:2]}


@pytest.mark.parametrize("is_archived", [False, True])
def test_messages_of_each_generation_are_found_below_the_border(tmp_path: Path, is_archived: bool) -> None:
    made = [*sent("orders", 0, range(30)), *sent("orders", 0, range(30), 30), *sent("orders", 0, (0,), 60)]
    log = irregular_log(made)
    with answering_world(tmp_path, [log.log]) as world, world.client() as client:
        if is_archived:
            world.followed[0].engine.archive_all()
            world.followed[0].engine.store.archive(drop_hot=True)
        for border in (0, 12, 30, 45, 61):
            world.followed[0].keep_from(log.records[border].at if border < 61 else log.log.end)
            world.wait_until(partial(_has_tagged, client, border))
            for number in range(0, 61, 6):
                hits = [one.physical_offset for one in found(client, f"key-{number}")]
                assert hits == ([log.records[number].at] if number < border else [])


def _has_tagged(client: RemotingClient, count: int) -> bool:
    return len(found(client, "even", indexType="T", maxNum=100)) == count


@pytest.mark.parametrize(
    ("state", "silent_ms", "border"),
    [
        (FollowState.FOLLOWING, 6_000, 4096),
        (FollowState.FOLLOWING, 6_001, EVERYTHING),
        (FollowState.CONNECTING, 0, EVERYTHING),
    ],
)
def test_a_broker_that_accepts_connections_and_answers_nothing_is_gone_once_it_is_silent_for_as_long_as_a_look_up_has(
    state: FollowState, silent_ms: int, border: int
) -> None:
    clock = ManualClock()
    with FakeBroker() as peer:
        peer.raw = b""
        broker = FollowedBroker("broker-a", "broker-a", "east", peer.address, state)
        broker.live_min_offset, broker.heard_s = 4096, clock.monotonic_s()
        clock.advance(silent_ms)
        live = LiveBrokers(clock, 6_000)
        assert live.consumers(broker, "shop") == []  # which says no more of it than the look-up
        assert live.border(broker) == border
        live.close()
