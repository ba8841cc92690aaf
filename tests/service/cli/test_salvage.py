"""What only a fenced volume holds is appended again to the one that took over: all of it, in order, and once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.engines import small_settings
from tests.support.world import STORE_ID, URL, World, numbers_of, read_all, send
from tierlog.index.search.query import Query
from tierlog.service.cli.salvager import PROPERTY, SalvageReport, salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import (
    FencedError,
    InvalidRequestError,
    ObjectStoreUnavailableError,
    StoreLockedError,
    StoreMismatchError,
)
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.record import host_text
from tierlog.tiering.message.batch import Message


@pytest.fixture
def world() -> World:
    return World(settings=small_settings())


def run(
    world: World, old: str, new: Store, *, progress: Callable[[int, int], None] = lambda done, of: None,
    target: LocalWriter | None = None,
) -> SalvageReport:  # fmt: skip
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(77), world.objects)
    return salvage(world.place(old), components, target or LocalWriter(new), progress)


def taken_over(world: World) -> Store:
    """Volume a archived messages 0 to 39, and acknowledged 40 to 59 that nobody else has; b took the store over."""
    old = world.open("a")
    for at in range(0, 40, 4):
        send(old, "orders", at, at + 4)
    old.archive(everything=True)
    for at in range(40, 60, 4):
        send(old, "orders", at, at + 4)
    properties = {"colour": "red"}
    paid = Message("pays", b"pays 0.", ("k",), "tag", properties, world.clock.now_ms() - 5, 1, "[fd00::7]:51334")
    old.append([paid])
    old.close()
    return world.open("b", restore=True)


def all_numbers(engine: Store, topic: str = "orders") -> list[int]:
    queues = engine.topic(topic).queues
    return sorted(number for queue in queues for number in numbers_of(read_all(engine, topic, queue.queue_id)))


def test_what_the_archive_lacks_comes_back_as_it_was(world: World) -> None:
    new = taken_over(world)
    assert all_numbers(new) == list(range(40))
    report = run(world, "a", new)
    assert (report.read, report.appended, report.skipped) == (21, 21, 0)
    assert all_numbers(new) == list(range(60))
    for queue_id in (0, 1):
        numbers = numbers_of(read_all(new, "orders", queue_id))
        assert numbers == sorted(numbers), "each queue keeps its order"
    (paid,) = read_all(new, "pays", 1)
    assert (paid.record.body, paid.keys, paid.tag, paid.record.queue_id) == (b"pays 0.", ["k"], "tag", 1)
    assert paid.record.born_ms == world.clock.now_ms() - 5
    assert host_text(paid.record.born_host) == "[fd00::7]:51334"
    assert paid.properties["colour"] == "red"
    volume_id, _, offset = paid.properties[PROPERTY].partition(":")
    assert volume_id == report.volume_id
    assert int(offset) > report.from_offset
    assert new.check(deep=True) == []


def test_a_second_run_appends_nothing(world: World) -> None:
    new = taken_over(world)
    run(world, "a", new)
    send(new, "orders", 100, 110)
    report = run(world, "a", new)
    assert (report.read, report.appended, report.skipped) == (21, 0, 21)
    new.archive(everything=True, drop_hot=True)
    assert run(world, "a", new).appended == 0, "wherever they are by then"
    assert all_numbers(new) == [*range(60), *range(100, 110)]


def keep_out(engine: Store, topic: str) -> None:
    engine.create_topic(topic, 2)
    topics = engine._hot.topics
    topics.set_options(topics.get(topic), archive=False, cold_retention_ms=None, hold=False)


class Breaking(LocalWriter):
    """A target that fails before or after one of its calls."""

    def __init__(self, engine: Store, operation: str, number: int, *, after: bool) -> None:
        super().__init__(engine)
        self._operation, self._left, self._after = operation, number, after

    def _strike(self, operation: str, *, after: bool) -> None:
        if (operation, after) == (self._operation, self._after):
            self._left -= 1
            if self._left == 0:
                raise ObjectStoreUnavailableError("the line is dead")

    def append(self, messages: Sequence[Message], durability: Durability, key: str | None = None) -> int:
        self._strike("append", after=False)
        stored_ms = super().append(messages, durability, key)
        self._strike("append", after=True)
        return stored_ms

    def commit_offsets(self, group: str, offsets: object) -> None:
        self._strike("commit", after=False)
        super().commit_offsets(group, offsets)  # type: ignore[arg-type]
        self._strike("commit", after=True)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operation", ["append", "commit"])
def test_cut_off_anywhere_the_next_run_goes_on(
    world: World, operation: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.service.cli.salvager._BATCH_MESSAGES", 4)
    new = taken_over(world)
    struck = 0
    for number in range(1, 30):
        try:
            run(world, "a", new, target=Breaking(new, operation, number, after=after))
        except ObjectStoreUnavailableError:
            struck += 1
    assert struck >= 1
    run(world, "a", new)
    assert all_numbers(new) == list(range(60))
    assert len(read_all(new, "pays", 1)) == 1


def test_nothing_of_the_old_directory_is_touched(world: World) -> None:
    new = taken_over(world)
    root = world.place("a")
    before = {path: bytes(inode.data) for path, inode in world.fs._names.items() if root in path.parents}
    run(world, "a", new)
    assert {path: bytes(inode.data) for path, inode in world.fs._names.items() if root in path.parents} == before


def test_salvaged_messages_lost_with_the_next_volume_are_salvaged_again(world: World) -> None:
    world.settings = small_settings(hot__segment_bytes=65_536)
    new = taken_over(world)
    run(world, "a", new)
    world.clock.advance(60_000)
    new.run_tiers()  # the mark is in the archive, what it stands for is not
    new.close()
    third = world.open("c", restore=True)
    assert all_numbers(third) == list(range(40))
    run(world, "a", third)
    assert all_numbers(third) == list(range(60))


def test_salvaged_messages_that_outlived_their_mark_are_not_salvaged_again(world: World) -> None:
    new = taken_over(world)
    run(world, "a", new)
    new.archive(everything=True)
    new.groups.remove(f"{PROPERTY}-{run(world, 'a', new).volume_id}")
    new.archive(everything=True)
    new.close()
    third = world.open("c", restore=True)
    assert run(world, "a", third).appended == 0
    assert all_numbers(third) == list(range(60))


def test_nothing_is_salvaged_twice_when_the_archive_has_lost_who_was_fenced(world: World) -> None:
    """The state object is written anew from the hot tier, which does not know of takeovers."""
    new = taken_over(world)
    run(world, "a", new)
    new.archive(everything=True)
    new.groups.remove(f"{PROPERTY}-{run(world, 'a', new).volume_id}")
    new.archive(everything=True)
    new.close()
    world.open("c", restore=True).close()
    state = world.head().state
    assert state is not None
    world.objects.delete(state.key)
    third = world.open("c")
    third.archive(everything=True)
    assert world.state().takeovers == ()
    assert run(world, "a", third).appended == 0
    assert all_numbers(third) == list(range(60))


def test_two_volumes_one_after_the_other(world: World) -> None:
    """What was salvaged from the first and lost with the second comes from the second, and not twice."""
    second = taken_over(world)
    run(world, "a", second)
    send(second, "orders", 60, 62)
    second.close()
    third = world.open("c", restore=True)
    run(world, "b", third)
    assert run(world, "a", third).appended == 0
    assert all_numbers(third) == list(range(62))


def test_a_copy_that_lost_the_race_gives_what_only_it_holds(world: World) -> None:
    first = world.open("a")
    for at in range(0, 40, 4):
        send(first, "orders", at, at + 4, queue_id=0)
    first.archive(everything=True)
    send(first, "orders", 40, 44, queue_id=0)  # in both copies, in no archive
    first.close()
    world.copy_volume("a", "copy")
    owner, copy = world.open("a"), world.open("copy")
    for at in range(44, 84, 4):
        send(owner, "orders", at, at + 4, queue_id=0)
        send(copy, "orders", at + 1000, at + 1004, queue_id=0)
    owner.archive()
    with pytest.raises(FencedError):
        copy.archive()
    copy.close()
    report = run(world, "copy", owner)
    assert report.appended == 40
    assert numbers_of(read_all(owner, "orders", 0)) == [*range(84), *range(1044, 1084)]
    assert run(world, "copy", owner).appended == 0


def test_messages_that_are_not_archived_on_purpose_come_back_from_the_only_disk_that_has_them(
    world: World,
) -> None:
    old = world.open("a")
    keep_out(old, "secret")
    for at in range(0, 40, 4):
        send(old, "orders", at, at + 4)
        send(old, "secret", at, at + 4)
    old.archive(everything=True)
    old.close()
    new = world.open("b", restore=True)
    assert all_numbers(new, "secret") == []
    report = run(world, "a", new)
    assert (report.read, report.appended) == (40, 40)
    assert all_numbers(new, "secret") == all_numbers(new) == list(range(40))
    assert run(world, "a", new).appended == 0


def test_erased_messages_do_not_come_back(world: World) -> None:
    old = world.open("a")
    for at in range(0, 60, 4):
        send(old, "orders", at, at + 4)
        if at == 36:
            old.archive(everything=True)
    old.removal.erase(Query("orders", "key-50"))
    old.removal.erase(Query("orders", "key-10"))
    old.close()
    new = world.open("b", restore=True)
    run(world, "a", new)
    assert all_numbers(new) == [number for number in range(60) if number not in (10, 50)]


def test_the_owner_itself_is_refused(world: World) -> None:
    new = taken_over(world)
    new.close()
    with pytest.raises(InvalidRequestError, match="nothing of it has to be salvaged"):
        run(world, "b", new)


def test_a_volume_in_use_is_refused(world: World) -> None:
    new = taken_over(world)
    with pytest.raises(StoreLockedError), world.fs.lock(world.place("a") / "lock"):
        run(world, "a", new)


def test_another_store_is_refused(world: World) -> None:
    new = taken_over(world)
    other = world.open("x", store_id="other")
    other.archive(everything=True)
    other.close()
    again = world.open("y", store_id="other", restore=True)
    with pytest.raises(StoreMismatchError, match=f"of store other, the new volume of {STORE_ID}"):
        run(world, "x", new)
    assert again.cold_url == URL


def test_a_target_that_was_fenced_itself_is_refused(world: World) -> None:
    second = taken_over(world)
    world.open("c", restore=True)
    with pytest.raises(StoreMismatchError, match="has taken the store over"):
        run(world, "a", second)


def test_a_dead_bucket_is_an_error_and_nothing_is_appended(world: World) -> None:
    new = taken_over(world)
    faulty = FaultyObjectStore(world.objects)
    faulty.die()
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(7), faulty)
    with pytest.raises(ObjectStoreUnavailableError):
        salvage(world.place("a"), replace(components), LocalWriter(new), lambda done, of: None)
    assert all_numbers(new) == list(range(40))
