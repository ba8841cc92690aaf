"""Random histories of volumes that are lost one after the other, with a last segment of a given kind, and salvaged.

One thread. Disks of lost volumes, and copies of living ones that went on by themselves, turn up in any order. What was
acknowledged is noted, and compared with what the newest volume gives once every disk was salvaged into it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from tests.support.stores.engines import small_settings
from tests.support.world import World, read_all
from tierlog.index.search.query import Query
from tierlog.service.cli.salvager import SalvageReport, salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.record import FIXED_BYTES_V1
from tierlog.tiering.message.batch import Message

ARCHIVED = ("orders", "pays", "big")
KEPT_OUT = "secret"
_LENGTHS = (5, 60, 60, 300, 1500)


class SalvagedWorld:
    """One run; ``steps`` counts what was done."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(settings=small_settings())
        self.steps: dict[str, int] = {}
        self.salvaged = 0
        #: Numbers by topic that were acknowledged.
        self._sent: dict[str, set[int]] = {topic: set() for topic in (*ARCHIVED, KEPT_OUT)}
        self._gone: set[int] = set()
        #: Of the topic that is kept out of the archive: what any disk holds that is not in use.
        self._on_disks: set[int] = set()
        self._disks: list[str] = []
        self._count = 0
        self._name = "volume0"
        self.engine = self.world.open(self._name)
        self.engine.create_topic(KEPT_OUT, 2)
        self._keep_out(self.engine)
        self.engine.archive()

    def run(self, last: str, volumes: int = 2, count: int = 12) -> None:
        """Volumes that end in a last segment of the kind, each with its history, then all disks are salvaged."""
        for _ in range(volumes):
            for _ in range(count):
                self._step()
            self._lose(last)
        for name in self.chance.sample(self._disks, len(self._disks)):
            self._salvage(name)
        for name in self._disks:
            report = self._run(name)
            assert (report.appended, report.not_saved) == (0, []), f"a further run on {name}: {report}"
        self._compare()

    # ---- steps

    def _step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (8, self.append), (2, self.append_full), (2, self.roll), (1, self.blank), (2, self.archive),
            (2, self.archive_everything), (1, self.drop_hot), (2, self.erase), (1, self.delete), (1, self.round),
            (1, self.copy), (2, self.salvage_one), (1, self.reopen),
        ]  # fmt: skip
        step = self.chance.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        self.steps[step.__name__] = self.steps.get(step.__name__, 0) + 1
        self.world.clock.advance(self.chance.choice((0, 0, 1, 3000)))
        step()

    def append(self) -> None:
        self._append(self.engine)

    def append_full(self) -> None:
        """The largest message that there is."""
        self._append_bytes(self.engine, 4096 - 8)

    def roll(self) -> None:
        self.engine._hot.roll()

    def blank(self) -> None:
        """A segment that holds nothing but a blank record."""
        self.engine._hot.roll()
        self.engine._hot.log.roll()

    def archive(self) -> None:
        self.engine.archive()

    def archive_everything(self) -> None:
        self.engine.archive(everything=True)

    def drop_hot(self) -> None:
        self.engine.archive(everything=True, drop_hot=True)

    def erase(self) -> None:
        """One or two messages that readers see, now and then to the end."""
        seen = [(topic, number) for topic in self._sent for number in self._seen(self.engine, topic)]
        for topic, number in self.chance.sample(seen, min(len(seen), self.chance.choice((1, 2)))):
            self.engine.removal.erase(Query(topic, f"key-{number}"))
            self._gone.add(number)
        if self.chance.random() < 0.6:
            self._finish()

    def delete(self) -> None:
        if "pays" in [topic.name for topic in self.engine.topics()]:
            self.engine.removal.delete_topic("pays")
            self._gone |= self._sent["pays"]
            self._finish()

    def round(self) -> None:
        self.world.clock.advance(61_000)
        self.engine.run_tiers()

    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.world.open(self._name)

    def copy(self) -> None:
        """A copy of the volume goes on by itself; the first to write to the archive is the volume."""
        self.engine.close()
        self._count += 1
        name = f"copy{self._count}"
        self.world.copy_volume(self._name, name)
        copy = self.world.open(name)
        for _ in range(self.chance.randrange(5)):
            self._append(copy)
        for _ in range(self.chance.choice((0, 0, 1, 3))):
            copy._hot.log.roll()
        self._put_aside(copy, name)
        self.engine = self.world.open(self._name)
        for _ in range(self.chance.randrange(1, 4)):
            self._append(self.engine)
        self.engine.archive(everything=True)

    def salvage_one(self) -> None:
        if self._disks:
            self._salvage(self.chance.choice(self._disks))

    # ---- last segments

    def _lose(self, last: str) -> None:
        """The volume goes with a last segment of this kind, and another takes over."""
        LAST[last](self)
        if self.chance.random() < 0.3:
            self.round()
        old = self._name
        self._put_aside(self.engine, old, killed=self.chance.random() < 0.5)
        self._count += 1
        self._name = f"volume{self._count}"
        self.engine = self.world.open(self._name, restore=True)

    def empty_after_a_roll(self) -> None:
        self.append()
        self.roll()

    def several_empty(self) -> None:
        self.append()
        self.roll()
        for _ in range(self.chance.randrange(1, 9)):
            self.engine._hot.log.roll()

    def one_message_between_empty_ones(self) -> None:
        for _ in range(self.chance.randrange(1, 5)):
            self.blank()
        self.append()
        self.several_empty()

    def full_to_the_byte(self) -> None:
        self.append()
        while True:
            room = self.engine._hot.log.room()
            if room >= 200:
                break
            self.roll()
        self._append_bytes(self.engine, room)
        assert self.engine._hot.log.room() == 0

    def one_full_record(self) -> None:
        self.roll()
        self.append_full()

    def only_a_blank_record(self) -> None:
        self.append()
        self.blank()

    def partial(self) -> None:
        self.append()

    def fillers_only(self) -> None:
        """All of the last archived segment was kept out of the archive, and more of it was not archived yet."""
        self.archive_everything()
        for archived in (True, False):
            for _ in range(3):
                self._append(self.engine, KEPT_OUT)
            if archived:
                self.archive_everything()

    def all_archived(self) -> None:
        self.append()
        self.archive_everything()

    def first_segments_gone(self) -> None:
        self.append()
        self.drop_hot()
        self.append()
        if self.chance.random() < 0.5:
            self.roll()

    # ---- helpers

    def _append(self, engine: Store, topic: str | None = None) -> None:
        topic = topic or self.chance.choice((*ARCHIVED, KEPT_OUT))
        messages = []
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            self._count += 1
            messages.append(self._message(topic, self._count, self.chance.choice(_LENGTHS)))
        engine.append(messages, Durability.FLUSHED)
        self._sent[topic] |= {_number(message.body) for message in messages}

    def _append_bytes(self, engine: Store, size: int) -> None:
        """A message whose record has exactly this size."""
        self._count += 1
        key = f"KEYS\x01key-{self._count}\x02"
        body = size - FIXED_BYTES_V1 - len("big") - len(key)
        number = b"%d." % self._count
        message = self._message("big", self._count, body - len(number))
        engine.append([message], Durability.FLUSHED)
        self._sent["big"].add(self._count)

    def _message(self, topic: str, number: int, length: int) -> Message:
        body = b"%d." % number + b"." * length
        return Message(topic, body, [f"key-{number}"], queue_id=self.chance.choice((0, 0, 1)))

    def _keep_out(self, engine: Store) -> None:
        topics = engine._hot.topics
        topics.set_options(topics.get(KEPT_OUT), archive=False, cold_retention_ms=None, hold=False)

    def _finish(self) -> None:
        """Erasures are carried out and closed."""
        self.engine.archive(everything=True)
        while self.engine.removal.run_once():
            pass

    def _put_aside(self, engine: Store, name: str, *, killed: bool = False) -> None:
        self._on_disks |= set(self._seen(engine, KEPT_OUT))
        if killed:
            self.world.fs.kill()
        else:
            engine.close()
        self._disks.append(name)

    def _run(self, name: str) -> SalvageReport:
        components = Components(
            self.world.settings.unsized(), self.world.clock, self.world.fs, SeededRandomness(77), self.world.objects
        )
        return salvage(self.world.place(name), components, LocalWriter(self.engine), lambda done, of: None)

    def _salvage(self, name: str) -> None:
        """Twice: the second run appends nothing."""
        self.salvaged += self._run(name).appended
        again = self._run(name)
        assert (again.appended, again.not_saved) == (0, []), f"a second run on {name}: {again}"

    def _seen(self, engine: Store, topic: str) -> list[int]:
        if topic not in [info.name for info in engine.topics()]:
            return []
        return [
            _number(message.record.body)
            for queue in engine.topic(topic).queues
            for message in read_all(engine, topic, queue.queue_id)
        ]

    def _compare(self) -> None:
        for topic, sent in self._sent.items():
            found = Counter(self._seen(self.engine, topic))
            wanted = (self._on_disks if topic == KEPT_OUT else sent) - self._gone
            assert set(found.values()) <= {1}, f"{topic}: more than once: {found - Counter(found.keys())}"
            assert wanted <= found.keys(), f"{topic}: lost {sorted(wanted - found.keys())}"
            assert not self._gone & found.keys(), f"{topic}: erased, and there: {sorted(self._gone & found.keys())}"
        assert self.engine.check(deep=True) == []


def _number(body: bytes) -> int:
    return int(body.split(b".", 1)[0])


LAST: dict[str, Callable[[SalvagedWorld], None]] = {
    step.__name__: step
    for step in (
        SalvagedWorld.empty_after_a_roll,
        SalvagedWorld.several_empty,
        SalvagedWorld.one_message_between_empty_ones,
        SalvagedWorld.full_to_the_byte,
        SalvagedWorld.one_full_record,
        SalvagedWorld.only_a_blank_record,
        SalvagedWorld.partial,
        SalvagedWorld.fillers_only,
        SalvagedWorld.all_archived,
        SalvagedWorld.first_segments_gone,
    )
}
