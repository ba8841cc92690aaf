"""What the door of a follow process answers, and what its requests work with.

It stands in the routes of the cluster's topics as a broker that neither takes nor gives messages. What clients and
tools ask such a broker for is answered, so that no command fails because there is one broker more: with what is known
here, or, of what is at the other brokers, with an empty part of the whole that tools put together. Everything else is
refused with REQUEST_CODE_NOT_SUPPORTED, and counted by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tierlog.index.search.query import Query
from tierlog.service.access.caller import Scope
from tierlog.service.engine.store import Store
from tierlog.service.follow.answering.live_brokers import EVERYTHING, LiveBrokers
from tierlog.service.follow.answering.registration import NameserverEntry, OfferedTopic
from tierlog.service.follow.answering.replay import (
    PREFIX,
    Replay,
    name_in_store,
    renamed_answer,
    replay_name,
)
from tierlog.service.follow.followed_broker import FollowedBroker
from tierlog.service.rocketmq.remoting import java_json
from tierlog.service.rocketmq.remoting.broker import DoorContext, ReadableBroker
from tierlog.service.rocketmq.remoting.calls import (
    CallLane,
    DoorCall,
    Handler,
    ReadCall,
    RemotingAnswer,
    declare,
    refusal,
)
from tierlog.service.rocketmq.remoting.clients import parse_heartbeat
from tierlog.service.rocketmq.remoting.handlers import (
    broker_tools,
    client_tools,
    group_tools,
    locking,
    lookups,
    membership,
    offsets,
    pulling,
)
from tierlog.service.rocketmq.remoting.handlers.topic_tools import stored_ms, topic_config
from tierlog.service.rocketmq.remoting.java_json import MessageQueue
from tierlog.service.rocketmq.remoting.queue_locks import QueueLocks
from tierlog.service.rocketmq.topics import TRACE_TOPIC, is_system_topic
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.types import Boundary, TimeAxis
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.format.record import encode_record
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import PROTOCOL_VERSION

#: Nothing may be done with a topic, or it may be read.
NOTHING, READ = 0, 4
#: The numbers of a slave and of a master. Tools make topics and groups at all masters of a cluster.
SLAVE_ID, MASTER_ID = 1, 0
#: Names that a nameserver and RocketMQ's clients take.
_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_MOST_BYTES = pulling.MOST_BYTES
_FOLLOWED = "tierlog-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveNode(DoorContext):
    """The followed brokers, as a broker of each of their clusters that answers for what they no longer have."""

    brokers: Callable[[], Sequence[FollowedBroker]]
    live: LiveBrokers
    #: None where topics are not replayed.
    replay: Replay | None
    locks: QueueLocks

    @property
    def name(self) -> str:
        """The name of the broker whose topics are replayed; nobody is told before the first broker was reached."""
        return archive_name(self.brokers()[0].cluster)

    def stores(self) -> dict[str, Store]:
        """Returns the stores that are open now, by their ids."""
        return {one.store_id: one.store for one in self.brokers() if one.store is not None}


#: A request to the door of a follow process.
NodeCall = DoorCall[ArchiveNode]
#: Every code that is answered.
ANSWERS: dict[int, Handler[ArchiveNode]] = {}


def look_up_name(cluster: str) -> str:
    """Returns the name of the broker that answers look-ups of a cluster."""
    return _FOLLOWED + cluster


def archive_name(cluster: str) -> str:
    """Returns the name of the broker, and of its own cluster, whose topics are those that are replayed."""
    return f"{_FOLLOWED}{cluster}-archive"


# What nameservers are told.


def entries(node: ArchiveNode) -> list[NameserverEntry]:
    """Returns the entries of each followed cluster: for look-ups, and for what is replayed.

    Clients look for a slave where any broker of the name will do, which look-ups need, and for a master where queues
    have an end, which consumers need. A master of the followed cluster would be given the topics that tools make in it:
    so the one whose topics are replayed stands in a cluster of its own.
    """
    brokers = node.brokers()
    taken = {one.name for one in brokers}
    own = taken | {one.cluster for one in brokers}  # each broker has topics of its own name and its cluster's
    counts = {
        one.store_id: {
            name: queues
            for name, queues in one.store.generation_counts().items()
            if is_offered(name) and name not in own
        }
        for one in brokers
        if one.store is not None
    }
    found: list[NameserverEntry] = []
    for cluster in sorted({one.cluster for one in brokers} - {""}):
        names = {name for one in brokers if one.cluster == cluster for name in counts.get(one.store_id, ())}
        topics = {name: OfferedTopic(NOTHING, 1) for name in sorted(names)}
        found.append(NameserverEntry(look_up_name(cluster), cluster, node.address, SLAVE_ID, topics))
    if node.replay is not None and brokers and brokers[0].cluster:
        topics = {name: OfferedTopic(READ, count) for name, count in node.replay.topics(counts).items()}
        found.append(NameserverEntry(node.name, node.name, node.address, MASTER_ID, topics))
    return [one for one in found if one.topics and one.name not in taken]


def is_offered(topic: str) -> bool:
    """Whether a nameserver is told of a topic: not of those in which RocketMQ keeps what is no message yet."""
    is_own = is_system_topic(topic) or topic.startswith("RMQ_SYS_")
    return _NAME.fullmatch(topic) is not None and (topic == TRACE_TOPIC or not is_own)


# Look-ups.


@declare(ANSWERS, RequestCode.QUERY_MESSAGE, lane=CallLane.READ)
def messages_of_key(call: NodeCall) -> RemotingAnswer:
    """Answers with the newest messages that have a key and that no broker has any more.

    Whoever asks waits for 9 to 12 s: what is certain after ``follow.answer_ms`` is answered.
    """
    node = call.broker
    until_s = node.clock.monotonic_s() + node.settings.follow.answer_ms / 1000
    query = lookups.behind_last(call, lookups.query_of(call), list(node.stores().values()))
    found: list[StoredMessage] = []
    if query is not None:
        left = [one for one in node.brokers() if one.store is not None]
        while left:
            broker = left.pop()
            now_s = node.clock.monotonic_s()
            share_s = (until_s - now_s) / (len(left) + 1)
            if share_s > 0:
                found += _archived_only(node, broker, query, now_s + share_s)
        found.sort(key=lambda one: one.place(TimeAxis.STORE), reverse=True)
    return lookups.answer_of_found(call, found[: query.limit] if query is not None else [])


def _archived_only(node: ArchiveNode, broker: FollowedBroker, query: Query, until_s: float) -> list[StoredMessage]:
    """Returns the newest hits below the border, as far as they are certain by then."""
    store = broker.store
    if store is None or store.find_queues(query.topic) is None:
        return []
    query = replace(query, without=_had_by(broker, node.live.border(broker)))
    found: list[StoredMessage] = []
    size = 0
    while len(found) < query.limit and size < _MOST_BYTES:
        left_ms = int((until_s - node.clock.monotonic_s()) * 1000)
        if left_ms <= 0:
            break
        answer = store.query(replace(query, timeout_ms=left_ms), page_bytes=_MOST_BYTES - size)
        found += answer.messages
        size += sum(one.record.size for one in answer.messages)
        if answer.next_cursor is None:
            break
        query = replace(query, cursor=answer.next_cursor)
    return found[: query.limit]


def _had_by(broker: FollowedBroker, border: int) -> tuple[int, int]:
    """Returns the physical range of what the broker has: not what it has removed, nor what a promoted store took."""
    return border, broker.end if broker.is_promoted else EVERYTHING


@declare(ANSWERS, RequestCode.VIEW_MESSAGE_BY_ID, lane=CallLane.READ)
def message_by_offset(call: NodeCall) -> RemotingAnswer:
    """Answers with the message at a physical offset that its broker no longer has.

    An offset says nothing of the broker. Where several have had a message there, of the topic if one is named, it is
    not said which is meant, and none is answered.
    """
    node, offset, topic = call.broker, call.number("offset"), call.text("topic", "")
    found = []
    for broker in node.brokers():
        first, end = _had_by(broker, node.live.border(broker))
        if broker.store is not None and not first <= offset < end:
            message = broker.store.message_at(offset)
            if message is not None and topic in ("", message.record.topic):
                found.append(message)
    if len(found) != 1:
        more = f": {len(found)} brokers have had one there" if found else ""
        return refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}{more}")
    call.caller.check(Scope.READ, found[0].record.topic)
    return RemotingAnswer(body=encode_record(found[0].record))


# Clients, and what tools ask about them.


@declare(ANSWERS, RequestCode.HEART_BEAT, lane=CallLane.LOOP)
def heartbeat(call: NodeCall) -> RemotingAnswer:
    """Keeps a client's groups alive."""
    beat = parse_heartbeat(call.document())
    for one in beat.consumers:
        for topic in one.subscriptions:
            if not topic.startswith("%RETRY%"):
                call.caller.check(Scope.READ, topic.removeprefix(PREFIX))
    return membership.kept_alive(call, beat)


@declare(ANSWERS, RequestCode.GET_CONSUMER_LIST_BY_GROUP, lane=CallLane.READ)
def consumers_of_group(call: NodeCall) -> RemotingAnswer:
    """Answers with the ids of a group's clients, here or at a followed broker.

    They share the queues of all brokers out by it, and ask whichever broker of a topic they like. A client comes to
    know of a new broker within half a minute, and its heartbeat comes here up to half a minute later: a list of those
    that are here would leave out who is not yet, whose queues another client would then take as well.
    """
    group, node = call.text("consumerGroup"), call.broker
    found = {one.client_id for one in node.clients.consumers(group)}
    for broker in node.brokers():
        found.update(node.live.consumers(broker, group))
    if not found:
        return refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:300]}")
    return RemotingAnswer.of_json({"consumerIdList": sorted(found)})


@declare(ANSWERS, RequestCode.GET_CONSUMER_CONNECTION_LIST, lane=CallLane.LOOP)
def consumer_connections(call: NodeCall) -> RemotingAnswer:
    """Answers with the members of a group and what they read."""
    group = call.text("consumerGroup")
    members = call.broker.clients.consumers(group)
    if not members:
        return refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group {group[:300]!r} is not online")
    return client_tools.connections_of(call, members)


for _code, _run, _lane in (
    (RequestCode.UNREGISTER_CLIENT, membership.unregister, CallLane.LOOP),
    (RequestCode.CHECK_CLIENT_CONFIG, membership.check_client, CallLane.LOOP),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, client_tools.producer_connections, CallLane.LOOP),
    (RequestCode.GET_CONSUMER_RUNNING_INFO, client_tools.running_info, CallLane.LOOP),
    (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, client_tools.consumer_status, CallLane.LOOP),
    (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group_tools.subscription_of_group, CallLane.LOOP),
    (RequestCode.VIEW_BROKER_STATS_DATA, broker_tools.stats_of, CallLane.LOOP),
):
    declare(ANSWERS, _code, lane=_lane)(_run)


# What tools ask about the broker, its topics and groups.


@declare(ANSWERS, RequestCode.GET_BROKER_RUNTIME_INFO, lane=CallLane.LOOP)
def runtime_info(call: NodeCall) -> RemotingAnswer:
    """Answers with what this is; the numbers of the stores are in the service's metrics."""
    call.caller.check(Scope.READ)
    table = {
        "brokerActive": "true",
        "brokerVersion": str(PROTOCOL_VERSION),
        "brokerVersionDesc": broker_tools.VERSION_NAME,
        "runtime": "tierlog",
        **{f"tierlog.{one.name}": one.state.value for one in call.broker.brokers()},
    }
    return RemotingAnswer.of_json({"table": table})


@declare(ANSWERS, RequestCode.GET_BROKER_CONFIG, lane=CallLane.LOOP)
def broker_config(call: NodeCall) -> RemotingAnswer:
    """Answers with the name that tools look for; settings are the service's own, and no tool reads them."""
    call.caller.check(Scope.READ)
    cluster = next((one.cluster for one in call.broker.brokers() if one.cluster), "")
    found = {"brokerClusterName": cluster, "brokerId": SLAVE_ID, "brokerName": look_up_name(cluster)}
    return RemotingAnswer(body="".join(f"{name}={value}\n" for name, value in found.items()).encode())


@declare(ANSWERS, RequestCode.GET_TOPIC_CONFIG, lane=CallLane.READ)
def one_topic_config(call: NodeCall) -> RemotingAnswer:
    """Answers with a topic as nameservers are told of it; `topicStatus` asks every broker of the topic."""
    said, node = call.text("topic"), call.broker
    topic = said.removeprefix(PREFIX)
    call.caller.check(Scope.READ, topic)
    queues = len(list(_queues(node, said)))
    if not queues and all(store.find_queues(said) is None for store in node.stores().values()):
        raise TopicNotFoundError(f"no topic {said[:300]!r} in this broker")
    return RemotingAnswer.of_json({**topic_config(said, queues or 1), "perm": READ if queues else NOTHING})


@declare(ANSWERS, RequestCode.GET_TOPIC_STATS_INFO, lane=CallLane.READ)
def topic_stats(call: NodeCall) -> RemotingAnswer:
    """Answers with where each queue of a replayed topic begins and ends; of others, their brokers know."""
    said, node = call.text("topic"), call.broker
    topic = said.removeprefix(PREFIX)
    call.caller.check(Scope.READ, topic)
    found = []
    for number, broker, name, queue_id in _queues(node, said):
        first, end = broker.store.offsets(name, queue_id)
        last_ms = stored_ms(broker.store, name, queue_id, end - 1) if end > first else 0
        stats = {"lastUpdateTimestamp": last_ms, "maxOffset": end, "minOffset": first}
        found.append((MessageQueue(node.name, number, said), stats))
    return RemotingAnswer(body=java_json.encode({"offsetTable": java_json.table(found), "topicPutTps": 0.0}))


@declare(ANSWERS, RequestCode.GET_CONSUME_STATS, lane=CallLane.READ)
def consume_stats(call: NodeCall) -> RemotingAnswer:
    """Answers with how far a group is in replayed topics, or in one of them; of others, their brokers know."""
    group, said, node = call.text("consumerGroup"), call.text("topic", ""), call.broker
    found = []
    for topic in [said] if said else _topics_of(node, group):
        if not call.caller.may(Scope.READ, topic.removeprefix(PREFIX)):
            continue
        for number, broker, name, queue_id in _queues(node, topic):
            end = broker.store.offsets(name, queue_id)[1]
            offset = broker.offsets.find(replay_name(group), name, queue_id) or 0
            stats = {
                "brokerOffset": end,
                "consumerOffset": offset,
                "lastTimestamp": stored_ms(broker.store, name, queue_id, offset - 1) if offset else 0,
                "pullOffset": offset,
            }
            found.append((MessageQueue(node.name, number, topic), stats))
    return RemotingAnswer(body=java_json.encode({"consumeTps": 0.0, "offsetTable": java_json.table(found)}))


@declare(ANSWERS, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, lane=CallLane.READ)
def groups_of_topic(call: NodeCall) -> RemotingAnswer:
    """Answers with the groups that have read a topic, as they were copied from its brokers, or that read it now."""
    said, node = call.text("topic"), call.broker
    topic = said.removeprefix(PREFIX)
    call.caller.check(Scope.READ, topic)
    is_replayed = said.startswith(PREFIX)
    found = {
        group.removeprefix(PREFIX)
        for store in node.stores().values()
        for group, state in store.groups.all_committed().items()
        if group.startswith(PREFIX) == is_replayed and any(record_topic(queue[0]) == topic for queue in state.offsets)
    }
    found.update(group for group in node.clients.consumer_groups() if node.clients.subscription(group, said))
    return RemotingAnswer.of_json({"groupList": sorted(found)})


@declare(ANSWERS, RequestCode.QUERY_TOPICS_BY_CONSUMER, lane=CallLane.READ)
def topics_of_group(call: NodeCall) -> RemotingAnswer:
    """Answers with the replayed topics that a group has read; of others, their brokers know."""
    names = _topics_of(call.broker, call.text("group"))
    found = [name for name in names if call.caller.may(Scope.READ, name.removeprefix(PREFIX))]
    return RemotingAnswer.of_json({"brokerAddr": None, "topicList": found})


@declare(ANSWERS, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, lane=CallLane.APPEND)
def reset_offsets(call: NodeCall) -> RemotingAnswer:
    """Sets a group to the messages of a replayed topic that were stored since a time, and tells its members.

    A topic's brokers do so for what they have; there is nothing to do here.
    """
    group, said, node = call.text("group"), call.text("topic"), call.broker
    topic, time_ms = said.removeprefix(PREFIX), call.number("timestamp", -1)
    call.caller.check(Scope.READ, topic)
    moved: dict[int, int] = {}
    for number, broker, name, queue_id in _queues(node, said):
        if time_ms < 0:
            offset = broker.store.offsets(name, queue_id)[1]
        else:
            offset = broker.store.offset_by_time(name, queue_id, time_ms, Boundary.LOWER)
        broker.offsets.commit(replay_name(group), name, queue_id, offset)
        moved[number] = offset
    if moved:
        group_tools.tell_reset(call, node.name, moved)
    return RemotingAnswer(body=java_json.encode({"offsetTable": group_tools.offset_table(node.name, said, moved)}))


def _queues(node: ArchiveNode, said: str) -> Iterator[tuple[int, ReadableBroker, str, int]]:
    """Yields the queues of a replayed topic: its number, the store that has it, and its topic and number there."""
    topic = said.removeprefix(PREFIX)
    if node.replay is not None and said.startswith(PREFIX):
        for number, one in enumerate(node.replay.queues.of(topic)):
            yield number, node.replay.broker(node, one.store_id), name_in_store(topic, one), one.queue_id


def _topics_of(node: ArchiveNode, group: str) -> list[str]:
    """Returns the replayed topics that a group has committed offsets of."""
    found: set[str] = set()
    for store in node.stores().values():
        state = store.groups.all_committed().get(replay_name(group))
        found.update(replay_name(record_topic(topic)) for topic, _, _ in (state.offsets if state is not None else ()))
    return sorted(found)


# What is replayed.


def _replays(code: RequestCode, run: Callable[[ReadCall], RemotingAnswer | None], lane: CallLane) -> None:
    """Has a request for a queue of a replayed topic answered as at the door of the store that has the queue."""

    @declare(ANSWERS, code, lane=lane)
    def replayed(call: NodeCall) -> RemotingAnswer | None:
        if call.broker.replay is None:
            raise TopicNotFoundError("topics are not replayed", hint="follow.replay is off")
        answer = run(call.broker.replay.within(call))
        if answer is None or run is not pulling.pull:
            return answer
        return renamed_answer(answer, call.text("topic"), call.number("queueId"))


for _code, _read, _lane in (
    (RequestCode.PULL_MESSAGE, pulling.pull, CallLane.READ),
    (RequestCode.LITE_PULL_MESSAGE, pulling.pull, CallLane.READ),
    (RequestCode.QUERY_CONSUMER_OFFSET, offsets.committed_offset, CallLane.READ),
    (RequestCode.UPDATE_CONSUMER_OFFSET, offsets.commit_offset, CallLane.LOOP),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offsets.offset_by_time, CallLane.READ),
    (RequestCode.GET_MAX_OFFSET, offsets.max_offset, CallLane.READ),
    (RequestCode.GET_MIN_OFFSET, offsets.min_offset, CallLane.READ),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, offsets.earliest_time, CallLane.READ),
):
    _replays(_code, _read, _lane)


@declare(ANSWERS, RequestCode.LOCK_BATCH_MQ, lane=CallLane.LOOP)
def lock(call: NodeCall) -> RemotingAnswer:
    """Locks queues of replayed topics for a client of a group, and answers with those that are its own now."""
    return locking.locked(call, call.broker.locks, call.broker.name)


@declare(ANSWERS, RequestCode.UNLOCK_BATCH_MQ, lane=CallLane.LOOP)
def unlock(call: NodeCall) -> RemotingAnswer:
    """Ends a client's locks."""
    return locking.unlocked(call, call.broker.locks)
