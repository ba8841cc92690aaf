"""Clients that are there, by their heartbeats: producers, and consumers with the topics that they read.

What a group's members are decides which queues each of them reads, in the clients themselves: so a change is told at
once to every member, and the list of a group is right when it is asked for. A client is gone when its connection is,
when it says so, or after :data:`EXPIRES_S` without a heartbeat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tierlog.service.rocketmq.remoting.connection import Connection
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.hot.consumer_groups import validate_group

#: Time without a heartbeat after which a client counts as gone.
EXPIRES_S = 120
#: Groups that one client may name, and topics in each.
_MOST_GROUPS, _MOST_TOPICS = 1_000, 1_000
_MOST_CLIENT_ID = 1_000


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group reads of one topic."""

    topic: str
    expression: str = "*"
    kind: str = "TAG"
    version: int = 0
    tag_hashes: frozenset[int] = frozenset()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """How a group consumes, as its member says."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a client says of itself."""

    client_id: str
    producers: frozenset[str]
    consumers: tuple[ConsumerInfo, ...]
    #: The client knows that the broker has its subscriptions, and leaves them out.
    is_without_subscriptions: bool = False
    fingerprint: int = 0


@dataclass(slots=True)
class Member:
    """One client in one group; ``info`` None for a producer."""

    client_id: str
    connection: Connection
    seen_s: float
    info: ConsumerInfo | None = None


def parse_heartbeat(document: Any) -> Heartbeat:
    """Reads the body of HEART_BEAT; :class:`InvalidRequestError` for anything but one."""
    try:
        client_id = _text(document["clientID"])
        producers = frozenset(_text(one["groupName"]) for one in document.get("producerDataSet") or ())
        consumers = tuple(_consumer(one) for one in document.get("consumerDataSet") or ())
        is_short = bool(document.get("isWithoutSub") or document.get("withoutSub"))
        fingerprint = int(document.get("heartbeatFingerprint") or 0)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidRequestError(f"this is no heartbeat: {error!r}") from error
    if not 0 < len(client_id) <= _MOST_CLIENT_ID or len(producers) + len(consumers) > _MOST_GROUPS:
        raise InvalidRequestError("a heartbeat with too much in it, or without a client id")
    for one in consumers:
        validate_group(one.group)
    return Heartbeat(client_id, producers, consumers, is_short, fingerprint)


def parse_subscription(one: Any) -> Subscription:
    """Reads a ``SubscriptionData``; KeyError, TypeError or ValueError for anything but one."""
    return Subscription(
        topic=_text(one["topic"]), expression=str(one.get("subString") or "*"),
        kind=str(one.get("expressionType") or "TAG"), version=int(one.get("subVersion") or 0),
        tag_hashes=frozenset(int(code) for code in one.get("codeSet") or ()),
        tags=tuple(sorted(_text(tag) for tag in one.get("tagsSet") or ())),
    )  # fmt: skip


def _consumer(one: Any) -> ConsumerInfo:
    found = [parse_subscription(each) for each in one.get("subscriptionDataSet") or ()]
    if len(found) > _MOST_TOPICS:
        raise ValueError("too many subscriptions")
    return ConsumerInfo(
        group=_text(one["groupName"]), consume_type=str(one.get("consumeType") or "CONSUME_PASSIVELY"),
        message_model=str(one.get("messageModel") or "CLUSTERING"),
        from_where=str(one.get("consumeFromWhere") or "CONSUME_FROM_LAST_OFFSET"),
        subscriptions={each.topic: each for each in found},
    )  # fmt: skip


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text where one should be")
    return value


class Clients:
    """The clients of one door. Thread safe."""

    def __init__(self, clock: Clock, changed: Callable[[str, list[Connection]], object]) -> None:
        """``changed`` is told each group whose members changed, with their connections; on whatever thread."""
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._consumers: dict[str, dict[str, Member]] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        #: The groups of each connection, consumers' and producers'.
        self._groups_of: dict[Connection, tuple[set[str], set[str]]] = {}

    def heartbeat(self, beat: Heartbeat, connection: Connection) -> bool:
        """Keeps a client's groups alive; returns whether its subscriptions are known, which it may have left out."""
        now_s = self._clock.monotonic_s()
        joined, are_known = [], True
        with self._lock:
            if connection.is_closed:
                return True
            connection.client_id = beat.client_id
            consuming, producing = self._groups_of.setdefault(connection, (set(), set()))
            for info in beat.consumers:
                members = self._consumers.setdefault(info.group, {})
                before = members.get(beat.client_id)
                known = before.info if before is not None else None
                if beat.is_without_subscriptions:
                    are_known = are_known and known is not None
                    info = known or info
                members[beat.client_id] = Member(beat.client_id, connection, now_s, info)
                consuming.add(info.group)
                if before is None or before.connection is not connection or not _reads_the_same(known, info):
                    joined.append(info.group)
            for group in beat.producers:
                self._producers.setdefault(group, {})[beat.client_id] = Member(beat.client_id, connection, now_s)
                producing.add(group)
        self._tell(joined)
        return are_known

    def leave(self, client_id: str, *, consumer: str | None = None, producer: str | None = None) -> None:
        """Ends a client's membership in a group of consumers, or of producers."""
        with self._lock:
            is_gone = consumer is not None and _remove(self._consumers, consumer, client_id)
            if producer is not None:
                _remove(self._producers, producer, client_id)
        if is_gone and consumer is not None:
            self._tell([consumer])

    def disconnected(self, connection: Connection) -> None:
        """Ends what a connection had."""
        with self._lock:
            consuming, producing = self._groups_of.pop(connection, ((), ()))
            changed = [group for group in consuming if _remove_of(self._consumers, group, connection)]
            for group in producing:
                _remove_of(self._producers, group, connection)
        self._tell(changed)

    def expire(self) -> None:
        """Ends who has not been heard of; to be called now and then."""
        until_s = self._clock.monotonic_s() - EXPIRES_S
        changed = []
        with self._lock:
            for table in (self._consumers, self._producers):
                late = [
                    (group, one.client_id)
                    for group, members in table.items()
                    for one in members.values()
                    if one.seen_s <= until_s
                ]
                for group, client_id in late:
                    _remove(table, group, client_id)
                if table is self._consumers:
                    changed = sorted({group for group, _ in late})
        self._tell(changed)

    def consumers(self, group: str) -> list[Member]:
        """Returns the members of a group of consumers, by client id."""
        with self._lock:
            return [one for _, one in sorted(self._consumers.get(group, {}).items())]

    def producers(self, group: str) -> list[Member]:
        """Returns the members of a group of producers, by client id."""
        with self._lock:
            return [one for _, one in sorted(self._producers.get(group, {}).items())]

    def connected(self) -> int:
        """Returns how many connections belong to a client that has said who it is."""
        with self._lock:
            return len(self._groups_of)

    def consumer_groups(self) -> list[str]:
        """Returns the groups of consumers that have members."""
        with self._lock:
            return sorted(self._consumers)

    def producer_groups(self) -> list[str]:
        """Returns the groups of producers that have members."""
        with self._lock:
            return sorted(self._producers)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Returns the newest subscription of a topic that a member of the group has said."""
        with self._lock:
            found = [
                one.info.subscriptions[topic]
                for one in self._consumers.get(group, {}).values()
                if one.info is not None and topic in one.info.subscriptions
            ]
        return max(found, key=lambda one: one.version, default=None)

    def _tell(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._changed(group, [one.connection for one in self.consumers(group)])


def _reads_the_same(before: ConsumerInfo | None, after: ConsumerInfo) -> bool:
    if before is None:
        return False
    return {topic: one.expression for topic, one in before.subscriptions.items()} == {
        topic: one.expression for topic, one in after.subscriptions.items()
    }


def _remove(table: dict[str, dict[str, Member]], group: str, client_id: str) -> bool:
    members = table.get(group, {})
    found = members.pop(client_id, None)
    if not members:
        table.pop(group, None)
    return found is not None


def _remove_of(table: dict[str, dict[str, Member]], group: str, connection: Connection) -> bool:
    gone = [one.client_id for one in table.get(group, {}).values() if one.connection is connection]
    for client_id in gone:
        _remove(table, group, client_id)
    return bool(gone)
