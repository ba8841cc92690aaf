"""Pulls through the remoting door: records as they lie in the log and in the archive."""

from pathlib import Path

import pytest

from tests.support.rocketmq.pulled import HeldStore, archived_world, decoded, fill
from tests.support.rocketmq.remoting_world import remoting_world
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import PullFlag, RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import HeaderForm

_SUSPEND, _GIVEN = PullFlag.SUSPEND, PullFlag.SUBSCRIPTION


def pull(offset: int = 0, *, flags: int = _GIVEN, wait_ms: int = 0, **more: object) -> dict[str, object]:
    """Returns the header of a pull, by default with its subscription."""
    return {
        "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": int(flags), "commitOffset": 0, "suspendTimeoutMillis": wait_ms, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG", **more,
    }  # fmt: skip


@pytest.mark.parametrize("form", HeaderForm)
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_a_pull_has_the_records_of_the_log(tmp_path: Path, form: HeaderForm, code: RequestCode) -> None:
    with remoting_world(tmp_path / "store") as world, world.client(form=form) as client:
        fill(world, 100)
        answer = client.done(code, pull(10))
        assert decoded(answer.body) == [one.record for one in world.store.pull("orders", 0, 10, 32).messages]
        assert answer.fields == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": "42", "minOffset": "0", "maxOffset": "100",
        }  # fmt: skip


@pytest.mark.parametrize("size", [10, 300_000])
def test_large_answers_are_the_same_as_small_ones(tmp_path: Path, size: int) -> None:
    with remoting_world(tmp_path / "store", {"hot.segment_bytes": 16 << 20}) as world, world.client() as client:
        fill(world, 60, bytes(size))
        found, offset = [], 0
        while offset < 60:
            answer = client.done(RequestCode.PULL_MESSAGE, pull(offset))
            assert len(answer.body) <= 4 << 20
            found += decoded(answer.body)
            offset = int(answer.fields["nextBeginOffset"])
        assert [one.body for one in found] == [bytes(size) + b"-%d" % number for number in range(60)]


def test_an_answer_has_as_many_bytes_as_the_client_likes_but_one_record_at_least(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        fill(world, 10, bytes(1000))
        assert len(decoded(client.done(RequestCode.PULL_MESSAGE, pull(maxMsgBytes=2500)).body)) == 2
        assert len(decoded(client.done(RequestCode.PULL_MESSAGE, pull(maxMsgBytes=1)).body)) == 1


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [
        (5, ResponseCode.PULL_NOT_FOUND, 5),
        (6, ResponseCode.PULL_OFFSET_MOVED, 5),
        (1 << 40, ResponseCode.PULL_OFFSET_MOVED, 5),
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0),
    ],
)
def test_where_there_is_nothing_the_answer_says_where_to_go_on(
    tmp_path: Path, offset: int, code: ResponseCode, next_offset: int
) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        fill(world, 5)
        answer = client.ask(RequestCode.PULL_MESSAGE, pull(offset))
        assert (answer.code, answer.fields["nextBeginOffset"], answer.body) == (code, str(next_offset), b"")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 1}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": -1}, ResponseCode.TOPIC_NOT_EXIST),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"subscription": "||"}, ResponseCode.INVALID_PARAMETER),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_cannot_be_pulled_is_refused(tmp_path: Path, changed: dict[str, object], code: ResponseCode) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        world.store.create_topic("orders", 1)
        assert client.ask(RequestCode.PULL_MESSAGE, {**pull(), **changed}).code == code


def test_only_the_tags_that_are_wanted_come_and_none_is_not_the_end(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        fill(world, 30)
        answer = client.done(RequestCode.PULL_MESSAGE, pull(subscription="TagA || TagB"))
        assert [one.properties["TAGS"] for one in decoded(answer.body)] == ["TagA", "TagB"] * 10
        none = client.ask(RequestCode.PULL_MESSAGE, pull(subscription="TagC"))
        assert (none.code, none.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "30")


def test_a_push_consumers_tags_are_those_of_its_heartbeat(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        fill(world, 9)
        unknown = client.ask(RequestCode.PULL_MESSAGE, pull(flags=0, subVersion=1))
        assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        client.heartbeat("g", topics={"orders": "TagB"})
        found = decoded(client.done(RequestCode.PULL_MESSAGE, pull(flags=0, subVersion=1)).body)
        assert [one.body for one in found] == [b"body-1", b"body-4", b"body-7"]


def test_a_consumer_whose_newest_subscription_did_not_come_gets_everything_and_does_not_stand_still(
    tmp_path: Path,
) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        fill(world, 9)
        client.heartbeat("g", topics={"orders": "TagB"})
        found = decoded(client.done(RequestCode.PULL_MESSAGE, pull(flags=0, subVersion=2)).body)
        assert [one.body for one in found] == [b"body-%d" % number for number in range(9)]
        # no client filters by SQL92 itself
        other = client.ask(RequestCode.PULL_MESSAGE, pull(flags=0, subVersion=2, expressionType="SQL92"))
        assert other.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_a_pull_commits_what_it_says_was_consumed(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        fill(world, 9)
        client.done(RequestCode.PULL_MESSAGE, pull(flags=_GIVEN | PullFlag.COMMIT_OFFSET, commitOffset=4))
        place = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
        assert client.done(RequestCode.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "4"}
        world.wait_until(lambda: "g" in world.store.groups.all_committed())
        assert world.store.groups.committed("g").offsets == {("orders", "broker-a", 0): 4}


# waiting


def test_a_pull_that_waits_is_answered_when_something_comes(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client, world.client() as other:
        fill(world, 3)
        waiting = client.send(RequestCode.PULL_MESSAGE, pull(3, flags=_GIVEN | _SUSPEND, wait_ms=30_000))
        other.done(RequestCode.PULL_MESSAGE, pull(0))
        world.store.append([Message("orders", b"news", queue_id=0)])
        assert [one.body for one in decoded(client.answer_to(waiting).body)] == [b"news"]


def test_a_pull_that_waits_in_vain_is_answered_that_there_is_nothing(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store") as world, world.client() as client:
        fill(world, 3)
        answer = client.ask(RequestCode.PULL_MESSAGE, pull(3, flags=_GIVEN | _SUSPEND, wait_ms=50))
        assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "3")


def test_what_a_client_waited_for_goes_with_its_connection(tmp_path: Path) -> None:
    with remoting_world(tmp_path / "store", {"serve.max_long_polls": 2}) as world:
        fill(world, 1)
        for _ in range(3):
            with world.client() as client:
                for _ in range(2):
                    client.send(RequestCode.PULL_MESSAGE, pull(1, flags=_GIVEN | _SUSPEND, wait_ms=30_000))
                world.wait_until(lambda: world.door.broker.polls.waiting == 2)
            world.wait_until(lambda: world.door.broker.polls.waiting == 0)
        assert world.door.broker.polls.waiting == 0


# the archive


def test_archived_messages_are_pulled_like_others(tmp_path: Path) -> None:
    with archived_world(tmp_path / "store", HeldStore()) as world, world.client() as client:
        found, offset = [], 0
        while offset < 250:
            answer = client.ask(RequestCode.PULL_MESSAGE, pull(offset))
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
            assert answer.fields["minOffset"] == "0"
            found += decoded(answer.body)
            offset = int(answer.fields["nextBeginOffset"])
        assert [one.queue_offset for one in found] == list(range(250))
        assert b"".join(map(encode_record, found)) == b"".join(
            encode_record(one.record) for at in (0, 200) for one in world.store.pull("orders", 0, at, 250).messages
        )


def test_an_archive_that_does_not_answer_holds_up_no_hot_traffic(tmp_path: Path) -> None:
    objects = HeldStore()
    with archived_world(tmp_path / "store", objects, **{"serve.read_threads": 2}) as world, world.client() as client:
        objects.may_answer.clear()
        try:
            cold = [client.send(RequestCode.PULL_MESSAGE, pull(offset)) for offset in range(0, 40, 4)]
            with world.client() as other:
                for _ in range(20):
                    assert other.done(RequestCode.PULL_MESSAGE, pull(200)).body
        finally:
            objects.may_answer.set()
        for number in cold:
            assert client.answer_to(number).body
