"""Which queues a consumer reads that leaves it to the broker, and whether it pulls or pops.

Tools say which of the two, for a topic and a group, and a setting for all others. Who pulls gets queues of its own, by
the rules that clients have themselves. Who pops asks for all queues at once, and shares them message by message; the
group's topic of messages to deliver again is not given to it, as those come with what it pops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tierlog.service.delivery.group_topics import RETRY_PREFIX, is_group_topic
from tierlog.service.engine.groups import allocate
from tierlog.service.rocketmq.remoting.broker import Broker
from tierlog.service.rocketmq.remoting.calls import CallLane, RemotingAnswer, RemotingCall, handles
from tierlog.service.rocketmq.remoting.handlers.pulling import check_may_read
from tierlog.service.rocketmq.remoting.handlers.routes import queues_by_store
from tierlog.service.rocketmq.remoting.handlers.topic_tools import queues_of
from tierlog.service.rocketmq.remoting.java_json import MessageQueue
from tierlog.service.rocketmq.remoting.request_modes import RequestMode
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.message.batch import ANY_QUEUE
from tierlog.tiering.rocketmq.codes import RequestCode

_PULL, _POP = "PULL", "POP"
_BROADCASTING = "BROADCASTING"


#: A queue: the store's name, and its number there.
_Queue = tuple[str, int]


def _on_average(queues: Mapping[str, int], clients: Sequence[str], client: str) -> list[_Queue]:
    found = allocate({"": queues}, {one: {""} for one in clients})
    return [(store_id, queue_id) for _, store_id, queue_id in found[client]]


def _in_turn(queues: Mapping[str, int], clients: Sequence[str], client: str) -> list[_Queue]:
    return _all(queues)[sorted(clients).index(client) :: len(clients)]


def _all(queues: Mapping[str, int]) -> list[_Queue]:
    return [(name, queue_id) for name in sorted(queues) for queue_id in range(queues[name])]


#: By the name that a client has for it: the queues of one of several clients.
_STRATEGIES: Mapping[str, Callable[[Mapping[str, int], Sequence[str], str], list[_Queue]]] = {
    "AVG": _on_average,
    "AVG_BY_CIRCLE": _in_turn,
}


@handles(RequestCode.QUERY_ASSIGNMENT, lane=CallLane.READ)
def query_assignment(call: RemotingCall) -> RemotingAnswer:
    """Answers with a client's queues of a topic, in all stores that are there."""
    asked = _texts(call, "topic", "consumerGroup", "clientId")
    topic, broker = asked["topic"], call.broker
    check_may_read(call, topic)
    queues_of(broker, topic)
    broker.others.ask(topic)
    queues = queues_by_store(broker, topic)
    document = call.document()
    pops = document.get("messageModel") != _BROADCASTING and _pops(broker, topic, asked["consumerGroup"])
    clients = [one.client_id for one in broker.clients.consumers(asked["consumerGroup"])]
    found: list[_Queue]
    if pops:
        found = [] if topic.startswith(RETRY_PREFIX) else [(name, ANY_QUEUE) for name in queues]
    elif document.get("messageModel") == _BROADCASTING:
        found = _all(queues)
    elif asked["clientId"] not in clients:
        found = []  # its heartbeat comes
    else:
        strategy = _STRATEGIES.get(str(document.get("strategyName", "AVG")))
        if strategy is None:
            raise InvalidRequestError(f"no strategy {str(document.get('strategyName'))[:100]!r}")
        found = strategy(queues, clients, asked["clientId"])
    mode = _POP if pops else _PULL
    assignments = [
        {"messageQueue": MessageQueue(name, queue_id, topic).to_json(), "mode": mode} for name, queue_id in found
    ]
    return RemotingAnswer.of_json({"messageQueueAssignments": assignments})


def _pops(broker: Broker, topic: str, group: str) -> bool:
    """Whether a group pops a topic; what was sent back, if it pops all that its members read."""
    if not topic.startswith(RETRY_PREFIX):
        return broker.modes.of(topic, group) is RequestMode.POP
    read = {name for one in broker.clients.consumers(group) if one.info is not None for name in one.info.subscriptions}
    topics = [name for name in read if not is_group_topic(name)]
    return bool(topics) and all(broker.modes.of(name, group) is RequestMode.POP for name in topics)


@handles(RequestCode.SET_MESSAGE_REQUEST_MODE, lane=CallLane.APPEND)
def set_request_mode(call: RemotingCall) -> RemotingAnswer:
    """Sets whether a group pulls or pops a topic; its consumers follow when they ask again, within 20 s."""
    asked = _texts(call, "topic", "consumerGroup", "mode")
    topic, group, mode = asked["topic"], asked["consumerGroup"], asked["mode"].lower()
    check_may_read(call, topic)
    queues_of(call.broker, topic)
    if mode not in set(RequestMode) or (topic.startswith(RETRY_PREFIX) and mode != RequestMode.PULL):
        raise InvalidRequestError(f"no mode {mode[:100]!r} for this topic", hint="PULL or POP; a retry topic is pulled")
    with call.recorded(topic=topic, group=group, mode=mode):
        call.broker.modes.set(topic, group, RequestMode(mode))
    return RemotingAnswer()


def _texts(call: RemotingCall, *names: str) -> dict[str, str]:
    document: Any = call.document()
    if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in names):
        raise InvalidRequestError(f"the body must have {', '.join(names)}")
    return {name: document[name] for name in names}
