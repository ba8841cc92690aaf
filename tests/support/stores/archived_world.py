"""Random histories of one store whose appends wait for the archive: kills, power cuts, lost volumes, lost answers.

One thread; a volume that is thought lost may live on and append during the restore and after it. What was sent and
what was promised is noted, and compared with what the newest volume gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import small_settings
from tests.support.world import World, read_all
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError, FencedError, ReadOnlyError, UnavailableError
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.object_store import ObjectStore

TOPICS = ("orders", "pays", "wide")


class VisitedStore(FaultyObjectStore):
    """Lets a visitor in at one of its calls, once."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.visits: dict[int, Callable[[], None]] = {}

    def _begin(self, operation: str, key: str) -> None:
        super()._begin(operation, key)
        visit = self.visits.pop(len(self.calls), None)
        if visit is not None:
            visit()


@dataclass
class Notes:
    """Numbers of messages, in the order of the log."""

    order: list[int] = field(default_factory=list)
    """Sent and not known to be lost."""
    archived: set[int] = field(default_factory=set)
    flushed: set[int] = field(default_factory=set)


class ArchivedWorld:
    """One run; ``steps`` counts what was done."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(settings=small_settings())
        self.bucket = VisitedStore(self.world.objects)
        self.notes = Notes()
        self.steps: dict[str, int] = {}
        self._sent = 0
        self._volumes = 1
        self._zombies: list[Store] = []
        self._is_visiting = False
        self.engine = self._open()
        self.engine.archive()  # a store that has never reached its bucket has nothing to restore

    def run(self, count: int) -> None:
        """Random steps, then everything is compared."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (9, self.append_archived), (4, self.append_flushed), (3, self.append_async), (2, self.archive),
            (1, self.archive_everything), (1, self.drop_hot), (1, self.reopen), (1, self.kill), (1, self.power_cut),
            (2, self.lose_volume), (1, self.roll), (1, self.round), (4, self.spoil), (1, self.haunt),
        ]  # fmt: skip
        for _ in range(count):
            step = self.chance.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
            self.steps[step.__name__] = self.steps.get(step.__name__, 0) + 1
            self.world.clock.advance(self.chance.randrange(3000))
            step()
        self.lose_volume()
        assert self.engine.check(deep=True) == []

    # ---- steps

    def append_archived(self) -> None:
        self._append(Durability.ARCHIVED)

    def append_flushed(self) -> None:
        self._append(Durability.FLUSHED)

    def append_async(self) -> None:
        self._append(Durability.ASYNC)

    def archive(self) -> None:
        self._unless_unavailable(self.engine.archive)

    def archive_everything(self) -> None:
        self._unless_unavailable(lambda: self.engine.archive(everything=True))

    def drop_hot(self) -> None:
        self._unless_unavailable(lambda: self.engine.archive(everything=True, drop_hot=True))

    def roll(self) -> None:
        self.engine._hot.roll()

    def round(self) -> None:
        self._unless_unavailable(self.engine.run_tiers)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = self._open()
        assert self.numbers() == sorted(self.notes.order)

    def kill(self) -> None:
        """A killed process loses nothing that it had written."""
        self.world.fs.kill()
        self.engine = self._open()
        assert self.numbers() == sorted(self.notes.order)

    def power_cut(self) -> None:
        """The unflushed end of the log may be gone."""
        self.world.fs = self.world.fs.crash(self.chance.randrange(1 << 30), lose_everything=self.chance.random() < 0.3)
        self._zombies.clear()
        self.engine = self._open()
        self._lost_the_end("power cut", self.notes.flushed)

    def spoil(self) -> None:
        """The next call of a kind fails, or its answer is lost."""
        fail = self.chance.choice((self.bucket.fail_before, self.bucket.fail_after))
        fail(self.chance.choice(("*", "put", "put", "get", "head")), self.chance.choice(("*", "*/tail/*", "*/tail/*")))

    def haunt(self) -> None:
        """A volume that was taken over goes on appending: nobody is told that it worked."""
        for zombie in self._zombies:
            try:
                zombie.append([self._message()], Durability.ARCHIVED)
            except (FencedError, ReadOnlyError, ConflictError, UnavailableError):
                continue
            raise AssertionError("a fenced volume acknowledged a message")

    def lose_volume(self) -> None:
        """The volume is gone, or only thought to be: then it appends while another takes the store over."""
        old = self.engine
        if self.chance.random() < 0.6:
            for call in self.chance.sample(range(1, 25), 4):
                self.bucket.visits[len(self.bucket.calls) + call] = lambda: self._append_beside(old)
        while True:
            try:
                self.engine = self._open(f"volume{self._volumes}", restore=True)
                break
            except UnavailableError:
                continue
        self.bucket.heal()
        self.bucket.visits.clear()
        self._volumes += 1
        self._zombies.append(old)
        self._lost_the_end("restore", self.notes.archived)

    # ---- helpers

    def _open(self, volume: str | None = None, *, restore: bool = False) -> Store:
        volume = volume or f"volume{self._volumes - 1}"
        while True:
            engine = self.world.open(volume, restore=restore, objects=self.bucket)
            if engine.read_only_reason is None:
                return engine
            engine.close()

    def _message(self) -> Message:
        self._sent += 1
        text = f"m {self._sent}".encode() + b"." * self.chance.choice((5, 60, 60, 300, 1500))
        return Message(self.chance.choice(TOPICS), text, [f"key-{self._sent}"], queue_id=self.chance.choice((-1, 0, 1)))

    def _append(self, durability: Durability) -> None:
        messages = [self._message() for _ in range(self.chance.choice((1, 1, 2, 5)))]
        numbers = [*range(self._sent - len(messages) + 1, self._sent + 1)]
        self.notes.order += numbers
        try:
            self.engine.append(messages, durability)
        except UnavailableError:
            self.notes.flushed.update(self.notes.order)
            return
        if durability is not Durability.ASYNC:
            self.notes.flushed.update(self.notes.order)
        if durability is Durability.ARCHIVED:
            self.notes.archived.update(self.notes.order)

    def _append_beside(self, old: Store) -> None:
        if self._is_visiting:
            return
        self._is_visiting = True
        try:
            self._append_to(old)
        finally:
            self._is_visiting = False

    def _append_to(self, old: Store) -> None:
        message = self._message()
        number = self._sent
        if old.read_only_reason is None:
            self.notes.order.append(number)
        try:
            old.append([message], Durability.ARCHIVED)
        except (FencedError, ReadOnlyError, ConflictError, UnavailableError):
            return
        self.notes.archived.update(self.notes.order)

    def _unless_unavailable(self, step: Callable[[], object]) -> None:
        try:
            step()
        except UnavailableError:
            return

    def _lost_the_end(self, how: str, promised: set[int]) -> None:
        """Only messages behind all that are there may be missing, and none that was promised; each is there once."""
        found = self.numbers()
        assert len(found) == len(set(found)), f"{how}: a message is there twice"
        kept = self.notes.order[: len(found)]
        assert found == sorted(kept), f"{how}: not the first {len(found)} of {self.notes.order}: {found}"
        assert promised <= set(found), f"{how}: lost {sorted(promised - set(found))}"
        self.notes.order = kept
        self.notes.flushed &= set(kept)
        self.notes.flushed |= set(kept)

    def numbers(self) -> list[int]:
        """All messages that pulls give, by number."""
        found = []
        for topic in self.engine.topics():
            for queue in topic.queues:
                messages = read_all(self.engine, topic.name, queue.queue_id)
                found += [int(message.record.body.split(b".")[0].split()[1]) for message in messages]
        return sorted(found)
