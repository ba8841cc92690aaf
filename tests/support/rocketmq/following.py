"""Followers of a real broker in the process of the tests."""

from __future__ import annotations

import contextlib
import random
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self, cast

from tests.support.processes.nodes import Node, RefusedError, ask
from tests.support.rocketmq.real_brokers import Acknowledged, RealBroker, until
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.service.follow.follower import SYSTEM_TOPICS, copied_groups
from tierlog.service.follow.followers import Followers
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.format.properties import UNIQ_KEY
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK, decode_record
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.rocketmq.remoting import copied_state

STORE_ID = "followed"
#: Of a record: topic, queue, queue offset and physical offset.
Place = tuple[str, int, int, int]
#: Of a group: the next offset to consume, by topic and queue.
Places = dict[tuple[str, int], int]


def settings_for(broker: RealBroker, **follow: object) -> Settings:
    """Of a follower of this broker."""
    named = _as_soon_as_possible(broker, follow)
    return Settings.load(overrides={f"follow.{name}": value for name, value in named.items()})


def _as_soon_as_possible(broker: RealBroker, follow: Mapping[str, object]) -> dict[str, object]:
    """Settings of a follower that waits for nothing longer than it has to."""
    return {
        "namesrv": broker.nameserver, "broker": broker.name, "retry_ms": 50, "max_retry_ms": 500,
        "tail_interval_ms": 1000, "copy_interval_ms": 1000, **follow,
    }  # fmt: skip


class FollowProcess(Node):
    """``tierlog follow`` beside one broker, killed and begun again as any node; its bucket is a directory if none is
    given."""

    def __init__(
        self, folder: Path, broker: RealBroker, bucket: str = "", endpoint_url: str = "", /, **follow: object
    ) -> None:
        named = _as_soon_as_possible(broker, follow)
        settings = {f"TIERLOG_FOLLOW_{name.upper()}": str(value) for name, value in named.items()}
        super().__init__(
            folder / "root", bucket or f"file://{folder / 'cold'}", endpoint_url, ("--store-id", STORE_ID), settings,
            command="follow",
        )  # fmt: skip

    def _own_settings(self) -> dict[str, str]:
        return {}  # it is in no cluster of ours

    @property
    def cold(self) -> Path:
        """The bucket, a directory."""
        return self.root.with_name("cold")

    def archived_to(self) -> int:
        """Physical offset below which all is in segments of the archive, as the bucket says."""
        with Archive.open(self.cold_url, store_id=STORE_ID) as archive:
            stores = cast("dict[str, dict[str, int]]", archive.stats()["stores"])
            return stores[STORE_ID]["archived_to"]

    def check_found(self, messages: Iterable[Acknowledged]) -> None:
        """Each is found by its key, once, and where its producer was told."""
        for wanted in messages:
            found = ask(self.url, f"/v1/topics/{wanted.topic}/messages?key={wanted.key}")["messages"]
            assert [(each["queue_id"], each["queue_offset"], each["physical_offset"]) for each in found] == [
                (wanted.queue, wanted.offset, wanted.physical_offset)
            ]

    def committed(self, group: str) -> Places:
        """The offsets of a group."""
        with contextlib.suppress(RefusedError):  # it was not copied yet
            told = ask(self.url, f"/v1/groups/{group}/offsets")["offsets"]
            return {(each["topic"], each["queue_id"]): each["offset"] for each in told}
        return {}

    def metrics(self, name: str) -> dict[str, float]:
        """Samples of a metric by their labels, as they are written."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = [line.rpartition(" ") for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return {labels.removeprefix(name): float(value) for labels, _, value in found}

    def gauge(self, name: str) -> float:
        """A number of the store; -1 while the store is closed, or the number is not known."""
        try:
            return sum(self.metrics(name).values() or [-1.0])
        except urllib.error.HTTPError:
            return -1.0

    def reach(self, end: int) -> None:
        """Wait until all of the broker's log below is durable here."""

        def is_there() -> bool:
            return self.gauge("tierlog_flushed_to_bytes") >= end

        until(is_there, lambda: f"{end} is followed: {self.said()}")


class Following:
    """One follower of one broker, begun; by the network unless ``store`` names the broker's directory."""

    def __init__(
        self, folder: Path, broker: RealBroker, store_id: str, *, objects: ObjectStore | None = None, **follow: object
    ) -> None:
        self.root = folder / store_id
        self.followers = Followers.of(
            folder, settings_for(broker, **follow), cold_url=f"file://{folder / 'cold'}", store_id=store_id,
            objects=objects,
        )  # fmt: skip
        self.followers.open()
        self.followers.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.followers.stop()

    @property
    def broker(self) -> FollowedBroker:
        """What the follower knows."""
        return self.followers.brokers()[0]

    @property
    def store(self) -> Store:
        """The open store."""
        assert self.broker.store is not None
        return self.broker.store

    @property
    def hot(self) -> HotStore:
        """Its log, and what of it may be published; to be looked at after the end, too."""
        return self.store._hot

    @property
    def archived_to(self) -> int:
        """Physical offset below which all is in segments of the archive."""
        return int(str(self.store.stats()["archived_to"] or 0))

    def told(self) -> str:
        """How it goes, in a line."""
        broker = self.broker
        return f"{broker.state}, error {broker.error}, end {broker.end}, the broker's {broker.live_max_offset}"

    def reach(self, end: int) -> None:
        """Wait until all of the broker's log below is durable here, and it says that it follows."""

        def is_there() -> bool:
            broker = self.broker
            assert broker.state not in (FollowState.DIVERGED, FollowState.REFUSED), broker.error
            return broker.state is FollowState.FOLLOWING and broker.end >= end

        until(is_there, lambda: f"{end} is followed: {self.told()}")


def committed(broker: RealBroker, group: str) -> Places:
    """The offsets of a group, as the broker tells its slaves."""
    found = next((each for each in copied_groups(copied_state(broker.client)) if each.name == group), None)
    return {} if found is None else dict(found.offsets)


def records_of(broker: RealBroker) -> list[Place]:
    """All records of ordinary topics in the files of a broker."""
    found, end = [], broker.bounds().max_offset
    for base, path in broker.segments.items():
        data, at = path.read_bytes(), 0
        while base + at < end and BLANK.unpack_from(data, at)[1] != MAGIC_BLANK:
            record = decode_record(data, at, physical_offset=base + at)
            if record.topic not in SYSTEM_TOPICS:
                found.append((record.topic, record.queue_id, record.queue_offset, record.physical_offset))
            at += record.size
    return found


def pulled_all(reader: StoreReader, places: Iterable[Place]) -> list[Place]:
    """What a consumer gets from the queues of these records, each read from its first offset to its end."""
    found = []
    for topic, queue in sorted({place[:2] for place in places}):
        offset, status = 0, PullStatus.FOUND
        while status is not PullStatus.NO_NEW_MESSAGE:
            page = reader.pull(topic, queue, offset, 1000)
            records = [message.record for message in page.messages]
            found += [(topic, queue, record.queue_offset, record.physical_offset) for record in records]
            offset, status = page.next_offset, page.status
    return found


def differing(root: Path, broker: RealBroker) -> list[int]:
    """Bases of the broker's segments whose bytes are not those of a store at ``root``, whose log may begin later."""
    ours, end, wrong = StorePaths(root), broker.bounds().max_offset, []
    begin = min(int(path.name) for path in ours.commitlog.iterdir() if path.name.isdigit())
    for base, path in broker.segments.items():
        if base < begin:
            continue
        size = min(broker.segment_bytes, end - base)
        if ours.segment(base).read_bytes()[:size] != path.read_bytes()[:size]:
            wrong.append(base)
    return wrong


def check_messages(store: Store, sent: Sequence[Acknowledged], seed: int, *, samples: int = 30) -> None:
    """Sampled messages are found by key and at their queue's offset, each once and as its producer was told."""
    assert sent
    for wanted in random.Random(seed).sample(sent, min(samples, len(sent))):
        told = (wanted.queue, wanted.offset, wanted.physical_offset, wanted.unique_id)
        found = store.query(Query(topic=wanted.topic, key=wanted.key)).messages
        at_its_offset = store.pull(wanted.topic, wanted.queue, wanted.offset, 1).messages
        assert [_told(each) for each in found] == [_told(each) for each in at_its_offset] == [told]


def _told(message: StoredMessage) -> tuple[int, int, int, str]:
    """Where it lies, and the id that its producer gave it."""
    record = message.record
    return record.queue_id, record.queue_offset, record.physical_offset, record.properties[UNIQ_KEY]
