"""The service is killed under clients of all languages at once: what they may rely on afterwards.

Each language sends in order, sends work of which some fails, ends transactions and delays messages; three of them
consume everything, in order and concurrently.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.support.processes.nodes import Json, pulled
from tests.support.rocketmq.real_clients import (
    ClientError,
    RealClient,
    TierlogServer,
    fresh,
    java_client,
    keys,
    other_client,
    spring_client,
    tierlog_server,
)
from tests.tools.rocketmq_clients import GO, JAVA_4_9, JAVA_5, JAVA_SPRING, ClientProgram, command_of

pytestmark = pytest.mark.timeout(400)
FolderOf = Callable[[ClientProgram], Path]
#: A consumer that runs: waits for so many deliveries, and tells all.
Wait = Callable[[int, int], list[Json]]
_SHARDS = 4
_LIMIT_S = 120.0
#: How each language says that a message comes later; all within the time of the kills.
_LATER: dict[str, dict[str, object]] = {
    "java5": {"property.TIMER_DELAY_MS": 2_500},
    "java4": {"property.DELAY": 1},
    "go": {"property.DELAY": 2},
    "spring": {"how": "delayed", "delay_ms": 1_500},
}
#: How it decides of a transaction; Go's client is asked to by nobody here.
_DECISIONS = {
    "java5": ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"),
    "java4": ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"),
    "spring": ("COMMIT", "ROLLBACK"),
}
_CONSUMING = ("java5", "java4", "go")


@dataclass(frozen=True)
class Topics:
    """Of one run."""

    work: str = field(default_factory=lambda: fresh("work"))
    jobs: str = field(default_factory=lambda: fresh("jobs"))
    late: str = field(default_factory=lambda: fresh("late"))
    payments: str = field(default_factory=lambda: fresh("payments"))


@dataclass
class SharedClient(RealClient):
    """One that several threads give commands, which it runs one after the other."""

    def __post_init__(self) -> None:
        self._one = threading.Lock()

    def do(self, command: str, **arguments: object) -> Json:
        with self._one:
            return super().do(command, **arguments)


class Sender:
    """Sends in one language until it is told to stop, and notes what was acknowledged."""

    def __init__(self, name: str, client: SharedClient, topics: Topics, seed: int) -> None:
        self.name, self.client, self._topics = name, client, topics
        self.work: set[str] = set()
        self.jobs: set[str] = set()
        self.late: set[str] = set()
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        self._chance = random.Random(f"{seed} {name}")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """And wait for what is being sent."""
        self._is_over.set()
        self._thread.join()

    def delay(self, count: int) -> None:
        """Send some that come later."""
        with contextlib.suppress(ClientError):
            sent = self.client.send(self._topics.late, fresh(self.name), count=count, **_LATER[self.name])
            self.late |= {message["key"] for message in sent}

    def _run(self) -> None:
        for step in range(1 << 30):
            while not self._is_over.wait(0.04) and not self._goes_on(step):
                pass  # the same again, as order is kept by waiting
            if self._is_over.is_set():
                return
            with contextlib.suppress(ClientError):
                self.jobs |= {sent["key"] for sent in self.client.send(self._topics.jobs, f"{self.name}-{step}")}
            if self.name in _DECISIONS and step % 3 == 0:
                self._pay()

    def _goes_on(self, step: int) -> bool:
        named = {"how": "ordered", "count": _SHARDS, "shards": _SHARDS}
        try:
            self.work |= {sent["key"] for sent in self.client.send(self._topics.work, f"{self.name}-{step}", **named)}
        except ClientError:
            return False
        return True

    def _pay(self) -> None:
        is_kept = self._chance.random() < 0.5
        decision = _DECISIONS[self.name][0 if is_kept else 1]
        prefix = fresh(self.name)
        if not is_kept:
            self.rolled_back.add(f"{prefix}-0")
        with contextlib.suppress(ClientError):
            self.client.do(
                "transaction", topic=self._topics.payments, prefix=prefix, now=decision, later=decision,
                group=f"payers-{self.name}",
            )  # fmt: skip
            if is_kept:
                self.committed.add(f"{prefix}-0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogServer]:
    """The one that is killed, with the clients of each test."""
    with tierlog_server(tmp_path_factory.mktemp("killed")) as found:
        yield found


@pytest.fixture(scope="module")
def languages(
    server: TierlogServer, folder_of: FolderOf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, SharedClient]]:
    """Clients by the name of their language."""
    address = server.doors.remoting
    read = {name: f"unread-{name}" for name in ("orders", "steps", "tagged")}
    folder_of(GO)
    work = {name: tmp_path_factory.mktemp(name) for name in _LATER}
    with contextlib.ExitStack() as stack:
        begun: dict[str, RealClient] = {
            "java5": stack.enter_context(java_client(folder_of(JAVA_5), "Remoting5", work["java5"], address)),
            "java4": stack.enter_context(java_client(folder_of(JAVA_4_9), "Remoting", work["java4"], address)),
            "go": stack.enter_context(other_client(command_of(GO), work["go"], address)),
            "spring": stack.enter_context(spring_client(folder_of(JAVA_SPRING), work["spring"], address, read)),
        }
        yield {name: SharedClient(client.program, address) for name, client in begun.items()}


@contextlib.contextmanager
def consuming(
    languages: dict[str, SharedClient], topics: Topics, groups: str
) -> Iterator[tuple[dict[str, Wait], dict[str, Wait]]]:
    """A consumer in order and a concurrent one in each language that consumes, each in a group of its own."""
    failing: Json = {"fail": 1, "failing": "7-0", "level": 1, "max_attempts": 16}
    with contextlib.ExitStack() as stack:
        in_order, at_once = {}, {}
        for name in _CONSUMING:
            client = languages[name]
            orderly = client.consumer(topics.work, f"{groups}-{name}-order", kind="orderly")
            in_order[name] = stack.enter_context(orderly)
            at_once[name] = stack.enter_context(client.consumer(topics.jobs, f"{groups}-{name}-jobs", **failing))
        yield in_order, at_once


def eventually(what: Callable[[], object]) -> None:
    """Until it is true of nothing: what is still missing is told."""
    deadline_s = time.monotonic() + _LIMIT_S
    while missing := what():
        assert time.monotonic() < deadline_s, missing
        time.sleep(0.3)


def places(messages: list[Json], queue: str, offset: str) -> set[tuple[int, int]]:
    return {(message[queue], message[offset]) for message in messages}


def undelivered(stored: set[tuple[int, int]], wait: Wait) -> set[tuple[int, int]]:
    return stored - places(wait(0, 0), "queue", "offset")


def undone(jobs: set[str], wait: Wait) -> set[str]:
    return jobs - {message["key"] for message in wait(0, 0) if message["done"]}


def fired(url: str, topic: str) -> Counter[str]:
    """How often a topic has each key."""
    return Counter(message["keys"][0] for message in pulled(url, topic))


def check_order(deliveries: list[Json]) -> None:
    """Each queue in its order, and what one language sent to one shard in the order in which it sent it."""
    first = list({(message["queue"], message["offset"]): message for message in reversed(deliveries)}.values())[::-1]
    offsets: dict[int, list[int]] = defaultdict(list)
    steps: dict[tuple[str, str], list[int]] = defaultdict(list)
    for message in first:
        offsets[message["queue"]].append(message["offset"])
    for key in dict.fromkeys(message["key"] for message in first):
        language, step, shard = key.split("-")
        steps[language, shard].append(int(step))
    assert all(found == sorted(found) for found in (*offsets.values(), *steps.values()))


def test_kills_lose_nothing_acknowledged_keep_order_and_repeat_nothing_after_a_clean_restart(
    server: TierlogServer, languages: dict[str, SharedClient], seed: int
) -> None:
    chance, topics, groups, url = random.Random(seed), Topics(), fresh("group"), server.doors.url
    for topic in (topics.work, topics.jobs, topics.late, topics.payments):
        languages["java5"].send(topic, "java5-0", how="ordered")  # makes the topic
    with consuming(languages, topics, groups) as (in_order, at_once):
        senders = [Sender(name, client, topics, seed) for name, client in languages.items()]
        for _ in range(chance.randrange(2, 4)):
            for sender in senders:
                sender.delay(5)
            time.sleep(chance.uniform(0.2, 2.0))
            server.kill()
            server.start()
        for sender in senders:
            sender.stop()
        acknowledged = {key for sender in senders for key in sender.work}
        assert all(len(sender.work) > 20 and sender.jobs for sender in senders), [len(one.work) for one in senders]
        assert acknowledged <= set(fired(url, topics.work))
        committed, never = (
            {key for one in senders for key in getattr(one, what)} for what in ("committed", "rolled_back")
        )
        late = {key for sender in senders for key in sender.late}
        eventually(lambda: late - set(fired(url, topics.late)))
        eventually(lambda: committed - set(fired(url, topics.payments)))
        stored = places(pulled(url, topics.work), "queue_id", "queue_offset")
        for wait in in_order.values():
            eventually(partial(undelivered, stored, wait))
            check_order(wait(0, 0))
        jobs = set(fired(url, topics.jobs))
        assert {key for sender in senders for key in sender.jobs} <= jobs
        for wait in at_once.values():
            eventually(partial(undone, jobs, wait))
        quiet = -1
        while quiet != (quiet := sum(len(wait(0, 0)) for wait in at_once.values())):
            time.sleep(2.5)  # what failed may have been given back twice, and comes a second later
    server.stop()
    server.start()
    for topic in (topics.work, topics.jobs):
        languages["java5"].send(topic, "java5-9", how="ordered")
    with consuming(languages, topics, groups) as (in_order, at_once):
        waits = [*in_order.values(), *at_once.values()]
        for wait in waits:
            wait(1, 60_000)
        time.sleep(1.5)
        assert [keys(wait(0, 0)) for wait in waits] == [["java5-9-0"]] * len(waits)
    assert {key for key, times in fired(url, topics.late).items() if times > 1} == set()
    assert not never & set(fired(url, topics.payments))
