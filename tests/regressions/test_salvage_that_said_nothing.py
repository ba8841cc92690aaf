"""Salvage says that all is done and leaves messages behind: empty segments, fillers, full records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.stores.engines import small_settings
from tests.support.world import World, numbers_of, read_all, send
from tierlog.index.search.query import Query
from tierlog.service.cli.salvager import SalvageReport, salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import FencedError, MessageTooLargeError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import MAX_PROPERTIES_BYTES
from tierlog.tiering.message.batch import Message

#: Bytes of a body that fills a segment of 4096 bytes with the topic ``big`` and no more.
_FULL_BODY = 4096 - 8 - 91 - len("big")


@pytest.fixture
def world() -> World:
    return World(settings=small_settings())


def run(world: World, old: str, new: Store) -> SalvageReport:
    components = Components(world.settings.unsized(), world.clock, world.fs, SeededRandomness(77), world.objects)
    return salvage(world.place(old), components, LocalWriter(new), lambda done, of: None)


def all_numbers(engine: Store, topic: str = "orders") -> list[int]:
    if topic not in [info.name for info in engine.topics()]:
        return []
    queues = engine.topic(topic).queues
    return sorted(number for queue in queues for number in numbers_of(read_all(engine, topic, queue.queue_id)))


def keep_out(engine: Store, topic: str) -> None:
    engine.create_topic(topic, 2)
    topics = engine._hot.topics
    topics.set_options(topics.get(topic), archive=False, cold_retention_ms=None, hold=False)


def begun(world: World, count: int = 40) -> Store:
    """Volume a, which archived so many messages."""
    old = world.open("a")
    for at in range(0, count, 4):
        send(old, "orders", at, at + 4)
    old.archive(everything=True)
    return old


# segments without records


@pytest.mark.parametrize("empty", [1, 2, 3, 7])
@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_segments_without_records_hide_none_that_has_some(world: World, segments: int, empty: int) -> None:
    """Rolled by age, a log ends in an empty segment; the bucket was away, so nothing of it was archived."""
    old = begun(world)
    sent = 40
    for _ in range(segments):
        send(old, "orders", sent, sent + 4)
        sent += 4
        old._hot.roll()
    for _ in range(empty - 1):
        old._hot.log.roll()  # only a blank record
    old.close()
    new = world.open("b", restore=True)
    assert run(world, "a", new).appended == sent - 40
    assert all_numbers(new) == list(range(sent))
    assert run(world, "a", new).appended == 0


def test_segments_without_records_between_those_with_some(world: World) -> None:
    old = begun(world, 12)
    send(old, "orders", 12, 16)
    old._hot.roll()
    old._hot.log.roll()
    old._hot.log.roll()
    old.archive()
    for _ in range(4):
        old._hot.log.roll()
    send(old, "orders", 16, 20)
    for _ in range(6):
        old._hot.log.roll()
    old.close()
    new = world.open("b", restore=True)
    assert run(world, "a", new).appended == 4
    assert all_numbers(new) == list(range(20))


def test_what_was_never_archived_is_not_taken_for_expired_once_all_of_that_time_has_expired(
    world: World,
) -> None:
    """The least kept segment passes the gap that a restore leaves in the log."""
    old = begun(world)
    send(old, "orders", 40, 60)
    old.close()
    new = world.open("b", restore=True)
    send(new, "orders", 60, 100)
    new.archive(everything=True, drop_hot=True)
    new.removal.configure("orders", cold_retention_ms=60_000)
    world.clock.advance(10_000_000)
    while new.removal.run_once():
        pass
    assert world.head().cold_min > 1 << 44
    assert run(world, "a", new).appended == 20
    assert all_numbers(new) == list(range(40, 60))


# beside fillers


Going = Callable[[World, Store], None]


def kept_out(world: World, owner: Store) -> None:
    for at in range(0, 12, 4):
        send(owner, "secret", at, at + 4)


def kept_out_first(world: World, owner: Store) -> None:
    send(owner, "secret", 0, 1, queue_id=0)
    send(owner, "orders", 900, 960)


def erased(world: World, owner: Store) -> None:
    send(owner, "orders", 90, 95, queue_id=0)
    for number in range(90, 95):
        owner.removal.erase(Query("orders", f"key-{number}"))


def erased_long_ago(world: World, owner: Store) -> None:
    erased(world, owner)
    owner.archive(everything=True)
    while owner.removal.run_once():
        pass
    assert world.head().tombstones == ()


def erased_first(world: World, owner: Store) -> None:
    send(owner, "orders", 90, 96, queue_id=0)
    owner.removal.erase(Query("orders", "key-90"))
    owner.removal.erase(Query("orders", "key-92"))


def deleted(world: World, owner: Store) -> None:
    send(owner, "pays", 90, 95, queue_id=0)
    owner.removal.delete_topic("pays")


@pytest.mark.parametrize("topic", ["orders", "secret"])
@pytest.mark.parametrize("goes_on", [kept_out, kept_out_first, erased, erased_long_ago, erased_first, deleted])
def test_fillers_of_the_volume_that_went_on_do_not_stand_for_messages_of_its_copy(
    world: World, goes_on: Going, topic: str
) -> None:
    """Of equal size, queue and offset too: what nobody erased is not what was erased."""
    first = world.open("a")
    keep_out(first, "secret")
    send(first, "orders", 10, 50, queue_id=0)
    first.archive(everything=True)
    send(first, "orders", 50, 54, queue_id=0)
    send(first, "secret", 50, 54, queue_id=0)
    first.close()
    world.copy_volume("a", "copy")
    owner, copy = world.open("a"), world.open("copy")
    goes_on(world, owner)
    send(copy, topic, 60, 65, queue_id=0)
    owner.archive(everything=True)
    with pytest.raises(FencedError):
        copy.archive(everything=True)
    copy.close()
    before = {each: all_numbers(owner, each) for each in ("orders", "secret")}
    assert run(world, "copy", owner).appended == 5
    before[topic] = sorted([*before[topic], *range(60, 65)])
    assert {each: all_numbers(owner, each) for each in before} == before
    assert run(world, "copy", owner).appended == 0
    assert owner.check(deep=True) == []


def test_what_two_copies_have_kept_out_of_the_archive_is_not_appended_twice(world: World) -> None:
    """Nothing can be compared: all of both logs is fillers in the archive."""
    first = world.open("a")
    keep_out(first, "secret")
    send(first, "secret", 0, 30, queue_id=0)
    first.archive(everything=True)
    send(first, "secret", 30, 34, queue_id=0)
    first.close()
    world.copy_volume("a", "copy")
    owner, copy = world.open("a"), world.open("copy")
    send(owner, "secret", 40, 45, queue_id=0)
    send(copy, "secret", 50, 55, queue_id=0)
    owner.archive(everything=True)
    copy.close()
    assert run(world, "copy", owner).appended == 5
    assert all_numbers(owner, "secret") == [*range(34), *range(40, 45), *range(50, 55)]
    assert run(world, "copy", owner).appended == 0


def test_a_topic_that_is_kept_out_of_the_archive_comes_back_whole(world: World) -> None:
    old = world.open("a")
    keep_out(old, "secret")
    send(old, "secret", 0, 50)
    send(old, "orders", 0, 8)
    old.archive(everything=True)
    send(old, "secret", 50, 55)
    old.removal.erase(Query("secret", "key-7"))
    old.removal.erase(Query("secret", "key-52"))
    old.close()
    new = world.open("b", restore=True)
    report = run(world, "a", new)
    assert report.appended == 53
    assert all_numbers(new, "secret") == [number for number in range(55) if number not in (7, 52)]
    assert all_numbers(new) == list(range(8))
    assert run(world, "a", new).appended == 0


def test_what_was_kept_out_and_is_archived_now_comes_back_as_well(world: World) -> None:
    old = world.open("a")
    keep_out(old, "secret")
    send(old, "secret", 0, 50)
    old.archive(everything=True)
    topics = old._hot.topics
    topics.set_options(topics.get("secret"), archive=True, cold_retention_ms=None, hold=False)
    send(old, "secret", 50, 90)
    old.archive(everything=True)
    old.close()
    new = world.open("b", restore=True)
    assert run(world, "a", new).appended == 50
    assert all_numbers(new, "secret") == list(range(90))


def test_copies_of_one_volume_that_were_both_replaced_give_different_messages_at_one_offset(
    world: World,
) -> None:
    """A mark names volume and offset, which both copies have."""
    begun(world).close()
    world.copy_volume("a", "copy")
    owner = world.open("a")
    copy = world.open("copy")
    send(owner, "orders", 60, 65, queue_id=0)
    send(copy, "orders", 70, 75, queue_id=0)
    owner.close()
    copy.close()
    new = world.open("b", restore=True)
    assert run(world, "a", new).appended == 5
    assert run(world, "copy", new).appended == 5
    assert all_numbers(new) == [*range(40), *range(60, 65), *range(70, 75)]
    assert (run(world, "a", new).appended, run(world, "copy", new).appended) == (0, 0)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_was_salvaged_to_a_volume_that_was_lost_is_there_once_in_any_order(world: World, order: str) -> None:
    old = begun(world)
    send(old, "orders", 40, 60)
    old.close()
    second = world.open("b", restore=True)
    run(world, "a", second)
    send(second, "orders", 60, 62)
    second.close()
    third = world.open("c", restore=True)
    for volume in order:
        run(world, volume, third)
    assert all_numbers(third) == list(range(62))
    assert (run(world, "a", third).appended, run(world, "b", third).appended) == (0, 0)


def test_what_was_salvaged_and_then_erased_is_not_salvaged_again(world: World) -> None:
    """Its mark went with it."""
    old = begun(world)
    send(old, "orders", 40, 60)
    old.close()
    new = world.open("b", restore=True)
    run(world, "a", new)
    new.removal.erase(Query("orders", "key-50"))
    new.archive(everything=True)
    while new.removal.run_once():
        pass
    assert world.head().tombstones == ()
    assert run(world, "a", new).appended == 0
    assert all_numbers(new) == [number for number in range(60) if number != 50]


# at a full record


def send_full(engine: Store, number: int) -> None:
    """The largest message that a segment holds: not a byte of it is left for anything else."""
    engine.append([Message("big", f"big {number}.".encode().ljust(_FULL_BODY, b"."), queue_id=0)])


def test_a_message_as_large_as_the_store_allows_is_salvaged_and_keeps_none_of_the_others(world: World) -> None:
    old = begun(world)
    with pytest.raises(MessageTooLargeError):
        old.append([Message("big", b"." * (_FULL_BODY + 1), queue_id=0)])
    send(old, "orders", 40, 60)
    for number in (1, 2, 2, 3):
        send_full(old, number)
    send(old, "orders", 60, 80)
    old.close()
    new = world.open("b", restore=True)
    report = run(world, "a", new)
    assert (report.appended, report.not_saved) == (44, [])
    assert all_numbers(new) == list(range(80))
    assert numbers_of(read_all(new, "big", 0)) == [1, 2, 2, 3]
    assert run(world, "a", new).appended == 0
    new.archive(everything=True, drop_hot=True)
    assert run(world, "a", new).appended == 0
    send_full(new, 2)
    assert run(world, "a", new).appended == 0
    assert new.check(deep=True) == []


def test_a_message_without_room_for_a_mark_that_was_lost_with_the_next_volume_comes_back(world: World) -> None:
    old = begun(world)
    send_full(old, 1)
    old.archive(everything=True)
    send_full(old, 1)  # again, and this one is not archived
    old.close()
    second = world.open("b", restore=True)
    run(world, "a", second)
    second.close()
    third = world.open("c", restore=True)
    assert run(world, "a", third).appended == 1
    assert numbers_of(read_all(third, "big", 0)) == [1, 1]
    assert (run(world, "a", third).appended, run(world, "b", third).appended) == (0, 0)


def test_property_text_as_long_as_a_record_allows_leaves_no_room_either(world: World) -> None:
    world.settings = small_settings(hot__segment_bytes=65_536)
    old = begun(world)
    empty = len(encode_properties({"long": "x"})) - 1
    for number in range(3):
        properties = {"long": "x" * (MAX_PROPERTIES_BYTES - empty - 20 * number)}
        old.append([Message("long", f"long {number}.".encode(), properties=properties, queue_id=0)])
    send(old, "orders", 40, 44)
    old.close()
    new = world.open("b", restore=True)
    assert run(world, "a", new).appended == 7
    assert numbers_of(read_all(new, "long", 0)) == [0, 1, 2]
    assert run(world, "a", new).appended == 0


def test_a_message_that_the_new_volume_refuses_is_named_and_keeps_none_of_the_others(world: World) -> None:
    old = begun(world)
    send(old, "orders", 40, 60)
    send_full(old, 1)
    send(old, "orders", 60, 80)
    old.close()
    small = world.settings.model_copy(update={"hot": world.settings.hot.model_copy(update={"max_body_bytes": 1000})})
    new = world.open("b", restore=True, settings=small)
    report = run(world, "a", new)
    assert report.appended == 40
    (left,) = report.not_saved
    assert (left.topic, left.next - left.offset) == ("big", 4096 - 8)
    assert "over the limit of 1000" in left.reason
    assert all_numbers(new) == list(range(80))
    again = run(world, "a", new)
    assert (again.appended, again.skipped, again.not_saved) == (0, 40, [left])


def test_a_damaged_record_is_named_and_keeps_none_of_the_others(world: World) -> None:
    old = begun(world)
    for at in range(40, 400, 4):
        send(old, "orders", at, at + 4, queue_id=0)
    messages = [message for queue_id in (0, 1) for message in read_all(old, "orders", queue_id)]
    old.close()
    records = {number: message.record for number, message in zip(numbers_of(messages), messages, strict=True)}
    damaged = (50, 51, 70)
    for number in (3, *damaged):
        flip(world, records[number].physical_offset + records[number].size // 2)
    new = world.open("b", restore=True)
    report = run(world, "a", new)
    assert report.appended == 360 - len(damaged)
    assert all_numbers(new) == [number for number in range(400) if number not in damaged]
    assert {each.reason for each in report.not_saved} == {"the old log is damaged here"}
    named = [(each.offset, each.next) for each in report.not_saved]
    lost = [
        (record.physical_offset, record.physical_offset + record.size)
        for record in (records[number] for number in damaged)
    ]
    assert (named[0][0], named[-1][1]) == (lost[0][0], lost[-1][1])
    assert sum(end - start for start, end in named) == sum(end - start for start, end in lost), "and no more"
    assert run(world, "a", new).appended == 0


def flip(world: World, offset: int) -> None:
    base = offset - offset % 4096
    file = world.fs.open(world.place("a") / "commitlog" / f"{base:020}")
    data = world.fs.read(world.place("a") / "commitlog" / f"{base:020}")
    file.write_at(offset - base, bytes([data[offset - base] ^ 0x55]))
    file.close()
