"""``archive%TOPIC``: any consumer of RocketMQ reads all that is kept of a topic, in both tiers, from its first message.

The queues of the topic in the stores of all followed brokers, and of each generation of it, lie side by side, as one
broker's queues 0, 1, 2 … Which is which is written down before anybody is told, and only ever added to
(:class:`ReplayQueues`), so that an offset that a consumer has means the same queue for ever. Offsets of a generation
begin at 0 again: in one queue with those of the one before they would fall, and what a consumer has committed would
come to mean another message.

A request is one to the store that has the queue, with the generation's own name (``orders@1``) and queue there, and is
answered by what answers it at any store's door. Offsets of a group ``G`` are committed in that store for the group
``archive%G`` by that name: what the broker's own group of the name has consumed is another matter, and is copied over
and over.

The records of an answer say ``archive%TOPIC`` and the queue that was asked for, in the place of what they say in the
log: Go's push consumer looks for its callback by the topic in the record, Java's takes any. All else is as it is.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tierlog.service.engine.store import Store
from tierlog.service.rocketmq.remoting.broker import DoorContext, ReadableBroker
from tierlog.service.rocketmq.remoting.calls import DoorCall, ReadCall, RemotingAnswer
from tierlog.service.rocketmq.remoting.clients import Subscription
from tierlog.service.rocketmq.remoting.connection import Buffer
from tierlog.service.rocketmq.remoting.consumer_offsets import ConsumerOffsets
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, TopicNotFoundError, UnavailableError
from tierlog.tiering.base.fs import FileSystem, replace_file
from tierlog.tiering.format.generation import asked_name, lasting_name
from tierlog.tiering.format.record import MAGIC_V2, MAX_TOPIC_BYTES_V1, SysFlag
from tierlog.tiering.rocketmq.codes import PullFlag, ResponseCode

PREFIX = "archive%"
_HEAD = struct.Struct(">ii")
_I32 = struct.Struct(">i")
_U16 = struct.Struct(">H")
_QUEUE_ID, _SYS_FLAG, _HOSTS = 12, 36, 48
_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)


def replay_name(name: str) -> str:
    """Returns the name of a topic, or of a group of consumers, as it is replayed."""
    return PREFIX + name


def may_replay(topic: str) -> bool:
    """Whether a topic's name leaves room for the prefix, and is none of those that RocketMQ's consumers add."""
    return len(topic) + len(PREFIX) <= MAX_TOPIC_BYTES_V1 and not topic.startswith((PREFIX, "%RETRY%"))


class ReplayQueue(NamedTuple):
    """One queue of a generation of a topic in a store."""

    store_id: str
    queue_id: int
    generation: int = 1


#: By store and topic: how many queues each generation has, the oldest first.
QueueCounts = Mapping[str, Mapping[str, Sequence[int]]]


class ReplayQueues:
    """Which queue of which store a queue of ``archive%TOPIC`` is: ``archive-queues.json``. Thread safe.

    An object by topic, each a list of [store, first queue there, number of queues], one behind the other; of a later
    generation than the first, its number comes fourth. The file is replaced as a whole before anybody is told of a
    queue in it. Killed before: nobody knew of the queue, and whatever comes first next time gets its number.
    """

    def __init__(self, path: Path, fs: FileSystem) -> None:
        """Reads the file; raises :class:`CorruptionError` if it is none."""
        self._path = path
        self._fs = fs
        self._lock = threading.Lock()
        self._queues: dict[str, list[ReplayQueue]] = _read(fs, path) if fs.exists(path) else {}

    def extend(self, counts: QueueCounts) -> None:
        """Gives numbers to queues that have none."""
        with self._lock:
            new: dict[str, list[ReplayQueue]] = {}
            for store_id, topics in sorted(counts.items()):
                for topic, generations in topics.items():
                    for generation, count in enumerate(generations, 1):
                        known = new.get(topic) or self._queues.get(topic, [])
                        have = sum((one.store_id, one.generation) == (store_id, generation) for one in known)
                        if have < count:
                            missing = range(have, count)
                            new[topic] = known + [ReplayQueue(store_id, each, generation) for each in missing]
            if new:
                after = {**self._queues, **new}
                replace_file(self._fs, self._path, _written(after), self._path.parent)
                self._queues = after

    def of(self, topic: str) -> Sequence[ReplayQueue]:
        """Returns the queues of a topic, by their numbers."""
        with self._lock:
            return self._queues.get(topic, ())

    def all(self) -> dict[str, Sequence[ReplayQueue]]:
        """Returns the queues of every topic."""
        with self._lock:
            return dict(self._queues)


def _written(queues: Mapping[str, Sequence[ReplayQueue]]) -> bytes:
    document: dict[str, list[list[str | int]]] = {}
    for topic, found in sorted(queues.items()):
        runs: list[list[Any]] = []
        for store_id, queue_id, generation in found:
            later = [generation] if generation > 1 else []
            if runs and (runs[-1][0], runs[-1][3:]) == (store_id, later) and sum(runs[-1][1:3]) == queue_id:
                runs[-1][2] += 1
            else:
                runs.append([store_id, queue_id, 1, *later])
        document[topic] = runs
    return orjson.dumps(document)


def _read(fs: FileSystem, path: Path) -> dict[str, list[ReplayQueue]]:
    try:
        return {
            str(topic): [
                ReplayQueue(str(store_id), queue_id, *later)
                for store_id, first, count, *later in runs
                for queue_id in range(first, first + count)
            ]
            for topic, runs in orjson.loads(fs.read(path)).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptionError(
            f"which queue is which cannot be read: {error}", path=str(path),
            hint="remove it, and consumers of archive% topics begin anew",
        ) from error  # fmt: skip


class Replay:
    """The replayed topics of the stores of a process, for the requests of its door. Thread safe."""

    def __init__(self, queues: ReplayQueues, stores: Callable[[], Mapping[str, Store]]) -> None:
        """``stores`` gives the stores that are open now, by their ids."""
        self.queues = queues
        self._stores = stores
        self._lock = threading.Lock()
        self._offsets: dict[str, tuple[Store, ConsumerOffsets]] = {}

    def topics(self, counts: QueueCounts) -> dict[str, int]:
        """Returns the topics that consumers may be told of, with their queues, once all of them have numbers."""
        shown = {
            store_id: {topic: queues for topic, queues in topics.items() if may_replay(topic)}
            for store_id, topics in counts.items()
        }
        self.queues.extend(shown)
        names = {topic for topics in shown.values() for topic in topics}
        return {replay_name(topic): len(self.queues.of(topic)) for topic in sorted(names)}

    def within(self, call: DoorCall[DoorContext]) -> ReadCall:
        """Returns a request for a queue as one to the store that has it.

        Raises :class:`TopicNotFoundError` for any other topic, :class:`UnavailableError` while the store is not open.
        """
        said, number = call.text("topic"), call.number("queueId")
        topic = original_topic(said)
        queues = self.queues.of(topic)
        if not 0 <= number < len(queues):
            raise TopicNotFoundError(f"no topic {said[:300]!r} with a queue {number}")
        queue = queues[number]
        fields = {**call.frame.fields, "topic": name_in_store(topic, queue), "queueId": str(queue.queue_id)}
        group = fields.get("consumerGroup")
        if group is not None:
            fields["consumerGroup"] = replay_name(group)
            fields |= _subscription(call, group, said)
        return DoorCall(
            _Within(call), self.broker(call.broker, queue.store_id), call.connection,
            replace(call.frame, fields=fields), call.caller, call.reply, call.lane, call.until_s,
        )  # fmt: skip

    def broker(self, context: DoorContext, store_id: str) -> ReadableBroker:
        """Returns a store as its own door has it; raises :class:`UnavailableError` while it is not open."""
        store = self._stores().get(store_id)
        if store is None:
            raise UnavailableError(f"store {store_id} is not open at the moment", hint="try again later")
        return ReadableBroker(
            settings=context.settings, clock=context.clock, address=context.address, clients=context.clients,
            polls=context.polls, audit=context.audit, call_soon=context.call_soon, store=store,
            offsets=self._offsets_of(store, context),
        )  # fmt: skip

    def _offsets_of(self, store: Store, context: DoorContext) -> ConsumerOffsets:
        with self._lock:
            known = self._offsets.get(store.store_id)
            if known is None or known[0] is not store:
                known = self._offsets[store.store_id] = (store, ConsumerOffsets(store, context.clock))
            return known[1]

    def committed_offsets(self) -> list[ConsumerOffsets]:
        """Returns the offsets of groups in the stores that are open."""
        open_now = self._stores()
        with self._lock:
            return [at for store_id, (store, at) in self._offsets.items() if open_now.get(store_id) is store]


def name_in_store(topic: str, queue: ReplayQueue) -> str:
    """Returns the name by which the store of a queue is asked for it: the generation's, which never changes."""
    return asked_name(lasting_name(topic, queue.generation))


def original_topic(said: str) -> str:
    """Returns the topic that ``archive%TOPIC`` replays; raises :class:`TopicNotFoundError` for any other name."""
    if not said.startswith(PREFIX):
        raise TopicNotFoundError(f"topic {said[:300]!r} is not here: its broker has it", hint=f"{PREFIX}TOPIC is")
    return said.removeprefix(PREFIX)


def _subscription(call: DoorCall[DoorContext], group: str, topic: str) -> dict[str, str]:
    """Returns a pull's fields that say what the group's members have said of the topic by their heartbeats."""
    if "sysFlag" not in call.frame.fields or call.number("sysFlag", 0) & PullFlag.SUBSCRIPTION:
        return {}
    known: Subscription | None = call.broker.clients.subscription(group, topic)
    if known is None:
        return {}
    is_older = known.version < call.number("subVersion", 0)  # then it gets all, and looks at the tags itself
    return {
        "sysFlag": str(call.number("sysFlag", 0) | PullFlag.SUBSCRIPTION),
        "subscription": "*" if is_older else known.expression,
        "expressionType": known.kind,
    }


class _Within:
    """Has a request handled anew from its beginning, as the door knows it."""

    def __init__(self, outer: DoorCall[Any]) -> None:
        self._outer = outer

    def again(self, call: DoorCall[Any]) -> None:
        self._outer.until_s = call.until_s
        self._outer.host.again(self._outer)

    def again_when_caught_up(self, call: DoorCall[Any]) -> None:
        self._outer.host.again_when_caught_up(self._outer)

    def now_s(self) -> float:
        return self._outer.host.now_s()


def renamed_answer(answer: RemotingAnswer, topic: str, queue_id: int) -> RemotingAnswer:
    """Returns the answer to a pull with records that say this topic and queue; lets go of what it was lent."""
    if answer.code != ResponseCode.SUCCESS:
        return answer
    body = answer.body
    joined = body if isinstance(body, (bytes, memoryview)) else b"".join(body)
    found = renamed_records(joined, topic, queue_id)
    if answer.release is not None:
        answer.release()
    return RemotingAnswer(answer.fields, found, answer.code, answer.remark)


def renamed_records(data: Buffer, topic: str, queue_id: int) -> bytes:
    """Returns records that say this topic and queue, else byte for byte; a checksum of a whole record no longer fits.

    Raises :class:`InvalidRequestError` for a name that their version has no room for.
    """
    name, at = topic.encode(), 0
    parts: list[Buffer] = []
    queue = _I32.pack(queue_id)
    view = memoryview(data)
    while at < len(view):
        size, magic = _HEAD.unpack_from(view, at)
        (flags,) = _I32.unpack_from(view, at + _SYS_FLAG)
        hosts = (20 if flags & _BORN_V6 else 8) + (20 if flags & _STORE_V6 else 8)
        body_at = at + _HOSTS + hosts + 24
        (body_bytes,) = _I32.unpack_from(view, body_at - 4)
        topic_at = body_at + body_bytes
        if magic == MAGIC_V2:
            before = 2 + _U16.unpack_from(view, topic_at)[0]
            said = _U16.pack(len(name)) + name
        elif len(name) <= MAX_TOPIC_BYTES_V1:
            before = 1 + view[topic_at]
            said = bytes((len(name),)) + name
        else:
            raise InvalidRequestError(f"a topic name of {len(name)} bytes")
        parts += (
            _I32.pack(size + len(said) - before), view[at + 4 : at + _QUEUE_ID], queue,
            view[at + _QUEUE_ID + 4 : topic_at], said, view[topic_at + before : at + size],
        )  # fmt: skip
        at += size
    return b"".join(parts)
