"""Deliveries against a plain model: sends, receives, answers of all kinds, time, clean restarts and power cuts.

A second machine sets the group back and forth meanwhile. What must hold, whatever happened: nothing that is done comes
again, unless a power cut took back that it was done; nobody gets what another one has; no message group is out of
order; a dead letter is there once; and in the end every message is done or a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.service.delivery_world import DeliveryWorld
from tierlog.service.delivery.deliveries import Delivery
from tierlog.service.engine.groups import ResetTo
from tierlog.tiering.base.errors import InvalidHandleError, StoreError

QUEUES = 2
MAX_ATTEMPTS = 3
LINES = ("", "A", "B")
INVISIBLE_MS = 1_000

#: Queue and offset.
Place = tuple[int, int]


@dataclass
class Sent:
    """What the model knows of one message."""

    body: str
    line: str
    is_done: bool = False
    """Acknowledged or a dead letter, and not taken back."""
    was_done: bool = False
    """At any time."""
    is_noted: bool = False
    """No power cut takes back that it is done."""
    free_ms: int = 0
    """Nobody gets it before."""
    attempts: int = 0
    handles: list[str] = field(default_factory=list)


class DeliveryMachine(RuleBasedStateMachine):
    """One group over two queues; ``in_order`` decides how its consumers ask."""

    def __init__(self) -> None:
        super().__init__()
        self.world = DeliveryWorld()
        self.world.engine.create_topic("t", QUEUES)
        self.sent: dict[Place, Sent] = {}
        self.ends = [0] * QUEUES
        self.letters: set[str] = set()

    @initialize(in_order=st.booleans(), seed=st.integers(0, 1_000))
    def begin(self, in_order: bool, seed: int) -> None:
        self.in_order, self.seed = in_order, seed

    # what consumers and producers do

    @rule(queue_id=st.integers(0, QUEUES - 1), lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=5))
    def send(self, queue_id: int, lines: list[str]) -> None:
        for line in lines:
            body = f"m{len(self.sent)}"
            self.world.send(body, queue_id=queue_id, line=line)
            self.sent[queue_id, self.ends[queue_id]] = Sent(body, line)
            self.ends[queue_id] += 1

    def receive(self, limit: int) -> list[Delivery]:
        """Ask, and compare what comes with the model."""
        now_ms = self.world.clock.now_ms()
        found = self.world.receive(
            limit=limit, invisible_ms=INVISIBLE_MS, fifo=self.in_order, max_attempts=MAX_ATTEMPTS
        )
        self.learn_dead_letters()
        for one in found:
            record = one.message.record
            place = record.queue_id, record.queue_offset
            sent = self.sent[place]
            assert record.body.decode() == sent.body
            assert not sent.is_done, "what is done never comes again"
            assert now_ms >= sent.free_ms, "nobody else gets it while it is invisible"
            assert 1 <= one.attempt <= MAX_ATTEMPTS
            assert one.attempt == sent.attempts + 1, "every delivery counts"
            if self.in_order and sent.line:
                before = [
                    other
                    for (queue_id, offset), other in self.sent.items()
                    if queue_id == place[0] and offset < place[1] and other.line == sent.line
                ]
                assert all(other.was_done for other in before), "a message group is never out of order"
            sent.attempts, sent.free_ms = one.attempt, one.invisible_until_ms
            sent.handles.append(one.handle)
        return found

    def learn_dead_letters(self) -> None:
        bodies = [letter.record.body.decode() for letter in self.world.dead_letters()]
        assert len(bodies) == len(set(bodies)), "a dead letter is there once"
        assert self.letters <= set(bodies), "a dead letter stays"
        now_ms = self.world.clock.now_ms()
        for sent in self.sent.values():
            # one that a power cut brought back is given up a second time, which adds no letter
            is_again = sent.body in self.letters and sent.attempts == MAX_ATTEMPTS and now_ms >= sent.free_ms
            if is_again or sent.body in set(bodies) - self.letters:
                sent.is_done = sent.was_done = True
        self.letters = set(bodies)

    @rule(limit=st.integers(1, 6))
    def receive_some(self, limit: int) -> None:
        self.receive(limit)

    def given(self, number: int) -> tuple[Sent, str] | None:
        """One of the deliveries so far, and its handle."""
        every = [(sent, handle) for sent in self.sent.values() for handle in sent.handles if handle]
        return every[number % len(every)] if every else None

    def is_current(self, sent: Sent, handle: str) -> bool:
        return not sent.is_done and bool(sent.handles) and handle == sent.handles[-1]

    def answer(self, number: int, say: str) -> None:
        """Say something about a delivery: it counts if it is the last one of a message that is not done."""
        known = self.given(number)
        if known is None:
            return
        sent, handle = known
        deliveries, now_ms = self.world.deliveries, self.world.clock.now_ms()
        was_current = self.is_current(sent, handle)
        try:
            if say == "done":
                deliveries.acknowledge(handle)
                sent.is_done = sent.was_done = True
            elif say == "later":
                deliveries.nack(handle, delay_ms=300, reason="busy")
                sent.free_ms = now_ms + 300
            elif say == "longer":
                sent.handles.append(deliveries.extend(handle, 2_000))
                sent.free_ms = now_ms + 2_000
            else:
                deliveries.forward_to_dead_letters(handle)
        except InvalidHandleError:
            assert not was_current, "a good handle is taken"
        else:
            assert was_current, "the handle of a delivery that is over is refused"
            if say == "dead" or (say == "later" and sent.attempts == MAX_ATTEMPTS):
                sent.is_done = sent.was_done = True
            elif say == "later":
                sent.handles[-1] = ""  # none is good until it comes again
            self.learn_dead_letters()

    @rule(number=st.integers(0, 50), say=st.sampled_from(["done", "done", "done", "later", "longer", "dead"]))
    def answer_one(self, number: int, say: str) -> None:
        self.answer(number, say)

    @rule(ms=st.sampled_from([1, 299, 700, 1_000, 2_500]))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)

    # what happens to the store

    def note(self) -> None:
        for sent in self.sent.values():
            sent.is_noted = sent.is_done

    @rule()
    def save(self) -> None:
        self.world.deliveries.save()
        self.noted_attempts = {place: (sent.attempts, sent.free_ms) for place, sent in self.sent.items()}
        self.note()

    @rule()
    def restart(self) -> None:
        self.world.restart()
        self.note()
        self.noted_attempts = {place: (sent.attempts, sent.free_ms) for place, sent in self.sent.items()}

    noted_attempts: dict[Place, tuple[int, int]]

    @precondition(lambda self: self.sent)
    @rule()
    def cut_power(self) -> None:
        self.seed += 1
        self.world.cut_power(self.seed)
        self.world.start()
        noted = getattr(self, "noted_attempts", {})
        for place, sent in self.sent.items():
            sent.is_done = sent.is_noted
            sent.attempts, sent.free_ms = noted.get(place, (0, 0))
            sent.handles = [""] if sent.attempts else []

    # what holds

    @invariant()
    def the_committed_offset_is_not_above_what_is_not_done(self) -> None:
        try:
            offsets = self.world.engine.groups.committed("g").offsets
        except StoreError:
            return
        for (topic, _, queue_id), offset in offsets.items():
            if topic == "t":
                below = [sent for (queue, at), sent in self.sent.items() if queue == queue_id and at < offset]
                assert all(sent.is_done for sent in below)

    def teardown(self) -> None:
        """Consume all that is left: nothing is lost."""
        for _ in range(4 * len(self.sent) + 4):
            self.world.clock.advance(3_000)
            for one in self.receive(32):
                record = one.message.record
                self.world.deliveries.acknowledge(one.handle)
                sent = self.sent[record.queue_id, record.queue_offset]
                sent.is_done = sent.was_done = True
        assert all(sent.was_done for sent in self.sent.values()), "nothing is lost"
        self.world.deliveries.save()
        if self.sent:
            offsets = self.world.engine.groups.committed("g").offsets
            assert [offsets["t", "store", queue_id] for queue_id in range(QUEUES)] == self.ends
        self.world.close()


class ResetMachine(RuleBasedStateMachine):
    """One queue of ten messages that somebody sets to and fro: all from there on comes again, and only that."""

    def __init__(self) -> None:
        super().__init__()
        self.world = DeliveryWorld()
        self.world.send(*(f"{number}" for number in range(10)))
        self.done: set[int] = set()
        self.world.receive(limit=1, invisible_ms=INVISIBLE_MS)
        self.world.clock.advance(INVISIBLE_MS)

    @rule(limit=st.integers(1, 4), skipped=st.integers(0, 3))
    def consume(self, limit: int, skipped: int) -> None:
        found = self.world.receive(limit=limit, invisible_ms=INVISIBLE_MS)
        numbers = [one.message.record.queue_offset for one in found]
        assert not self.done & set(numbers)
        for one in found[skipped:]:
            self.world.deliveries.acknowledge(one.handle)
            self.done.add(one.message.record.queue_offset)
        self.world.clock.advance(INVISIBLE_MS)

    @rule(offset=st.integers(0, 10), is_noticed=st.booleans(), is_cut=st.booleans(), seed=st.integers(0, 99))
    def reset(self, offset: int, is_noticed: bool, is_cut: bool, seed: int) -> None:
        self.world.deliveries.save()
        self.world.engine.groups.reset(
            "g",
            ResetTo(offset=offset),
        )
        before = self.world.committed()
        assert before == offset
        self.done = set(range(offset))
        if is_noticed:
            self.world.receive(limit=1, invisible_ms=INVISIBLE_MS)
            self.world.clock.advance(INVISIBLE_MS)
        if is_cut:
            self.world.cut_power(seed)
            self.world.start()

    @precondition(lambda self: self.done)
    @rule()
    def restart(self) -> None:
        self.world.restart()

    def teardown(self) -> None:
        left = set(range(10)) - self.done
        found = {one.message.record.queue_offset for one in self.world.receive(limit=32)}
        assert found == left
        self.world.close()


TestDeliveries = DeliveryMachine.TestCase
TestDeliveries.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestResets = ResetMachine.TestCase
TestResets.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
