"""What tools ask about clients that are connected, and what they ask such a client through the broker.

A client is asked on its connection, and its answer is handed on as it came: what a consumer is doing
(GET_CONSUMER_RUNNING_INFO), what it says after it was given one message (CONSUME_MESSAGE_DIRECTLY), and where it is in
its queues (INVOKE_BROKER_TO_GET_CONSUMER_STATUS, for which all members are asked).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.group_topics import is_group_topic
from tierlog.service.rocketmq.access import SIGNING_FIELDS
from tierlog.service.rocketmq.remoting import java_json
from tierlog.service.rocketmq.remoting.calls import AnyCall, CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.service.rocketmq.remoting.clients import Member
from tierlog.service.rocketmq.remoting.handlers.group_tools import may_know, subscription_json
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame

#: Time for a client to answer.
_ASK_S = 10


@handles(RequestCode.GET_CONSUMER_CONNECTION_LIST, lane=CallLane.READ)
def consumer_connections(call: RemotingCall) -> RemotingAnswer:
    """Answers with the members of a group and what they read."""
    group = call.text("consumerGroup")
    members = call.broker.clients.consumers(group)
    if not members or not may_know(call, group):
        return refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group {group[:300]!r} is not online")
    return connections_of(call, members)


def connections_of(call: AnyCall, members: Sequence[Member]) -> RemotingAnswer:
    """Answers with members of a group and what they read, as far as the caller may know of it."""
    newest = {
        topic: one
        for member in members
        if member.info is not None
        for topic, one in member.info.subscriptions.items()
        if is_group_topic(topic) or call.caller.may(Scope.READ, topic)
    }
    info = next((member.info for member in members if member.info is not None), None)
    document = {
        "connectionSet": _connections(members),
        "consumeFromWhere": info and info.from_where,
        "consumeType": info and info.consume_type,
        "messageModel": info and info.message_model,
        "subscriptionTable": {topic: subscription_json(one) for topic, one in newest.items()},
    }
    return RemotingAnswer.of_json(document)


@handles(RequestCode.GET_PRODUCER_CONNECTION_LIST, lane=CallLane.LOOP)
def producer_connections(call: AnyCall) -> RemotingAnswer:
    """Answers with the clients of a group of producers."""
    call.caller.check_everywhere(Scope.READ)
    group = call.text("producerGroup")
    members = call.broker.clients.producers(group)
    if not members:
        return refusal(ResponseCode.SYSTEM_ERROR, f"the producer group {group[:300]!r} does not exist")
    return RemotingAnswer.of_json({"connectionSet": _connections(members)})


@handles(RequestCode.GET_ALL_PRODUCER_INFO, lane=CallLane.LOOP)
def producers(call: AnyCall) -> RemotingAnswer:
    """Answers with all producers, by group."""
    call.caller.check_everywhere(Scope.READ)
    clients, now_ms = call.broker.clients, call.broker.clock.now_ms()
    now_s = call.broker.clock.monotonic_s()
    data = {
        group: [
            {
                "clientId": one.client_id,
                "language": one.connection.language,
                "lastUpdateTimestamp": now_ms - round((now_s - one.seen_s) * 1000),
                "remoteIP": one.connection.peer,
                "version": one.connection.version,
            }
            for one in clients.producers(group)
        ]
        for group in clients.producer_groups()
    }
    return RemotingAnswer.of_json({"data": data})


def _connections(members: Iterable[Member]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": one.connection.peer,
            "clientId": one.client_id,
            "language": one.connection.language,
            "version": one.connection.version,
        }
        for one in members
    ]


# Through the broker.


@handles(RequestCode.GET_CONSUMER_RUNNING_INFO, lane=CallLane.LOOP)
def running_info(call: AnyCall) -> RemotingAnswer | None:
    """Hands on what a consumer says of itself."""
    call.caller.check_everywhere(Scope.READ)
    return _hand_on(call, call.frame.body)


@handles(RequestCode.CONSUME_MESSAGE_DIRECTLY, lane=CallLane.READ)
def consume_directly(call: RemotingCall) -> RemotingAnswer | None:
    """Gives one message to one consumer, and hands on what it says."""
    found = call.broker.store.message(call.text("msgId"))
    call.caller.check(Scope.READ, found.record.topic)
    fields = {"brokerName": call.broker.name}
    call.broker.call_soon(partial(_hand_on_later, call, encode_record(found.record), fields))
    return None


def _hand_on_later(call: AnyCall, body: bytes, more: dict[str, str]) -> None:
    answer = _hand_on(call, body, more)
    if answer is not None:
        call.reply(answer)


def _hand_on(call: AnyCall, body: bytes, more: dict[str, str] | None = None) -> RemotingAnswer | None:
    """Asks the client that is meant; to be called on the loop."""
    member = _member(call)
    if member is None:
        text = f"the consumer {call.text('consumerGroup')[:300]!r} {call.text('clientId')[:300]!r} is not online"
        return refusal(ResponseCode.SYSTEM_ERROR, text)

    def answered(frame: Frame | None) -> None:
        if frame is None:
            call.reply(refusal(ResponseCode.CONSUME_MSG_TIMEOUT, "the consumer does not answer"))
        else:
            call.reply(RemotingAnswer(frame.fields, frame.body, frame.code, frame.remark))

    fields = {**call.frame.fields, **(more or {})}
    for name in SIGNING_FIELDS:  # whoever asks signs to us, not to the client
        fields.pop(name, None)
    member.connection.ask(RequestCode(call.code), fields, answered, body=body, timeout_s=_ASK_S)
    return None


def _member(call: AnyCall) -> Member | None:
    client_id = call.text("clientId")
    members = call.broker.clients.consumers(call.text("consumerGroup"))
    return next((one for one in members if one.client_id == client_id), None)


@handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, lane=CallLane.LOOP)
def consumer_status(call: AnyCall) -> RemotingAnswer | None:
    """Asks the members of a group where they are in the queues of a topic."""
    group, topic, only = call.text("group"), call.text("topic"), call.text("clientAddr", "")
    call.caller.check(Scope.READ, topic)
    members = [one for one in call.broker.clients.consumers(group) if only in ("", one.client_id)]
    if not members:
        return refusal(ResponseCode.SYSTEM_ERROR, f"no consumer of the group {group[:300]!r} is online")
    found: dict[str, Any] = {}
    left = [one.client_id for one in members]

    def answered(client_id: str, frame: Frame | None) -> None:
        table = None
        if frame is not None and frame.code == ResponseCode.SUCCESS:
            try:
                table = java_json.member(frame.body, "messageQueueTable")
            except InvalidRequestError:
                table = None  # whatever it is, it is nothing to hand on
        if table is not None:
            found[client_id] = java_json.taken_over(table)
        left.remove(client_id)
        if not left:
            call.reply(RemotingAnswer(body=java_json.encode({"consumerTable": found, "messageQueueTable": {}})))

    for one in members:
        one.connection.ask(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": group, "topic": topic},
            partial(answered, one.client_id), timeout_s=_ASK_S,
        )  # fmt: skip
    return None
