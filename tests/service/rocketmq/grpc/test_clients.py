"""What clients say of themselves, and the settings that they work by."""

from __future__ import annotations

import pytest

from tests.support.rocketmq.grpc_client import Code, GrpcClient, message, resource
from tests.support.rocketmq.grpc_world import GrpcWorld
from tierlog.service.delivery.group_topics import back_off_ms
from tierlog.service.rocketmq.grpc.messages import milliseconds
from tierlog.service.rocketmq.grpc.protocol import enums, messages


def test_a_producer_is_told_its_limits_and_how_often_it_tries(client: GrpcClient) -> None:
    with client.telemetry() as stream:
        own = messages.Settings(publishing=messages.Publishing(topics=[resource("orders")]))
        own.user_agent.version = "5.1.0"
        answer = stream.ask(settings=own)
    told = answer.settings
    assert answer.status.code == Code.OK
    assert (told.publishing.max_body_size, told.publishing.validate_message_type) == (4 << 20, True)
    assert told.publishing.topics[0].name == "orders"
    assert told.user_agent.version == "5.1.0"
    assert (told.metric.on, told.HasField("metric")) == (False, True)
    policy = told.backoff_policy
    assert (policy.max_attempts, policy.WhichOneof("strategy")) == (3, "exponential_backoff")


def test_a_consumer_is_told_how_much_it_receives_how_long_it_waits_and_how_often_it_tries(client: GrpcClient) -> None:
    with client.telemetry() as stream:
        own = messages.Settings(subscription=messages.Subscription(group=resource("g")))
        own.metric.on = True
        told = stream.ask(settings=own).settings
        again = stream.ask(settings=own).settings
    assert told == again
    assert (told.subscription.fifo, told.subscription.receive_batch_size) == (False, 32)
    assert milliseconds(told.subscription.long_polling_timeout) == 20_000
    assert not told.metric.on
    assert told.backoff_policy.max_attempts == 16
    steps = [milliseconds(step) for step in told.backoff_policy.customized_backoff.next]
    assert steps == [back_off_ms(attempt) for attempt in range(1, 17)], "the same as for those who say nothing"


def test_settings_of_neither_kind_are_refused(client: GrpcClient) -> None:
    with client.telemetry() as stream:
        assert stream.ask(settings=messages.Settings()).status.code == Code.BAD_REQUEST


def test_a_consumer_with_a_bad_group_is_refused(client: GrpcClient) -> None:
    with client.telemetry() as stream:
        own = messages.Settings(subscription=messages.Subscription(group=resource("a b")))
        assert stream.ask(settings=own).status.code == Code.ILLEGAL_CONSUMER_GROUP


def test_heartbeats_are_answered_to_clients_that_are_served(client: GrpcClient) -> None:
    kinds = enums.ClientType
    for kind in (kinds.PRODUCER, kinds.PUSH_CONSUMER, kinds.SIMPLE_CONSUMER, kinds.PULL_CONSUMER):
        assert client.call("Heartbeat", client_type=kind, group=resource("g")).status.code == Code.OK
    for kind in (kinds.CLIENT_TYPE_UNSPECIFIED, kinds.LITE_PUSH_CONSUMER, 99):
        assert client.call("Heartbeat", client_type=kind).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert client.call("Heartbeat", client_type=kinds.PUSH_CONSUMER).status.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("client_id", [None, "", "x" * 256])
def test_a_call_without_a_client_id_is_refused_by_its_code(world: GrpcWorld, client_id: str | None) -> None:
    with world.client(client_id=client_id) as client:
        answer = client.call("Heartbeat", client_type=enums.ClientType.PRODUCER)
        assert answer.status.code == Code.CLIENT_ID_REQUIRED


def test_a_client_that_goes_says_so(client: GrpcClient) -> None:
    assert client.call("NotifyClientTermination", group=resource("g")).status.code == Code.OK


def test_a_route_names_the_place_where_the_client_has_reached_the_door(client: GrpcClient) -> None:
    reached = messages.Endpoints(scheme=enums.AddressScheme.DOMAIN_NAME)
    reached.addresses.add(host="mq.example.org", port=443)
    answer = client.call("QueryRoute", topic=resource("orders"), endpoints=reached)
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    for queue in answer.message_queues:
        assert queue.broker.endpoints == reached
        assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
        assert queue.permission == enums.Permission.READ_WRITE
        assert enums.MessageType.NORMAL in queue.accept_message_types


def test_a_route_without_a_place_names_where_the_door_listens(world: GrpcWorld, client: GrpcClient) -> None:
    (address,) = client.call("QueryRoute", topic=resource("orders")).message_queues[0].broker.endpoints.addresses
    assert f"{address.host}:{address.port}" == world.address


def test_looking_for_a_route_makes_no_topic(world: GrpcWorld, client: GrpcClient) -> None:
    client.call("QueryRoute", topic=resource("orders"))
    assert world.store.find_queues("orders") is None


def test_a_push_consumer_asks_the_store_as_a_whole(client: GrpcClient) -> None:
    client.send(message())
    answer = client.call("QueryAssignment", topic=resource("orders"), group=resource("g"))
    (one,) = answer.assignments
    assert (answer.status.code, one.message_queue.id, one.message_queue.broker.name) == (Code.OK, -1, "broker-a")


def test_a_call_that_is_not_served_says_so(client: GrpcClient) -> None:
    assert client.call("SyncLiteSubscription", topic=resource("orders")).status.code == Code.NOT_IMPLEMENTED
