"""Heartbeats of clients, and who is in a group."""

from __future__ import annotations

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.group_topics import QUEUES_OF_GROUP, RETRY_PREFIX
from tierlog.service.rocketmq.remoting.calls import (
    AnyCall,
    CallLane,
    RemotingAnswer,
    RemotingCall,
    handles,
    refusal,
)
from tierlog.service.rocketmq.remoting.clients import Heartbeat, parse_heartbeat, parse_subscription
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

#: How clients that know of subscriptions by fingerprint are told that this broker does too.
_KNOWS_FINGERPRINTS, _HAS_CHANGED = "IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"
_TAG = "TAG"


@handles(RequestCode.HEART_BEAT, lane=CallLane.APPEND)
def heartbeat(call: RemotingCall) -> RemotingAnswer:
    """Keeps a client's groups alive; the topic of a group's messages to deliver again is there when it is answered."""
    beat = parse_heartbeat(call.document())
    for one in beat.consumers:
        for topic in one.subscriptions:
            if not topic.startswith(RETRY_PREFIX):
                call.caller.check(Scope.READ, topic)
        call.broker.store.make_topic(RETRY_PREFIX + one.group, QUEUES_OF_GROUP, may_make=True)
    return kept_alive(call, beat)


def kept_alive(call: AnyCall, beat: Heartbeat) -> RemotingAnswer:
    """Keeps a client's groups alive."""
    are_known = call.broker.clients.heartbeat(beat, call.connection)
    is_as_before = are_known and beat.fingerprint
    return RemotingAnswer({_KNOWS_FINGERPRINTS: "true", _HAS_CHANGED: "false" if is_as_before else "true"})


@handles(RequestCode.UNREGISTER_CLIENT, lane=CallLane.LOOP)
def unregister(call: AnyCall) -> RemotingAnswer:
    """Ends a client's membership in groups."""
    consumer, producer = call.text("consumerGroup", ""), call.text("producerGroup", "")
    call.broker.clients.leave(call.text("clientID"), consumer=consumer or None, producer=producer or None)
    return RemotingAnswer()


@handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP, lane=CallLane.LOOP)
def consumers_of_group(call: AnyCall) -> RemotingAnswer:
    """Answers with the ids of a group's clients, which each of them shares the queues out by."""
    group = call.text("consumerGroup")
    found = [one.client_id for one in call.broker.clients.consumers(group)]
    if not found:
        return refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:300]}")
    return RemotingAnswer.of_json({"consumerIdList": found})


@handles(RequestCode.CHECK_CLIENT_CONFIG, lane=CallLane.LOOP)
def check_client(call: AnyCall) -> RemotingAnswer:
    """Says whether a subscription can be served: by tags, yes; by an expression of SQL92, no."""
    document = call.document()
    try:
        subscription = parse_subscription(document["subscriptionData"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequestError(f"no subscription to check: {error!r}") from error
    if subscription.kind != _TAG:
        return refusal(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.kind[:100]}",
        )
    return RemotingAnswer()
