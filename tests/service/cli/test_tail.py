"""``tierlog tail``: the last messages, relative times, and what comes in, each message once and in order."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.cli.commands import tail
from tierlog.service.cli.commands.tail import TailedQueues
from tierlog.service.cli.targets import LocalReader, Reader
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, NOTHING, WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.message.batch import Message

HOUR_MS = 3_600_000
Run = Callable[..., list[dict[str, Any]]]


class World:
    """A store with 60 messages of topic ``t``, most of them in queue 1, half of them archived."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.root, self.cold = folder / "store", f"file://{folder}/cold"
        (folder / "cold").mkdir()
        self.engine = Store.open(self.root, cold_url=self.cold, settings=tiny_settings(), clock=self.clock)
        self.put(range(30))
        self.engine.archive(everything=True, drop_hot=True)
        self.put(range(30, 60))

    def put(self, numbers: range) -> None:
        for number in numbers:
            self.clock.advance(1000)
            queue_id = 1 if number % 4 else (0, 2, 3)[number // 4 % 3]
            tag = "even" if number % 2 == 0 else "odd"
            self.engine.append([Message("t", b"%d" % number, tag=tag, queue_id=queue_id)])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.engine.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store by the clock of the machine, as the command line has it."""
    with Store.open(tmp_path / "store", settings=tiny_settings()) as engine:
        engine.start()
        yield engine


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    with served(store, tiny_settings()) as address:
        yield address


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command to its end; the messages that it showed."""
    monkeypatch.setattr(tail, "LOOK_S", 0.02)

    def ask(*argv: str, code: int = DONE) -> list[dict[str, Any]]:
        assert main(["tail", "t", "--format", "ndjson", *argv]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


def bodies(messages: list[dict[str, Any]]) -> list[int]:
    return [int(message["body"]) for message in messages]


def newest(world: World, count: int, tag: str | None = None, queue_ids: range = range(4)) -> list[int]:
    reader = LocalReader(world.engine)
    ends = {queue["queue_id"]: queue["max_offset"] for queue in reader.topic("t")["offsets"]}
    queues = TailedQueues(reader, "t", {queue_id: ends[queue_id] for queue_id in queue_ids}, tag)
    return bodies(queues.newest(count))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 29, 30, 31, 59, 60, 61, 5000])
def test_the_last_messages_are_those_of_all_queues_together_in_both_tiers(world: World, count: int) -> None:
    assert newest(world, count) == list(range(max(0, 60 - count), 60))


@pytest.mark.parametrize("count", [1, 5, 30, 40])
def test_the_last_messages_with_a_tag_are_looked_for_further_back(world: World, count: int) -> None:
    assert newest(world, count, "even") == list(range(0, 60, 2))[-count:]


def test_the_last_messages_of_one_queue(world: World) -> None:
    of_queue = [number for number in range(60) if number % 4]
    assert newest(world, 12, queue_ids=range(1, 2)) == of_queue[-12:]


def test_the_archive_is_not_asked_for_the_last_messages_while_they_are_hot(world: World) -> None:
    newest(world, 1)
    before = world.engine.stats()["archive_requests"]
    assert newest(world, 5) == list(range(55, 60))
    assert world.engine.stats()["archive_requests"] == before
    assert newest(world, 60) == list(range(60))
    assert world.engine.stats()["archive_requests"] != before, "the others are archived"


def test_the_last_messages_behind_and_before_the_gap_of_a_restore(world: World, tmp_path: Path) -> None:
    """What was not archived is gone, and the offsets go on far behind what it may have had."""
    world.engine.close()
    world.engine = Store.open(
        tmp_path / "new", cold_url=world.cold, restore=True, settings=tiny_settings(), clock=world.clock
    )
    gaps = [queue["gaps"] for queue in LocalReader(world.engine).topic("t")["offsets"]]
    assert max(behind - first for of_queue in gaps for first, behind in of_queue) > 100_000, "too long to be read"
    assert newest(world, 7) == list(range(23, 30))
    world.put(range(60, 70))
    assert newest(world, 13) == [27, 28, 29, *range(60, 70)]
    assert newest(world, 100) == [*range(30), *range(60, 70)]
    assert newest(world, 5, "even") == [60, 62, 64, 66, 68]


def test_the_last_messages_on_every_target(world: World, run: Run) -> None:
    with served(world.engine, tiny_settings()) as address:
        assert bodies(run("-n", "5", "--url", address)) == [55, 56, 57, 58, 59]
        assert bodies(run("-n", "5", "--limit", "2", "--url", address)) == [55, 56]
    world.engine.archive(everything=True)
    world.engine.close()
    assert bodies(run("-n", "5", "--root", str(world.root))) == [55, 56, 57, 58, 59]
    assert bodies(run("-n", "33", "--cold", world.cold)) == list(range(27, 60))
    assert run("-n", "0", "--cold", world.cold, code=NOTHING) == []


def test_without_options_the_first_message_comes_first(world: World, run: Run) -> None:
    world.engine.close()
    assert bodies(run("--root", str(world.root))) == list(range(60))


@pytest.mark.parametrize(
    "argv",
    [("-n", "-1"), ("-n", "10001"), ("-f", "--from", "now+1h"), ("-n", "3", "--queue", "9"), ("--from", "2y")],
)
def test_what_makes_no_sense_is_refused(store: Store, url: str, run: Run, argv: tuple[str, ...]) -> None:
    store.append([Message("t", b"0")])
    run(*argv, "--url", url, code=WRONG_USE)


def test_the_last_n_and_a_place_to_begin_exclude_each_other() -> None:
    with pytest.raises(SystemExit):
        main(["tail", "t", "-n", "3", "--from", "1h", "--root", "."])


def test_a_relative_time_begins_there(store: Store, url: str, run: Run) -> None:
    store.append([Message("t", b"%d" % number) for number in range(10)])
    assert bodies(run("--from", "1h", "--url", url)) == list(range(10))
    assert run("--from", "now+1h", "--url", url, code=NOTHING) == []


def later(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_from_now_shows_only_what_comes_in(store: Store, url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([Message("t", b"%d" % number) for number in range(10)])
    begun = threading.Event()
    followed = TailedQueues.followed

    def told(queues: TailedQueues, *, grows: bool) -> Iterator[list[dict[str, Any]]]:
        begun.set()
        return followed(queues, grows=grows)

    monkeypatch.setattr(TailedQueues, "followed", told)

    def write() -> None:
        assert begun.wait(30)
        store.append([Message("t", b"10", queue_id=3)])

    writer = later(write)
    assert bodies(run("-f", "--from", "now", "--limit", "1", "--url", url)) == [10]
    writer.join()


def test_the_last_n_go_on_without_a_gap_and_without_a_double(store: Store, url: str, run: Run) -> None:
    """Messages come in all the while, so that each step of the command has some in its way."""
    store.append([Message("t", b"%d" % number) for number in range(100)])
    ended = threading.Event()

    def write() -> None:
        number = 100
        while not ended.is_set():
            store.append([Message("t", b"%d" % number)])
            number += 1

    writer = later(write)
    try:
        found = run("-n", "50", "-f", "--limit", "400", "--url", url)
    finally:
        ended.set()
        writer.join()
    assert len(found) == 400
    offsets = defaultdict(list)
    for message in found:
        offsets[message["queue_id"]].append(message["queue_offset"])
    for queue_id, seen in offsets.items():
        assert seen == list(range(seen[0], seen[0] + len(seen))), queue_id
    first = bodies(found[:50])
    assert first == list(range(first[0], first[0] + 50)), "the last fifty at one moment, in the order of the log"


def test_a_topic_that_does_not_exist_yet_is_waited_for(
    store: Store, url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    waiting = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    monkeypatch.setattr(tail, "say", say)

    def write() -> None:
        assert waiting.wait(30)
        store.append([Message("t", b"%d" % number) for number in range(6)])

    writer = later(write)
    found = run("-f", "-n", "2", "--limit", "6", "--url", url)
    writer.join()
    assert sorted(bodies(found)) == list(range(6)), "all that came since it waits, not the last two"
    assert said == ["waiting for topic 't', which does not exist yet"]


def test_a_topic_that_does_not_exist_is_an_error_without_follow(url: str, run: Run) -> None:
    run("--url", url, code=WRONG_USE)


def test_queues_that_are_added_are_followed_too(
    store: Store, url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("t", 2)
    store.append([Message("t", b"0", queue_id=0)])
    begun = threading.Event()
    look = TailedQueues._look

    def told(queues: TailedQueues, came: Any) -> None:
        begun.set()
        look(queues, came)

    monkeypatch.setattr(TailedQueues, "_look", told)

    def write() -> None:
        assert begun.wait(30)
        store.create_topic("t", 5)
        store.append([Message("t", b"1", queue_id=4), Message("t", b"2", queue_id=1)])

    writer = later(write)
    found = run("-f", "--limit", "3", "--url", url)
    writer.join()
    assert sorted(bodies(found)) == [0, 1, 2]
    assert {message["queue_id"] for message in found} == {0, 1, 4}


def test_a_followed_queue_alone_gets_no_other(store: Store, url: str, run: Run) -> None:
    store.create_topic("t", 2)
    store.append([Message("t", b"0", queue_id=0), Message("t", b"1", queue_id=1), Message("t", b"2", queue_id=1)])
    assert bodies(run("-f", "--queue", "1", "--limit", "2", "--url", url)) == [1, 2]


class Endless:
    """A target whose queues always have one message more; counts the pages it gave."""

    def __init__(self) -> None:
        self.given = 0
        self._changed = threading.Condition()

    def pull(self, topic: str, queue_id: int, offset: int, limit: int, **_: object) -> dict[str, Any]:
        with self._changed:
            self.given += 1
            self._changed.notify_all()
        return {"messages": [{"queue_id": queue_id, "queue_offset": offset}], "next_offset": offset + 1}

    def wait_for(self, given: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.given >= given, 30)


def test_following_reads_no_further_ahead_than_a_few_pages_of_who_shows_them() -> None:
    target, before = Endless(), set(threading.enumerate())
    queues = TailedQueues(cast("Reader", target), "t", {0: 0, 1: 0})
    pages = cast("Generator[list[dict[str, Any]], None, None]", queues.followed(grows=False))
    most_ahead = tail.MOST_WAITING + 2  # which wait, and one in the hand of each queue
    for taken in range(1, 200):
        next(pages)
        target.wait_for(taken + most_ahead)
        assert target.given == taken + most_ahead
    waiting = [thread for thread in threading.enumerate() if thread not in before]
    assert queues.offsets == {0: 0, 1: 0}, "what nobody has shown does not count"
    queues.was_shown([{"queue_id": 1, "queue_offset": 7}])
    assert queues.offsets == {0: 0, 1: 8}
    pages.close()
    for thread in waiting:
        thread.join(30)
        assert not thread.is_alive(), "it waits for room that nobody makes"
