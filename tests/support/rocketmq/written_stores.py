"""Stores written by tierlog for somebody else to judge: full, of every kind, stopped cleanly or killed."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.stores.engines import tiny_settings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.append_results import Appended
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.format.client_batch import BatchEntry, encode_client_batch
from tierlog.tiering.format.properties import KEYS as KEYS_NAME
from tierlog.tiering.format.properties import TAGS as TAGS_NAME
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import encode_host
from tierlog.tiering.message.batch import Message

#: Longer than 127 characters, which only records of version 2 can name.
LONG_TOPIC = "%RETRY%" + "a-group-with-a-long-name_" * 6
TOPICS = ("orders", "order-events_v2", LONG_TOPIC, "%RETRY%group|one")
#: Ten segments and several files of a queue and of RocketMQ's index after a few hundred messages.
_SIZES: dict[str, object] = {
    "hot__segment_bytes": 16_384,
    "hot__queue_file_units": 5,
    "index__classic_slots": 50,
    "index__classic_items": 150,
}
KEYS = ("k1", "k2", "k3", "Aa", "BB", "订单-7", "clé", "😀", "ORDER")
#: Addresses of clients, and as Java writes them.
_CLIENTS = (
    (bytes((10, 1, 2, 3)), "10.1.2.3"),
    (bytes.fromhex("20010db8") + bytes(11) + b"\x09", "[2001:db8:0:0:0:0:0:9]"),
)
TAGS = ("", "TagA", "TagB", "标签", "polygenelubricants")


@dataclass(frozen=True)
class Sent:
    """A message and where the store said it went."""

    message: Message
    appended: Appended
    #: As Java writes it.
    born_host: str = "0.0.0.0:0"

    @property
    def physical_offset(self) -> int:
        """Where its record begins: the end of its id."""
        return int(self.appended.message_id[-16:], 16)


@dataclass
class WrittenStore:
    """A store in the making, its clock and everything that was appended."""

    root: Path
    engine: Store
    clock: ManualClock
    settings: Settings
    cold_url: str | None
    chance: random.Random
    sent: list[Sent] = field(default_factory=list)

    @classmethod
    @contextmanager
    def make(cls, folder: Path, seed: int, *, cold: bool = False, **settings: object) -> Iterator[WrittenStore]:
        """Inside the context the store is open, with nothing running in the background."""
        clock, chosen = ManualClock(), tiny_settings(**{**_SIZES, **settings})
        cold_url = f"file://{folder / 'cold'}" if cold else None
        engine = Store.open(folder / "store", settings=chosen, cold_url=cold_url, clock=clock)
        try:
            yield cls(folder / "store", engine, clock, chosen, cold_url, random.Random(seed))
        finally:
            engine.close()

    @property
    def end(self) -> int:
        """The log's end."""
        return self.engine._hot.log.end

    @property
    def border(self) -> int:
        """Where the log begins."""
        return self.engine._hot.border

    def append(self, messages: Iterable[Message]) -> None:
        """Append as one batch, flushed, two seconds after the one before."""
        batch = list(messages)
        self.clock.advance(2_000)
        placed = self.engine.append(batch)
        self.sent += [Sent(message, where) for message, where in zip(batch, placed, strict=True)]

    def append_mixed(self, count: int, *, most_bytes: int = 1_500) -> None:
        """Append ``count`` messages of every kind, in batches."""
        self._create_topics()
        while count > 0:
            batch = min(count, self.chance.randrange(1, 9))
            self.append(self._any_message(most_bytes) for _ in range(batch))
            count -= batch

    def append_from_clients(self, count: int) -> None:
        """Append messages as clients of RocketMQ send them, single ones and client batches in one append."""
        self._create_topics()
        while count > 0:
            messages, sent = self.engine.client_messages(), []
            self.clock.advance(2_000)
            for _ in range(self.chance.randrange(1, 4)):
                ip, host = self.chance.choice(_CLIENTS)
                first = self._any_message(900)
                born_ms = first.born_ms or 0
                batch = [replace(self._any_message(900), topic=first.topic, born_ms=born_ms) for _ in range(4)]
                if self.chance.random() < 0.5:
                    entries = [BatchEntry(self.chance.getrandbits(31), one.body, _text_of(one)) for one in batch]
                    messages.add_batch(
                        first.topic, first.queue_id, encode_client_batch(entries), born_ms=born_ms,
                        born_host=encode_host(ip, 54321), reconsume_times=self.chance.randrange(3),
                    )  # fmt: skip
                else:
                    batch = [first]
                    messages.add(
                        first.topic, first.queue_id, first.body, _text_of(first) + b"WAIT\x01true", flag=-5,
                        sys_flag=0x2, born_ms=born_ms, born_host=encode_host(ip, 54321), reconsume_times=16,
                        prepared_offset=77,
                    )  # fmt: skip
                sent += [(one, f"{host}:54321") for one in batch]
            placed = self.engine.append(messages)
            self.sent += [Sent(message, where, host) for (message, host), where in zip(sent, placed, strict=True)]
            count -= len(sent)

    def _create_topics(self) -> None:
        for topic in TOPICS:
            self.engine.create_topic(topic, 7)

    def _any_message(self, most_bytes: int) -> Message:
        chance = self.chance
        properties = {"traceparent": f"{chance.getrandbits(64):x}", "größe": "值=😀"} if chance.random() < 0.3 else {}
        if chance.random() < 0.3:
            properties["UNIQ_KEY"] = f"0A000001{chance.getrandbits(96):024X}"
        return Message(
            chance.choice(TOPICS),
            chance.randbytes(chance.choice((1, 2, 100, chance.randrange(1, most_bytes + 1)))),
            keys=chance.sample(KEYS, chance.randrange(4)),
            tag=chance.choice(TAGS),
            properties=properties,
            born_ms=self.clock.now_ms() - chance.randrange(5_000),
            queue_id=chance.choice((-1, -1, -1, 0, 6)),
        )

    def roll(self) -> None:
        """Close the active segment, however full it is."""
        self.engine._hot.roll()

    def dispatch(self) -> None:
        """Derive queues and index as far as the log goes, without moving the recovery point."""
        self.engine._hot.dispatch()

    def copy_to(self, target: Path) -> Path:
        """The directory as a killed process leaves it."""
        return Path(shutil.copytree(self.root, target))


@dataclass(frozen=True)
class JudgedStore:
    """A directory to be judged and what it must be found to hold; ``sent`` includes what was removed since."""

    root: Path
    settings: Settings
    sent: list[Sent]
    border: int
    end: int
    queues_are_complete: bool = True

    @property
    def hot(self) -> list[Sent]:
        """Messages whose records the directory holds."""
        return [sent for sent in self.sent if sent.physical_offset >= self.border]


def _text_of(message: Message) -> bytes:
    own = {KEYS_NAME: " ".join(message.keys), TAGS_NAME: message.tag, **message.properties}
    return encode_properties({name: value for name, value in own.items() if value})


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a store."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def tear_last_record(root: Path, sent: list[Sent], segment_bytes: int) -> None:
    """Leave the first half of the last record, and zeros behind it."""
    offset = sent[-1].physical_offset
    base = offset - offset % segment_bytes
    with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(offset - base)
        size = int.from_bytes(file.read(4))
        file.seek(offset - base + size // 2)
        file.write(bytes(size - size // 2))


def _judged(store: WrittenStore, root: Path, *, queues_are_complete: bool = True) -> JudgedStore:
    return JudgedStore(root, store.settings, list(store.sent), store.border, store.end, queues_are_complete)


def _closed(
    folder: Path, seed: int, fill: Callable[[WrittenStore], None], *, cold: bool = False, **settings: object
) -> JudgedStore:
    with WrittenStore.make(folder, seed, cold=cold, **settings) as store:
        fill(store)
    return _judged(store, store.root)


def _mixed(store: WrittenStore) -> None:
    store.append_mixed(250)
    store.engine.flush()
    store.append_mixed(60)
    store.roll()
    store.append_mixed(90)


def _clean(folder: Path, seed: int) -> JudgedStore:
    return _closed(folder, seed, _mixed)


def _ipv6_host(folder: Path, seed: int) -> JudgedStore:
    return _closed(folder, seed, _mixed, advertise="[2001:db8::7]:10911")


def _from_clients(folder: Path, seed: int) -> JudgedStore:
    def fill(store: WrittenStore) -> None:
        store.append_mixed(40)
        store.append_from_clients(150)
        store.roll()
        store.append_from_clients(20)

    return _closed(folder, seed, fill, advertise="[2001:db8::7]:10911")


def _from_clients_with_checksums(folder: Path, seed: int) -> JudgedStore:
    def fill(store: WrittenStore) -> None:
        store.append_from_clients(100)

    return _closed(folder, seed, fill, hot__record_checksum=True)


def _record_checksums(folder: Path, seed: int) -> JudgedStore:
    return _closed(folder, seed, _mixed, hot__record_checksum=True)


def _classic_index(folder: Path, seed: int) -> JudgedStore:
    return _closed(folder, seed, _mixed, index__classic=True)


def _classic_index_after_removal(folder: Path, seed: int) -> JudgedStore:
    return _closed(folder, seed, _archived, cold=True, index__classic=True)


def _killed_with_classic_index(folder: Path, seed: int) -> JudgedStore:
    """Messages come one by one, so that most index files end between two store times."""
    with WrittenStore.make(folder, seed, index__classic=True) as store:
        for number in range(300):
            store.append_mixed(1)
            if number == 200:
                store.engine.flush()
        store.dispatch()
        return _judged(store, store.copy_to(folder / "killed"))


def _nothing_sent(folder: Path, seed: int) -> JudgedStore:
    return _closed(folder, seed, lambda store: store.engine.create_topic("orders", 4))


def _large_bodies(folder: Path, seed: int) -> JudgedStore:
    def fill(store: WrittenStore) -> None:
        for size in (1, 255, 4_096, 65_536, 1 << 20, 3, (1 << 20) - 1, 500_000, 1 << 20, 1 << 20):
            store.append([Message("orders", store.chance.randbytes(size), keys=["big"], queue_id=0)])

    return _closed(folder, seed, fill, hot__segment_bytes=4 << 20)


def _rolled_last(folder: Path, seed: int) -> JudgedStore:
    def fill(store: WrittenStore) -> None:
        store.append_mixed(30)
        store.roll()

    return _closed(folder, seed, fill)


def _killed(folder: Path, seed: int) -> JudgedStore:
    with WrittenStore.make(folder, seed) as store:
        _mixed(store)
        store.dispatch()
        return _judged(store, store.copy_to(folder / "killed"))


def _killed_before_dispatch(folder: Path, seed: int) -> JudgedStore:
    with WrittenStore.make(folder, seed) as store:
        _mixed(store)
        return _judged(store, store.copy_to(folder / "killed"), queues_are_complete=False)


def _killed_before_the_first_checkpoint(folder: Path, seed: int) -> JudgedStore:
    with WrittenStore.make(folder, seed) as store:
        store.append_mixed(120)
        return _judged(store, store.copy_to(folder / "killed"), queues_are_complete=False)


def _killed_after_a_roll(folder: Path, seed: int) -> JudgedStore:
    with WrittenStore.make(folder, seed) as store:
        store.append_mixed(30)
        store.roll()
        store.dispatch()
        return _judged(store, store.copy_to(folder / "killed"))


def _torn(store: WrittenStore, root: Path) -> JudgedStore:
    """The last record is torn; what must be found ends before it."""
    segment_bytes = store.engine._hot.log.segment_bytes
    tear_last_record(store.copy_to(root), store.sent, segment_bytes)
    kept = store.sent[:-1]
    return JudgedStore(root, store.settings, kept, store.border, store.sent[-1].physical_offset, False)


def _killed_in_a_record(folder: Path, seed: int) -> JudgedStore:
    with WrittenStore.make(folder, seed) as store:
        _mixed(store)
        return _torn(store, folder / "killed")


def _recovered_from_a_torn_record(folder: Path, seed: int) -> JudgedStore:
    """We recovered it, went on, and were killed again."""
    with WrittenStore.make(folder, seed) as store:
        _mixed(store)
        torn = _torn(store, folder / "torn")
    engine = Store.open(torn.root, settings=store.settings, clock=store.clock)
    again = WrittenStore(torn.root, engine, store.clock, store.settings, None, store.chance, list(torn.sent))
    try:
        again.append_mixed(50)
        again.dispatch()
        return _judged(again, again.copy_to(folder / "killed"))
    finally:
        engine.close()


def _archived(store: WrittenStore) -> None:
    store.append_mixed(250)
    store.append([Message("short-lived", b"all of this queue is archived", queue_id=0)])
    store.engine.archive(everything=True, drop_hot=True)
    store.append_mixed(100)
    store.engine.flush()
    store.append_mixed(50)


def _first_segments_removed(folder: Path, seed: int) -> JudgedStore:
    return _closed(folder, seed, _archived, cold=True)


def _killed_after_removal(folder: Path, seed: int) -> JudgedStore:
    with WrittenStore.make(folder, seed, cold=True) as store:
        _archived(store)
        store.dispatch()
        return _judged(store, store.copy_to(folder / "killed"))


#: Every kind of directory that RocketMQ must be able to take over.
BUILDERS: dict[str, Callable[[Path, int], JudgedStore]] = {
    builder.__name__.removeprefix("_"): builder
    for builder in (
        _clean, _ipv6_host, _from_clients, _from_clients_with_checksums, _record_checksums, _nothing_sent,
        _large_bodies, _rolled_last, _first_segments_removed,
        _killed, _killed_before_dispatch, _killed_before_the_first_checkpoint, _killed_after_a_roll,
        _killed_after_removal, _killed_in_a_record, _recovered_from_a_torn_record, _classic_index,
        _classic_index_after_removal, _killed_with_classic_index,
    )
}  # fmt: skip
