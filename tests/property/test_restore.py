"""Any history of volumes of one store: no offset is ever given out twice, and what was archived stays readable.

Append, archive, tell the state, commit, lose the volume and restore, while the volumes before may go on appending.
"""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import FencedError, ReadOnlyError, StoreMismatchError
from tierlog.tiering.message.batch import Message

TOPICS = ("a", "b", "late")
Place = tuple[str, int, int]


class VolumesMachine(RuleBasedStateMachine):
    """Model: where every message went, and which of them the archive has been told to hold."""

    engine: Store

    @initialize()
    def make(self) -> None:
        self.world = World(settings=small_settings())
        self.sent = 0
        self.volumes = 1
        self.places: dict[Place, int] = {}
        self.physical: set[int] = set()
        #: Of the volume that may write: what only it holds, and what is safe.
        self.fresh: dict[int, tuple[str, int]] = {}
        self.safe: dict[int, tuple[str, int]] = {}
        self.ids: dict[int, str] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.fenced: list[Store] = []
        self.engine = self.world.open("0")
        self.engine.run_tiers()

    def send(self, engine: Store, topic: str, queue_id: int, count: int) -> dict[int, tuple[str, int]]:
        """Append and compare with everything that anybody was ever given."""
        engine.create_topic(topic, 4)
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        messages = [
            Message(topic, f"{topic} {number}".encode() + b"." * 90, (f"key-{number}",), queue_id=queue_id)
            for number in numbers
        ]
        for number, result in zip(numbers, engine.append(messages), strict=True):
            place = topic, queue_id, result.queue_offset
            assert place not in self.places, f"{place} was given to {self.places[place]} before"
            self.places[place] = number
            physical = int(result.message_id[16:], 16)
            assert physical not in self.physical
            self.physical.add(physical)
        topic_id = engine.topic(topic).topic_id
        assert self.ids.setdefault(topic_id, topic) == topic
        return dict.fromkeys(numbers, (topic, queue_id))

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 3), count=st.integers(1, 12))
    def append(self, topic: str, queue_id: int, count: int) -> None:
        self.fresh |= self.send(self.engine, topic, queue_id, count)

    @rule(drop_hot=st.booleans())
    def archive(self, drop_hot: bool) -> None:
        self.engine.archive(everything=True, drop_hot=drop_hot)
        self.safe |= self.fresh
        self.fresh = {}

    @rule(ms=st.sampled_from([1_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.world.clock.advance(ms)
        self.engine.run_tiers()

    @precondition(lambda self: self.safe)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        topic, queue_id = self.safe[data.draw(st.sampled_from(sorted(self.safe)))]
        page = self.engine.pull(topic, queue_id, self.committed.get((topic, queue_id), 0), 3)
        self.engine.groups.commit("g", {(topic, self.engine.store_id, queue_id): page.next_offset})
        self.committed[topic, queue_id] = page.next_offset

    @rule(told=st.booleans())
    def lose_the_volume(self, told: bool) -> None:
        """``told``: the archive heard of everything a minute after it happened."""
        if told:
            self.world.clock.advance(61_000)
            self.engine.run_tiers()
        groups = self.world.state().groups
        known = {(each.topic, each.queue_id): each.offset for group in groups for each in group.offsets}
        self.fenced.append(self.engine)
        self.engine = self.world.open(str(self.volumes), restore=True)
        self.volumes += 1
        self.fresh = {}
        self.committed = known
        if known:
            store_id = self.engine.store_id
            kept = {(topic, store_id, queue_id): offset for (topic, queue_id), offset in known.items()}
            assert self.engine.groups.committed("g").offsets == kept

    @precondition(lambda self: self.fenced)
    @rule(topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 3), count=st.integers(1, 5), data=st.data())
    def append_to_a_fenced_one(self, topic: str, queue_id: int, count: int, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.fenced))
        if old.read_only_reason is None:
            self.send(old, topic, queue_id, count)

    @precondition(lambda self: self.fenced)
    @rule(data=st.data())
    def a_fenced_one_archives(self, data: st.DataObject) -> None:
        old, head = data.draw(st.sampled_from(self.fenced)), self.world.head()
        with contextlib.suppress(FencedError, ReadOnlyError, StoreMismatchError):  # one with nothing to do asks nobody
            old.archive(everything=True)
        assert self.world.head() == head

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.archive(drop_hot=True)
        assert self.engine.check(deep=True) == []
        found: dict[int, tuple[str, int]] = {}
        for info in self.engine.topics():
            for queue in info.queues:
                for number in numbers_of(read_all(self.engine, info.name, queue.queue_id)):
                    assert number not in found, f"message {number} is there twice"
                    found[number] = info.name, queue.queue_id
        assert self.safe.items() <= found.items()


TestVolumes = VolumesMachine.TestCase
TestVolumes.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
