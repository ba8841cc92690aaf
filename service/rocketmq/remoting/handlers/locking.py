"""Locks of queues, for consumers that take messages in order."""

from __future__ import annotations

from typing import Any

from tierlog.service.rocketmq.remoting.calls import AnyCall, CallLane, RemotingAnswer, RemotingCall, handles
from tierlog.service.rocketmq.remoting.handlers.pulling import check_may_read
from tierlog.service.rocketmq.remoting.queue_locks import LockedQueue, QueueLocks
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.rocketmq.codes import RequestCode

_MOST_QUEUES = 10_000


@handles(RequestCode.LOCK_BATCH_MQ, lane=CallLane.LOOP)
def lock(call: RemotingCall) -> RemotingAnswer:
    """Locks queues for a client of a group, and answers with those that are its own now."""
    return locked(call, call.broker.locks, call.broker.name)


def locked(call: AnyCall, locks: QueueLocks, name: str) -> RemotingAnswer:
    """Locks queues of the broker of this name."""
    group, client_id, queues = _asked(call)
    got = locks.lock(group, client_id, queues)
    return RemotingAnswer.of_json(
        {"lockOKMQSet": [{"brokerName": name, "queueId": queue_id, "topic": topic} for topic, queue_id in got]}
    )


@handles(RequestCode.UNLOCK_BATCH_MQ, lane=CallLane.LOOP)
def unlock(call: RemotingCall) -> RemotingAnswer:
    """Ends a client's locks."""
    return unlocked(call, call.broker.locks)


def unlocked(call: AnyCall, locks: QueueLocks) -> RemotingAnswer:
    """Ends a client's locks among these."""
    locks.unlock(*_asked(call))
    return RemotingAnswer()


def _asked(call: AnyCall) -> tuple[str, str, list[LockedQueue]]:
    document: Any = call.document()
    try:
        group, client_id = document["consumerGroup"], document["clientId"]
        queues = [(one["topic"], one["queueId"]) for one in document.get("mqSet") or ()]
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"no queues to lock: {error!r}") from error
    are_right = isinstance(group, str) and isinstance(client_id, str) and len(queues) <= _MOST_QUEUES
    if not are_right or not all(isinstance(topic, str) and type(queue) is int for topic, queue in queues):
        raise InvalidRequestError("no queues to lock")
    validate_group(group)
    for topic in {topic for topic, _ in queues}:
        check_may_read(call, topic)
    return group, client_id, queues
