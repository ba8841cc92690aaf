"""A store from which messages are erased and expire, beside a plain list of what must be seen of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.support.index.hot_look_ups import verify_hot_keys
from tests.support.stores.engines import small_settings
from tests.support.world import URL, World
from tierlog.index.search.query import Query
from tierlog.service.archive.readers import StoreReader
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import MessageNotFoundError
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, PullStatus
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.object_store import ObjectStore

KEYS = ("k0", "k1", "k2")


class Killed(BaseException):
    """The process is gone."""


class WatchedStore:
    """Tells ``before`` and ``after`` of every request (its number, what it does, its first argument)."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.requests = 0
        self.before: Callable[[int, str, object], None] = lambda *_: None
        self.after: Callable[[int, str, object], None] = lambda *_: None

    def __getattr__(self, name: str) -> Any:
        return partial(self._ask, name) if name != "close" else self.inner.close

    def _ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.requests += 1
        number, first = self.requests, arguments[0] if arguments else None
        self.before(number, name, first)
        answer = getattr(self.inner, name)(*arguments, **named)
        if name == "list":
            answer = iter(list(answer))
        self.after(number, name, first)
        return answer


@dataclass(frozen=True)
class Sent:
    """One message that was acknowledged, and where it went."""

    message: Message
    message_id: str
    queue_id: int
    queue_offset: int
    store_ms: int
    offset: int


@dataclass(frozen=True)
class Erased:
    """What was asked to be erased, and how many messages there were."""

    topic: str
    key: str | None
    from_ms: int
    to_ms: int
    sent: int


class RemovalWorld(World):
    """A small world, what was sent to its store and what was erased."""

    def __init__(self, *, url: str | None = URL, **sizes: object) -> None:
        super().__init__(settings=small_settings(**{"hot__retention_ms": 3 * 86_400_000, **sizes}), url=url)
        self.sent: list[Sent] = []
        self.erased: list[Erased] = []

    def append(self, engine: Store, count: int, topics: tuple[str, ...] = ("t", "u")) -> None:
        """So many messages, a second apart, over the topics in turn."""
        for _ in range(count):
            number = len(self.sent)
            self.clock.advance(1000)
            message = Message(
                topics[number % len(topics)], f"<body {number}>".encode() * 4, [KEYS[number % 3]],
                "A" if number % 2 else "B",
            )  # fmt: skip
            (at,) = engine.append([message])
            offset = int(at.message_id[-16:], 16)
            self.sent.append(Sent(message, at.message_id, at.queue_id, at.queue_offset, at.store_ms, offset))

    def fill(self, engine: Store) -> None:
        """Messages of two topics that are archived and gone from the volume, archived and hot, and hot only."""
        self.append(engine, 40)
        engine.archive(everything=True, drop_hot=True)
        self.append(engine, 24)
        engine.archive(everything=True)
        self.append(engine, 12)

    def erase(
        self, engine: Store, topic: str, key: str | None = None, from_ms: int = 0, to_ms: int = END_OF_TIME_MS
    ) -> dict[str, Any]:
        """Erase and take note."""
        self.erased.append(Erased(topic, key, from_ms, to_ms, len(self.sent)))
        return engine.removal.erase(Query(topic, key, from_ms, to_ms))

    def finish(self, engine: Store) -> None:
        """Archive everything and carry every erasure out."""
        engine.archive(everything=True)
        for _ in range(200):
            if not engine.removal.run_once():
                return
        raise AssertionError("erasing does not end")

    # what must be seen

    def is_erased(self, number: int) -> bool:
        """Whether the message of this number was erased."""
        one = self.sent[number]
        return any(
            number < asked.sent
            and one.message.topic == asked.topic
            and (asked.key is None or asked.key in one.message.keys)
            and asked.from_ms <= one.store_ms < asked.to_ms
            for asked in self.erased
        )

    def visible(self) -> list[Sent]:
        """What readers must see, in the order it was sent."""
        return [one for number, one in enumerate(self.sent) if not self.is_erased(number)]

    def has_expired(self, engine: Store, one: Sent) -> bool:
        """Whether the archive's head lets a message be expired."""
        assert engine._manifest is not None
        head = engine._manifest.head
        if head is None:
            return False
        below = {topic.name: dict(head.expired).get(topic.topic_id, 0) for topic in engine.topics()}
        return one.offset < head.cold_min or one.store_ms < below[one.message.topic]

    def verify(self, engine: Store) -> None:
        """Every way of reading shows exactly what is visible; hot copies do not expire."""
        present = [one for one in self.visible() if not self.has_expired(engine, one)]
        seen = [one for one in self.visible() if one in present or one.offset >= engine._hot.border]
        for topic in {one.message.topic for one in self.sent}:
            mine = [one for one in seen if one.message.topic == topic]
            assert bodies(pulled(engine, topic)) == by_queue(mine), topic
            assert bodies(pulled(engine, topic, "A")) == by_queue([one for one in mine if one.message.tag == "A"])
            assert asked(engine, Query(topic)) == [one.message.body for one in mine], topic
            for key in KEYS:
                keyed = [one.message.body for one in mine if key in one.message.keys]
                assert asked(engine, Query(topic, key)) == keyed, (topic, key)
            hot = [one for one in reversed(mine) if one.offset >= engine._hot.border]
            held = {key: [(one.offset, one.message.body) for one in hot if key in one.message.keys] for key in KEYS}
            verify_hot_keys(engine, topic, held)
        ids = {one.message_id for one in seen}
        for one in self.sent:
            if one.message_id in ids:
                assert engine.message(one.message_id).record.body == one.message.body
            else:
                assert not is_found(engine, one.message_id), one
        self.verify_archive(present)

    def verify_archive(self, seen: list[Sent]) -> None:
        """A reader of the archive alone shows nothing that is not visible, and all that is archived."""
        cold = self.cold()
        (manifest,) = cold._manifests.values()
        archived_to = manifest.refresh().archived_to
        known = {topic.name for topic in cold.topics()}
        for topic in {one.message.topic for one in self.sent} & known:
            mine = [one for one in seen if one.message.topic == topic and one.offset < archived_to]
            assert bodies(pulled(cold, topic)) == by_queue(mine), topic
            assert asked(cold, Query(topic)) == [one.message.body for one in mine], topic
            for key in KEYS:
                keyed = [one.message.body for one in mine if key in one.message.keys]
                assert asked(cold, Query(topic, key)) == keyed, (topic, key)

    def bucket_holds(self, text: bytes) -> bool:
        """Whether any named segment of the archive holds these bytes after decompression."""
        return bucket_holds(self, text)


def bucket_holds(world: World, text: bytes) -> bool:
    """Whether any named segment of a world's archive holds these bytes after decompression."""
    (manifest,) = world.cold()._manifests.values()
    head, reader = manifest.refresh(), manifest.reader()
    return any(text in SegmentReader(reader, entry).restore().data for entry in manifest.log_entries(reader, head))


def asked(engine: StoreReader, query: Query) -> list[bytes]:
    """Bodies that a query finds, oldest first."""
    found: list[bytes] = []
    cursor: str | None = None
    while True:
        page = Query(query.topic, query.key, query.from_ms, query.to_ms, 7, query.axis, Order.OLDEST, cursor)
        answer = engine.query(page)
        assert answer.coverage.complete, answer.coverage
        found += [message.record.body for message in answer.messages]
        cursor = answer.next_cursor
        if cursor is None:
            return found


def pulled(engine: StoreReader, topic: str, tag: str | None = None) -> dict[int, list[StoredMessage]]:
    """What a consumer gets of each queue that begins at 0 and goes where it is told."""
    found: dict[int, list[StoredMessage]] = {}
    (info,) = [each for each in engine.topics() if each.name == topic]
    for queue in info.queues:
        offset, mine = 0, found.setdefault(queue.queue_id, [])
        for _ in range(1000):
            result = engine.pull(topic, queue.queue_id, offset, 5, tag)
            mine += result.messages
            if result.status is PullStatus.NO_NEW_MESSAGE:
                break
            assert result.next_offset > offset, f"a consumer of {topic}/{queue.queue_id} spins at {offset}: {result}"
            offset = result.next_offset
        else:
            raise AssertionError("a consumer does not come to an end")
    return found


def bodies(found: dict[int, list[StoredMessage]]) -> dict[int, list[bytes]]:
    """Their bodies."""
    return {queue_id: [message.record.body for message in messages] for queue_id, messages in found.items() if messages}


def by_queue(sent: list[Sent]) -> dict[int, list[bytes]]:
    """Bodies of sent messages as pulls give them."""
    found: dict[int, list[bytes]] = {}
    for one in sent:
        found.setdefault(one.queue_id, []).append(one.message.body)
    return found


def is_found(engine: Store, message_id: str) -> bool:
    """Whether there is a message with this id."""
    try:
        engine.message(message_id)
    except MessageNotFoundError:
        return False
    return True


def kill_at(store: WatchedStore, number: int, *, after: bool) -> None:
    """End the process at its n-th request from now, before or after it happens; nobody answers it from then on."""
    first = store.requests

    def before(request: int, *_: object) -> None:
        if request - first >= number + after:
            raise Killed

    def done(request: int, *_: object) -> None:
        if after and request - first >= number:
            raise Killed

    store.before, store.after = before, done


def filled() -> RemovalWorld:
    """A world that was filled and closed."""
    world = RemovalWorld()
    engine = world.open()
    world.fill(engine)
    engine.close()
    return world
