"""Stores of one archive beside plain lists of everything appended, and every step that moves messages about.

Sizes are tiny: a few dozen messages fill a segment, twenty keys an index file, three entries a manifest page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import cast

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.index.hot_look_ups import verify_hot_keys
from tests.support.index.index_merge import Shape, merge, mergeable, neighbours
from tests.support.oracles.plain_search import Held, Kept, Tally, check_all_pages
from tests.support.stores.removal_world import Killed, WatchedStore, kill_at
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.searcher import StoreSearch, search
from tierlog.index.search.store_search import ArchiveSearch, TieredStoreSearch
from tierlog.service.archive.archive import Archive
from tierlog.service.config.settings import ColdSettings, HotSettings, IndexSettings, Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, Tier, TimeAxis
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore

URL = "memory://archive"
DAY_MS = 86_400_000
#: The first two collide: with any one key, and with each other's name as the key.
TOPICS = ("Aa", "BB", "TopicTest")
#: Java's hash of ``TopicTest#tbaekxa`` is -2^31; the rest are colliding, combining and astral ones.
KEYS = ("Aa", "BB", "tbaekxa", "ключ", "e\u0301", "\u00e9", "\U0001d518\U0001f511", "\uffff", "often")
ABSENT = "absent"
WHOLE = Shape()


@dataclass(frozen=True)
class Sizes:
    """How small everything is."""

    segment_bytes: int = 16_384
    slots: int = 8
    items: int = 20
    inline_entries: int = 4
    page_entries: int = 3
    cold_retention_ms: int = 0
    cache_bytes: int = 16 << 20


@dataclass(frozen=True)
class Erased:
    """What was asked to be erased, and how many messages there were."""

    query: Query
    sent: int

    def hides(self, number: int, kept: Kept) -> bool:
        """Whether a message is among them."""
        asked = self.query
        return (
            number < self.sent
            and kept.topic == asked.topic
            and (asked.key is None or asked.key in kept.keys)
            and asked.from_ms <= kept.store_ms < asked.to_ms
        )


@dataclass(frozen=True)
class Sending:
    """One message to be appended; its body is made unique."""

    topic: str
    keys: tuple[str, ...] = ()
    skew_ms: int = 0
    """Its born time is so much later than the clock; clocks of clients are days off either way."""
    size: int = 20
    queue_id: int = -1


class LookUpStore:
    """One store on a disk of its own."""

    def __init__(self, world: LookUpWorld, store_id: str) -> None:
        self.world = world
        self.store_id = store_id
        self.root = Path(f"/{store_id}")
        self.fs = CrashFileSystem()
        self.objects = WatchedStore(world.objects)
        self.sent: list[Kept] = []
        self.erased: list[Erased] = []
        self.randomness = SeededRandomness(len(store_id))
        self._opens = 0
        self.engine = self.open()
        self.engine.archive()  # the archive is there from the first contact on

    def open(self) -> Store:
        """Start the process, whatever became of the one before."""
        self._opens += 1
        self.fs.kill()
        self.objects = WatchedStore(self.world.objects)
        self.engine = Store.open(
            self.root, settings=self.world.settings(), cold_url=URL, store_id=self.store_id, clock=self.world.clock,
            fs=self.fs, randomness=SeededRandomness(1000 * len(self.store_id) + self._opens),
            objects=cast(ObjectStore, self.objects),
        )  # fmt: skip
        return self.engine

    # steps

    def append(self, batch: Sequence[Sending]) -> None:
        """One batch: all of it has one store time."""
        now_ms = self.world.clock.now_ms()
        messages = []
        for number, each in enumerate(batch, len(self.sent)):
            body = f"{self.store_id} {number} ".encode().ljust(each.size, b".")
            born_ms = max(0, now_ms + each.skew_ms)
            messages.append(Message(each.topic, body, each.keys, born_ms=born_ms, queue_id=each.queue_id))
        for message, at in zip(messages, self.engine.append(messages), strict=True):
            assert message.born_ms is not None
            self.sent.append(
                Kept(
                    self.store_id, int(at.message_id[-16:], 16), at.store_ms, message.born_ms, message.topic,
                    tuple(dict.fromkeys(message.keys)), message.body,
                )
            )  # fmt: skip

    def roll(self) -> None:
        """Begin a new segment."""
        self.engine._hot.roll()

    def seal(self) -> None:
        """Seal the index file that is written."""
        self.engine._hot.dispatch()
        self.engine._index.seal()

    def compact(self) -> None:
        """Compact what is sealed."""
        self.engine._index.compact_sealed()

    def dispatch(self) -> None:
        """Derive queues and index, and note how far."""
        self.engine.flush()

    def archive_rolled(self) -> None:
        """Archive what is rolled, and publish what of the index may be."""
        self.engine.archive()

    def archive_everything(self) -> None:
        """Archive to the end of the log."""
        self.engine.archive(everything=True)

    def drop_hot(self) -> None:
        """Archive everything and raise the border to its end."""
        self.engine.archive(everything=True, drop_hot=True)

    def drop_archived(self) -> None:
        """Raise the border over what is archived and indexed by now."""
        self.engine.archive(drop_hot=True)

    def round(self) -> None:
        """A turn of the background: rolling and sealing by age, archiving, removal, expiry, rewriting."""
        self.engine.run_tiers()

    def rewrite(self) -> None:
        """Take erasures and expiry to their end."""
        for _ in range(200):
            if not self.engine.removal.run_once():
                return
        raise AssertionError("removal does not come to an end")

    def reopen(self) -> None:
        """A clean stop and start."""
        self.engine.close()
        self.open()

    def kill(self) -> None:
        """The process dies."""
        self.open()

    def power_cut(self, seed: int = 0) -> None:
        """The machine dies: everything acknowledged was flushed."""
        self.fs = self.fs.crash(seed, lose_everything=seed % 3 == 0)
        self.open()

    def killed_at(self, step: Callable[[], object], request: int, *, after: bool) -> bool:
        """Take a step, and die at its n-th request to the bucket; whether it came so far."""
        kill_at(self.objects, request, after=after)
        try:
            step()
        except Killed:
            self.open()
            return True
        self.objects.before = self.objects.after = lambda *_: None
        return False

    def erase(self, query: Query) -> None:
        """Erase, if there is such a topic, and take note."""
        if self.engine._hot.topics.find(query.topic) is not None:
            self.erased.append(Erased(query, len(self.sent)))
            self.engine.removal.erase(query)

    def retain(self, topic: str, retention_ms: int | None) -> None:
        """Let a topic's archived messages expire so much later."""
        if self.engine._hot.topics.find(topic) is not None:
            self.engine.removal.configure(topic, cold_retention_ms=retention_ms)

    def merge(self, run: int, first: int, count: int, shape: Shape = WHOLE, *, commit: bool = True) -> bool:
        """A job beside the store replaces neighbouring index objects by some of the next level."""
        manifest = self.manifest()
        runs = [entries for entries in mergeable(manifest, manifest.refresh()) if len(entries) > 1]
        if not runs:
            return False
        chosen = neighbours(runs[run % len(runs)], first, max(2, count))
        return bool(merge(manifest, chosen, self.randomness, shape, commit=commit))

    def manifest(self) -> ManifestStore:
        """The manifest as a process beside the store sees it, nothing of it in memory yet."""
        options = self.world.settings().cold_options()
        return ManifestStore(
            self.world.objects,
            ColdKeys(self.store_id),
            randomness=self.randomness,
            options=options,
            clock=self.world.clock,
        )

    # what must be seen

    def _visible(self) -> Iterable[Kept]:
        for number, kept in enumerate(self.sent):
            if not any(erased.hides(number, kept) for erased in self.erased):
                yield kept

    def held(self) -> list[Held]:
        """What the store itself must find: hot copies do not expire."""
        border = self.engine._hot.border
        return [Held(kept, Tier.HOT) for kept in self._visible() if kept.offset >= border] + self._archived(border)

    def archived(self) -> list[Held]:
        """What a reader of the archive alone must find."""
        return self._archived(1 << 62)

    def _archived(self, end: int) -> list[Held]:
        head = self.manifest().refresh()
        end = min(end, head.archived_to)
        topic_ids = {topic.topic_id: topic.name for topic in self.engine._hot.topics.all()}
        below_ms = {topic_ids[topic_id]: ms for topic_id, ms in head.expired}
        return [
            Held(kept, Tier.COLD)
            for kept in self._visible()
            if head.cold_min <= kept.offset < end and kept.store_ms >= below_ms.get(kept.topic, 0)
        ]

    def verify_hot_keys(self, topic: str) -> None:
        """Every key of a topic, looked up among what is hot."""
        kept = [each.kept for each in self.held() if each.tier is Tier.HOT and each.kept.topic == topic]
        kept.sort(key=lambda each: each.offset, reverse=True)
        held = {key: [(each.offset, each.body) for each in kept if key in each.keys] for key in (ABSENT, *KEYS)}
        verify_hot_keys(self.engine, topic, held)

    def search(self) -> StoreSearch:
        """The store's part of a query over several stores."""
        engine = self.engine
        return TieredStoreSearch(self.store_id, engine._hot, engine._index, engine._cold_index, engine._known)


@dataclass
class LookUpWorld:
    """A bucket, a clock, and the stores that share them."""

    sizes: Sizes = field(default_factory=Sizes)
    clock: ManualClock = field(default_factory=ManualClock)
    store_ids: tuple[str, ...] = ("one",)
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.objects = MemoryObjectStore(self.clock)
        self.stores = [LookUpStore(self, store_id) for store_id in self.store_ids]
        #: A reader that has been there all the time, with what it remembers.
        self.cold = self.cold_engine()

    def settings(self) -> Settings:
        """Tiny sizes."""
        sizes = self.sizes
        return Settings(
            advertise="10.0.0.1:7777",
            hot=HotSettings(
                segment_bytes=sizes.segment_bytes, queue_file_units=40, default_queues=2, retention_ms=3 * DAY_MS
            ),
            index=IndexSettings(slots=sizes.slots, items=sizes.items),
            cold=ColdSettings(
                frame_bytes=4096, max_inline_entries=sizes.inline_entries, page_entries=sizes.page_entries,
                retention_ms=sizes.cold_retention_ms, cache_bytes=sizes.cache_bytes, disk_cache_bytes=0,
            ),
        )  # fmt: skip

    def cold_engine(self, objects: ObjectStore | None = None) -> Archive:
        """A reader of the archive alone that was just started."""
        return Archive.open(URL, settings=self.settings(), clock=self.clock, objects=objects or self.objects)

    def sweep(self) -> None:
        """A day later nobody may need what left the manifest; it is deleted."""
        self.clock.advance(DAY_MS + 3_600_000)
        for store in self.stores:
            for part in (store.engine._archive_mover, store.engine._archived):
                assert part is not None
                part.sweep_due()

    def readers(self) -> list[tuple[str, Callable[[Query], Answer], list[Held]]]:
        """Every way to ask, and what must be found so."""
        archived = [each for store in self.stores for each in store.archived()]
        ways: list[tuple[str, Callable[[Query], Answer], list[Held]]] = [
            (store.store_id, store.engine.query, store.held()) for store in self.stores
        ]
        ways.append(("archive", self.cold.query, archived))
        if len(self.stores) > 1:
            held = [each for store in self.stores for each in store.held()]
            ways.append(("together", lambda query: search([store.search() for store in self.stores], query), held))
            first, *others = self.stores
            mixed = first.held() + [each for store in others for each in store.archived()]
            ways.append(("one of them as archive only", lambda query: search(self._mixed(), query), mixed))
        return ways

    def _mixed(self) -> list[StoreSearch]:
        first, *others = self.stores
        indexes = {store_id: store.index for store_id, store in self.cold._stores.items()}
        return [first.search(), *(ArchiveSearch(each.store_id, indexes[each.store_id]) for each in others)]

    def ask(self, query: Query, *, most_pages: int = 1000) -> None:
        """Ask everybody for all pages, or so many, and compare."""
        for name, ask, held in self.readers():
            try:
                check_all_pages(ask, query, held, self.tally, most=most_pages)
            except TopicNotFoundError:
                assert not [each for each in held if each.kept.topic == query.topic], f"{name} knows no {query.topic}"
            except AssertionError as error:
                raise AssertionError(f"asked of {name}: {error}") from error

    def ask_everything(self, *, one_in: int = 1) -> None:
        """Every topic and key, or one in so many, axes and orders in turn."""
        turns = cycle(product(TimeAxis, Order, (50, 1000)))
        for topic, key in [*product(TOPICS, (None, ABSENT, *KEYS))][::one_in]:
            axis, order, limit = next(turns)
            self.ask(Query(topic, key, limit=limit, axis=axis, order=order))
        for store, topic in product(self.stores, TOPICS):
            store.verify_hot_keys(topic)

    def window(self, kind: str, first: float, second: float, axis: TimeAxis) -> tuple[int, int]:
        """A time range at a place given by two shares: of the messages, or of the borders between files."""
        times = sorted(kept.time_ms(axis) for store in self.stores for kept in store.sent)
        if kind == "ever" or not times:
            return 0, END_OF_TIME_MS
        low, high = sorted((times[int(first * (len(times) - 1))], times[int(second * (len(times) - 1))]))
        if kind == "instant":
            return low, low + 1
        if kind == "beside":
            return low + 1, low + 2
        if kind == "borders":
            borders = self.borders(axis) or times
            low, high = sorted((borders[int(first * (len(borders) - 1))], borders[int(second * (len(borders) - 1))]))
            return low, high + 1 if first < second else max(high, low + 1)
        return low, max(high, low + 1)

    def borders(self, axis: TimeAxis) -> list[int]:
        """Least and greatest times of index files, index objects and segments."""
        found: set[int] = set()
        for store in self.stores:
            manifest = store.manifest()
            head, reader = manifest.refresh(), manifest.reader()
            bounds = [entry.bounds for entry in manifest.all_index_entries(reader, head)]
            bounds += [entry.bounds for entry in manifest.log_entries(reader, head)]
            bounds += [file.bounds for file in store.engine._index.files()]
            for each in bounds:
                if each is not None:
                    found.update(each.on(axis))
        return sorted(found)
