"""Reading by offset, and the offsets that groups keep: what RocketMQ's own proxy leaves unanswered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rocketmq.grpc_client import Code, GrpcClient, message, message_queue, resource
from tests.support.rocketmq.grpc_world import GrpcWorld
from tierlog.service.rocketmq.grpc.messages import set_milliseconds
from tierlog.service.rocketmq.grpc.protocol import enums, messages


@pytest.fixture
def queue(world: GrpcWorld, client: GrpcClient) -> Any:
    """A queue with five messages, with tags a and b in turn."""
    world.store.create_topic("orders", 1)
    for number in range(5):
        client.send(message(b"%d" % number, message_id=f"{number:02X}", tag="ab"[number % 2]))
    return message_queue("orders", 0)


def pulled(
    client: GrpcClient, queue: Any, offset: int, limit: int = 32, tag: str = "*", **fields: Any
) -> tuple[Any, ...]:
    """Status, bodies and next offset."""
    answers = client.call(
        "PullMessage", group=resource("g"), message_queue=queue, offset=offset, batch_size=limit,
        filter_expression=messages.FilterExpression(type=enums.FilterType.TAG, expression=tag),
        long_polling_timeout=messages.PullMessageRequest().long_polling_timeout,
    )  # fmt: skip
    kinds = [answer.WhichOneof("content") for answer in answers]
    if len(kinds) == 1:
        return answers[0].status.code, [], None
    assert kinds == ["status", *["message"] * (len(kinds) - 2), "next_offset"]
    return answers[0].status.code, [answer.message.body for answer in answers[1:-1]], answers[-1].next_offset


def test_a_queue_is_read_from_an_offset_on_as_often_as_one_likes(client: GrpcClient, queue: Any) -> None:
    for _ in range(2):
        assert pulled(client, queue, 1, limit=3) == (Code.OK, [b"1", b"2", b"3"], 4)
    assert pulled(client, queue, 4) == (Code.OK, [b"4"], 5)


def test_a_tag_leaves_messages_out_and_the_next_offset_is_behind_what_was_looked_at(
    client: GrpcClient, queue: Any
) -> None:
    assert pulled(client, queue, 0, tag="b") == (Code.OK, [b"1", b"3"], 5)


def test_the_end_of_a_queue_and_what_lies_beyond_have_their_codes(client: GrpcClient, queue: Any) -> None:
    assert pulled(client, queue, 5) == (Code.MESSAGE_NOT_FOUND, [], 5)
    assert pulled(client, queue, 6) == (Code.ILLEGAL_OFFSET, [], 5)
    assert pulled(client, queue, -1) == (Code.ILLEGAL_OFFSET, [], None)
    assert pulled(client, queue, 0, limit=0) == (Code.BAD_REQUEST, [], None)


def test_a_pull_at_the_end_waits_for_what_comes(world: GrpcWorld, client: GrpcClient, queue: Any) -> None:
    request = messages.PullMessageRequest(group=resource("g"), message_queue=queue, offset=5, batch_size=32)
    set_milliseconds(request.long_polling_timeout, 20_000)
    waiting = client.begin(
        "PullMessage", **{field.name: value for field, value in request.ListFields()}
    )  # fmt: skip
    with world.client() as other:
        other.send(message(b"late", message_id="0F"))
    assert [answer.message.body for answer in waiting if answer.WhichOneof("content") == "message"] == [b"late"]


def test_a_committed_offset_is_kept_and_seen_by_all(world: GrpcWorld, client: GrpcClient, queue: Any) -> None:
    asked = {"group": resource("g"), "message_queue": queue}
    assert client.call("GetOffset", **asked).status.code == Code.OFFSET_NOT_FOUND
    assert client.call("UpdateOffset", offset=3, **asked).status.code == Code.OK
    answer = client.call("GetOffset", **asked)
    assert (answer.status.code, answer.offset) == (Code.OK, 3)
    assert world.store.groups.committed("g").offsets == {("orders", "broker-a", 0): 3}
    assert client.call("UpdateOffset", offset=1, **asked).status.code == Code.OK, "back is allowed"
    assert client.call("GetOffset", **asked).offset == 1


@pytest.mark.parametrize("offset", [-1, 6, 1 << 62])
def test_an_offset_that_the_queue_has_not_is_not_committed(client: GrpcClient, queue: Any, offset: int) -> None:
    asked = {"group": resource("g"), "message_queue": queue}
    assert client.call("UpdateOffset", offset=offset, **asked).status.code == Code.ILLEGAL_OFFSET
    assert client.call("GetOffset", **asked).status.code == Code.OFFSET_NOT_FOUND


def test_the_ends_of_a_queue_and_the_offset_of_a_time_are_told(
    world: GrpcWorld, client: GrpcClient, queue: Any
) -> None:
    def asked(policy: int, time_ms: int = 0) -> int:
        request = messages.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        set_milliseconds(request.timestamp, time_ms)
        answer = client.call("QueryOffset", request)
        assert answer.status.code == Code.OK
        return int(answer.offset)

    policies: Any = enums.QueryOffsetPolicy
    assert (asked(policies.BEGINNING), asked(policies.END)) == (0, 5)
    last = world.stored()[-1].record.store_ms
    first_of_it = next(one.record.queue_offset for one in world.stored() if one.record.store_ms >= last)
    assert asked(policies.TIMESTAMP, last) == first_of_it
    assert asked(policies.TIMESTAMP, last + 60_000) == 5


@pytest.mark.parametrize("name", ["PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"])
def test_a_queue_that_is_not_there_has_its_code(client: GrpcClient, queue: Any, name: str) -> None:
    for other in (message_queue("orders", 1), message_queue("orders", -1), message_queue("nothing", 0)):
        group = {} if name == "QueryOffset" else {"group": resource("g")}
        answer = client.call(name, message_queue=other, **group)
        status = answer[0].status if name == "PullMessage" else answer.status
        assert status.code == Code.TOPIC_NOT_FOUND
