"""Messages are given for a time, acknowledged one by one, kept for clients that are there, and given up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.rocketmq.grpc_client import Code, GrpcClient, bodies, message, received, receiving, resource
from tests.support.rocketmq.grpc_world import GrpcWorld, grpc_world
from tierlog.service.rocketmq.grpc.messages import milliseconds
from tierlog.service.rocketmq.grpc.protocol import enums, messages


def sent(client: GrpcClient, *numbers: int, **properties: Any) -> None:
    for number in numbers:
        client.send(message(b"%d" % number, message_id=f"{number:02X}", **properties))


def given_back(client: GrpcClient, one: Any) -> None:
    """Have it delivered again at once."""
    answer = client.call(
        "ChangeInvisibleDuration",
        group=resource("g"), topic=resource("orders"), receipt_handle=one.system_properties.receipt_handle,
    )  # fmt: skip
    assert answer.status.code == Code.OK


def ended_soon(waiting: Any, meanwhile: Callable[[], object]) -> Any:
    """The status of a call that ends long before the time is over that it may wait."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(waiting))
    thread.start()
    deadline_s = time.monotonic() + 10
    while thread.is_alive():
        assert time.monotonic() < deadline_s
        meanwhile()
        thread.join(0.1)
    return received(answers)[0]


def test_a_message_is_given_once_and_acknowledged_never_again(world: GrpcWorld, client: GrpcClient) -> None:
    sent(client, 1, 2)
    status, found = client.receive()
    assert status.code == Code.OK
    assert sorted(bodies(found)) == [b"1", b"2"]
    assert all(one.system_properties.delivery_attempt == 1 for one in found)
    assert client.receive()[0].code == Code.MESSAGE_NOT_FOUND
    answer = client.ack(*found)
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.OK]
    assert answer.status.code == Code.OK


def test_a_consumer_that_names_a_queue_is_given_what_other_queues_have(client: GrpcClient) -> None:
    """Simple consumers go through the queues in turn, and wait at each for as long as they were told."""
    sent(client, 1, 2, 3, 4)
    assert sorted(bodies(client.receive(queue_id=3)[1])) == [b"1", b"2", b"3", b"4"]


def test_every_group_gets_every_message(client: GrpcClient) -> None:
    sent(client, 1)
    assert list(bodies(client.receive("g1")[1])) == list(bodies(client.receive("g2")[1])) == [b"1"]


def test_only_messages_with_the_tag_are_given(client: GrpcClient) -> None:
    sent(client, 1, tag="a")
    sent(client, 2, tag="b")
    sent(client, 3, tag="c")
    assert sorted(bodies(client.receive(tag="a || c")[1])) == [b"1", b"3"]


def test_a_filter_that_is_not_served_is_refused_by_its_code(client: GrpcClient) -> None:
    sql = messages.FilterExpression(type=enums.FilterType.SQL, expression="a > 1")
    assert client.receive(filter_expression=sql)[0].code == Code.ILLEGAL_FILTER_EXPRESSION
    assert client.receive(tag="||")[0].code == Code.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize("invisible_ms", [0, 9_999, 12 * 3_600_000 + 1, -1])
def test_a_time_that_is_too_short_or_too_long_is_refused(client: GrpcClient, invisible_ms: int) -> None:
    assert client.receive(invisible_ms=invisible_ms)[0].code == Code.ILLEGAL_INVISIBLE_TIME


def test_a_bad_group_has_its_code(client: GrpcClient) -> None:
    assert client.receive("")[0].code == Code.ILLEGAL_CONSUMER_GROUP
    assert client.receive("a b")[0].code == Code.ILLEGAL_CONSUMER_GROUP


def test_a_call_that_waits_is_given_what_comes(world: GrpcWorld, client: GrpcClient) -> None:
    sent(client, 1)
    client.ack(*client.receive()[1])
    waiting = client.begin("ReceiveMessage", **receiving("g", "orders", 20_000, 32))
    with world.client() as other:
        other.send(message(b"late", message_id="0F"))
    assert list(bodies(received(list(waiting))[1])) == [b"late"]


def test_a_call_that_waits_for_a_topic_that_is_not_there_yet_is_given_its_first_message(world: GrpcWorld) -> None:
    with world.client() as client, world.client() as other:
        waiting = client.begin("ReceiveMessage", **receiving("g", "orders", 20_000, 32))
        other.send(message(b"first"))
        assert list(bodies(received(list(waiting))[1])) == [b"first"]


def test_a_call_that_is_broken_off_while_it_waits_takes_nothing_along(world: GrpcWorld, client: GrpcClient) -> None:
    sent(client, 1)
    client.ack(*client.receive()[1])
    waiting = client.begin("ReceiveMessage", **receiving("g", "orders", 20_000, 32))
    waiting.cancel()
    with pytest.raises(grpc.RpcError):
        list(waiting)
    sent(client, 2)
    assert list(bodies(client.receive(wait_ms=10_000)[1])) == [b"2"]


def test_a_call_that_is_tried_again_is_given_the_same_messages(client: GrpcClient) -> None:
    sent(client, 1, 2)
    first = client.receive(attempt_id="a1")[1]
    again = client.receive(attempt_id="a1")[1]
    assert sorted(bodies(first)) == sorted(bodies(again)) == [b"1", b"2"]
    assert client.receive(attempt_id="a2")[0].code == Code.MESSAGE_NOT_FOUND


def test_a_message_that_is_given_back_is_given_again_as_another_attempt(client: GrpcClient) -> None:
    sent(client, 1)
    _, (first,) = client.receive()
    given_back(client, first)
    _, (again,) = client.receive(wait_ms=10_000)
    assert again.system_properties.delivery_attempt == 2
    assert client.ack(first).entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
    assert client.ack(again).entries[0].status.code == Code.OK


def test_a_longer_time_has_a_new_handle_and_the_old_one_is_no_good(client: GrpcClient) -> None:
    sent(client, 1)
    _, (found,) = client.receive()
    request = messages.ChangeInvisibleDurationRequest(
        group=resource("g"), topic=resource("orders"), receipt_handle=found.system_properties.receipt_handle
    )
    request.invisible_duration.seconds = 60
    handle = client.call("ChangeInvisibleDuration", request).receipt_handle
    assert handle not in ("", found.system_properties.receipt_handle)
    assert client.call("ChangeInvisibleDuration", request).status.code == Code.INVALID_RECEIPT_HANDLE
    found.system_properties.receipt_handle = handle
    assert client.ack(found).status.code == Code.OK


def test_some_good_and_some_bad_handles_have_a_status_each(client: GrpcClient) -> None:
    sent(client, 1)
    _, (found,) = client.receive()
    bad = message()
    bad.system_properties.receipt_handle = "no handle"
    answer = client.ack(found, bad)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


def test_a_handle_of_another_group_is_refused(client: GrpcClient) -> None:
    sent(client, 1)
    _, (found,) = client.receive("g1")
    assert client.ack(found, group="g2").entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
    assert client.ack(found, group="g1").entries[0].status.code == Code.OK


def test_a_message_that_is_given_up_is_a_dead_letter_that_says_where_it_comes_from(client: GrpcClient) -> None:
    sent(client, 1)
    _, (found,) = client.receive()
    answer = client.call(
        "ForwardMessageToDeadLetterQueue",
        group=resource("g"), topic=resource("orders"), receipt_handle=found.system_properties.receipt_handle,
        message_id="01", delivery_attempt=1, max_delivery_attempts=16,
    )  # fmt: skip
    assert answer.status.code == Code.OK
    _, (dead,) = client.receive("watchers", "%DLQ%g", wait_ms=10_000)
    assert dead.body == b"1"
    assert dead.system_properties.dead_letter_queue.topic == "orders"
    assert client.receive()[0].code == Code.MESSAGE_NOT_FOUND


def test_messages_are_kept_for_a_client_that_asks_for_it_and_acknowledged_by_the_handle_it_was_given(
    world: GrpcWorld, client: GrpcClient
) -> None:
    sent(client, 1)
    _, (found,) = client.receive(auto_renew=True, invisible_ms=0)
    assert milliseconds(found.system_properties.invisible_duration) == 60_000
    assert client.ack(found).status.code == Code.OK


def test_acknowledged_messages_are_not_given_again_after_a_clean_restart(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store") as world, world.client() as client:
        sent(client, 1, 2, 3)
        given = {one.body: one for one in client.receive()[1]}
        client.ack(given[b"1"], given[b"3"])
        given_back(client, given[b"2"])
    with grpc_world(tmp_path / "store") as world, world.client() as client:
        assert list(bodies(client.receive(wait_ms=1_000)[1])) == [b"2"]


def test_a_closing_door_ends_calls_that_wait(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store") as world, world.client() as client:
        sent(client, 1)
        client.ack(*client.receive()[1])
        waiting = client.begin("ReceiveMessage", **receiving("g", "orders", 20_000, 32))

        def wait() -> None:
            with contextlib.suppress(grpc.RpcError):  # where the connection was gone first
                answers.extend(waiting)

        answers: list[object] = []
        thread = threading.Thread(target=wait)
        thread.start()
        world.doors.stop()
        thread.join(20)
        assert not thread.is_alive()
    assert len(answers) <= 1


@pytest.mark.parametrize("topic", ["orders", "not-there-yet"])
def test_a_client_that_goes_is_not_kept_waiting_and_gets_nothing_more(world: GrpcWorld, topic: str) -> None:
    with world.client(client_id="goes") as client, world.client(client_id="stays") as other:
        sent(other, 1)
        other.ack(*other.receive()[1])
        waiting = client.begin("ReceiveMessage", **receiving("g", topic, 20_000, 32))
        # again, as the call that waits may arrive after the first
        ended = ended_soon(waiting, lambda: client.call("NotifyClientTermination", group=resource("g")))
        assert ended.code == Code.MESSAGE_NOT_FOUND
        other.send(message(b"2", topic=topic))
        (found,) = other.receive(topic=topic, wait_ms=10_000)[1]
        assert (found.body, found.system_properties.delivery_attempt) == (b"2", 1)


def test_a_call_waits_no_longer_than_the_settings_allow(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", {"rocketmq.long_poll_ms": 1_000}) as world, world.client() as client:
        sent(client, 1)
        client.ack(*client.receive()[1])
        with client.telemetry() as stream:
            own = messages.Settings(subscription=messages.Subscription(group=resource("g")))
            told = stream.ask(settings=own).settings.subscription.long_polling_timeout
        assert milliseconds(told) == 1_000
        waiting = client.begin("ReceiveMessage", **receiving("g", "orders", 20_000, 32))
        assert ended_soon(waiting, lambda: None).code == Code.MESSAGE_NOT_FOUND


def test_a_batch_of_no_messages_is_refused(client: GrpcClient) -> None:
    assert client.receive(limit=0)[0].code == Code.BAD_REQUEST


def test_no_entries_are_refused(client: GrpcClient) -> None:
    assert client.ack().status.code == Code.BAD_REQUEST


def test_a_group_in_order_gets_the_next_message_of_a_message_group_when_the_last_is_done(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", {"rocketmq.fifo_groups": "billing-*"}) as world, world.client() as client:
        sent(client, 1, 2, 3, message_group="a")
        for number in (b"1", b"2", b"3"):
            _, (found,) = client.receive("billing-1", queue_id=3)  # which is not the queue of the group
            assert found.body == number
            assert client.receive("billing-1")[0].code == Code.MESSAGE_NOT_FOUND
            client.ack(found, group="billing-1")
        assert len(client.receive("others")[1]) == 3, "a group of which nobody said so"


def test_a_group_in_order_is_told_so_and_asks_each_queue(tmp_path: Path) -> None:
    set_ = {"rocketmq.fifo_groups": "billing", "hot.default_queues": 3}
    with grpc_world(tmp_path / "store", set_) as world, world.client() as client:
        with client.telemetry() as stream:
            own = messages.Settings(subscription=messages.Subscription(group=resource("billing")))
            assert stream.ask(settings=own).settings.subscription.fifo
        answer = client.call("QueryAssignment", topic=resource("orders"), group=resource("billing"))
        assert [one.message_queue.id for one in answer.assignments] == [0, 1, 2]
