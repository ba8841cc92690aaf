"""Look-ups through the remoting door, in both tiers."""

from pathlib import Path

from tests.support.rocketmq.pulled import HeldStore, archived_world, decoded
from tests.support.rocketmq.remoting_world import RemotingWorld, remoting_world
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

_EVER = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}


def _by_key(key: str, **more: object) -> dict[str, object]:
    return {"topic": "orders", "key": key, "maxNum": 32, **_EVER, **more}


def _fill(world: RemotingWorld) -> None:
    world.store.append(
        [
            Message("orders", b"%d" % number, [f"key-{number % 5}"], "TagA", properties={"UNIQ_KEY": f"AC{number:04d}"})
            for number in range(20)
        ]
    )


def test_a_key_finds_the_records_that_have_it(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world)
        answer = client.done(RequestCode.QUERY_MESSAGE, _by_key("key-3"))
        assert sorted(one.body for one in decoded(answer.body)) == [b"13", b"18", b"3", b"8"]
        assert int(answer.fields["indexLastUpdateTimestamp"]) > 0
        assert len(decoded(client.done(RequestCode.QUERY_MESSAGE, _by_key("key-3", maxNum=2)).body)) == 2


def test_a_clients_own_id_finds_its_message(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world)
        asked = {**_by_key("AC0007", maxNum=0), "_UNIQUE_KEY_QUERY": "true"}
        assert [one.body for one in decoded(client.done(RequestCode.QUERY_MESSAGE, asked).body)] == [b"7"]


def test_a_tag_finds_messages_where_it_is_asked_for(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world)
        assert len(decoded(client.done(RequestCode.QUERY_MESSAGE, _by_key("TagA", indexType="T")).body)) == 20


def test_what_is_not_found_is_told_with_the_code_for_it(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world)
        for asked in (
            _by_key("nothing"),
            _by_key("key-3", topic="nothing"),
            _by_key("key-3", endTimestamp=5),
            _by_key("key-3", beginTimestamp=10, endTimestamp=5),
        ):
            assert client.ask(RequestCode.QUERY_MESSAGE, asked).code == ResponseCode.QUERY_NOT_FOUND


def test_an_id_finds_its_message(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world)
        record = world.store.pull("orders", 0, 0, 1).messages[0].record
        answer = client.done(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": record.physical_offset})
        assert decoded(answer.body) == [record]
        for offset in (-1, 1, 1 << 50):
            assert client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).code == ResponseCode.SYSTEM_ERROR


def test_archived_messages_are_found_like_others(tmp_path: Path) -> None:
    with archived_world(tmp_path / "store", HeldStore()) as world, world.client() as client:
        world.store.append([Message("orders", b"archived", ["key-cold"], queue_id=0)])
        world.store.archive(everything=True, drop_hot=True)
        (record,) = decoded(client.done(RequestCode.QUERY_MESSAGE, _by_key("key-cold")).body)
        assert record.body == b"archived"
        view = client.done(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": record.physical_offset})
        assert decoded(view.body) == [record]


def test_behind_the_last_row_that_a_tool_had_come_the_next_older_ones(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        _fill(world)
        found, last = [], ""
        for _ in range(4):
            (record,) = decoded(client.done(RequestCode.QUERY_MESSAGE, _by_key("key-3", maxNum=1, **_after(last))).body)
            found.append(record.body)
            hour_ms = record.store_ms - record.store_ms % 3_600_000
            last = f"{hour_ms}@orders@K@key-3@{record.properties['UNIQ_KEY']}@{record.physical_offset}"
        assert found == [b"18", b"13", b"8", b"3"]
        asked = _by_key("key-3", maxNum=1, **_after(last))
        assert client.ask(RequestCode.QUERY_MESSAGE, asked).code == ResponseCode.QUERY_NOT_FOUND
        asked = {**_by_key("AC0007", maxNum=0, **_after(last)), "_UNIQUE_KEY_QUERY": "true"}
        assert [one.body for one in decoded(client.done(RequestCode.QUERY_MESSAGE, asked).body)] == [b"7"]


def _after(last: str) -> dict[str, object]:
    return {"indexType": "K", "lastKey": last} if last else {"indexType": "K"}
