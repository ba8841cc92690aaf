"""Consumers are killed in the middle of their work, and the service too: every message is handled, few come twice.

How few is a promise: a consumer that is lost repeats at most ``read_ahead`` messages of each queue that it had.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.processes.nodes import Node
from tierlog.client import Client, Message

pytestmark = pytest.mark.slow

TOPIC, GROUP, QUEUES, READ_AHEAD = "orders", "audit", 4, 50
_SIZES = {
    "TIERLOG_HOT_SEGMENT_BYTES": "4194304", "TIERLOG_HOT_QUEUE_FILE_UNITS": "5000", "TIERLOG_INDEX_SLOTS": "5000",
    "TIERLOG_INDEX_ITEMS": "20000",
}  # fmt: skip


class Workers:
    """Consumers as processes, each with a file of what it has handled."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begun = 0

    def begin(self) -> None:
        """One more."""
        self._begun += 1
        file = self._folder / f"handled-{self._begun}"
        command = [
            sys.executable, "-m", "tests.support.processes.consumer_worker", self._url, GROUP, TOPIC, str(file),
            str(READ_AHEAD),
        ]  # fmt: skip
        self._processes.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE))

    def kill(self, chance: random.Random) -> None:
        """SIGKILL for one of them."""
        process = self._processes.pop(chance.randrange(len(self._processes)))
        process.kill()
        process.communicate()

    def end(self) -> list[int]:
        """The others end by themselves; what they returned."""
        for process in self._processes:
            process.communicate(timeout=60)
        return [process.returncode for process in self._processes]

    def handled(self) -> Counter[tuple[int, int]]:
        """How often each message was."""
        lines = [line for file in self._folder.glob("handled-*") for line in file.read_text().splitlines()]
        return Counter((int(queue), int(offset)) for queue, offset in map(str.split, lines))

    def until(self, count: int) -> None:
        """So many handlers have come to their end."""
        deadline_s = time.monotonic() + 120
        while self.handled().total() < count:
            assert time.monotonic() < deadline_s, f"{self.handled().total()} of {count} after two minutes"
            time.sleep(0.02)


@contextmanager
def service(folder: Path, count: int) -> Iterator[tuple[Node, Client]]:
    """A service as a process, with so many messages."""
    node = Node(folder / "store", f"file://{folder}/cold", "", settings=_SIZES).start()
    try:
        with Client(node.url) as client:
            client.make_topic(TOPIC, queues=QUEUES)
            client.append(TOPIC, [Message(f"order {number}") for number in range(count)])
            yield node, client
    finally:
        node.kill()


def finish(workers: Workers, client: Client, count: int) -> Counter[tuple[int, int]]:
    """All is handled and committed; the consumers end well."""
    deadline_s = time.monotonic() + 120
    while client.group(GROUP).lag != 0:
        assert time.monotonic() < deadline_s, client.group(GROUP)
        time.sleep(0.05)
    assert set(workers.end()) == {0}
    handled = workers.handled()
    ends = {queue.queue_id: queue.max_offset for queue in client.topic(TOPIC).queues}
    assert sum(ends.values()) == count
    assert set(handled) == {(queue, offset) for queue, end in ends.items() for offset in range(end)}
    assert client.group(GROUP).members == {}
    return handled


def test_a_consumer_that_is_killed_again_and_again_repeats_no_more_than_it_read_ahead(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    count, kills = 6_000, 6
    with service(tmp_path, count) as (node, client):
        workers = Workers(node.url, tmp_path)
        for number in range(kills):
            workers.begin()
            workers.until(workers.handled().total() + chance.randrange(20, 600))
            if number % 3 == 1:  # the service goes first, and comes back while the consumer waits for it
                node.kill()
                node.start()
                workers.until(workers.handled().total() + chance.randrange(20, 300))
            workers.kill(chance)
        workers.begin()
        handled = finish(workers, client, count)
    again = handled.total() - count
    print(f"{kills} kills, {again} of {count} messages again, at most {kills * QUEUES * READ_AHEAD}")
    assert again <= kills * QUEUES * READ_AHEAD


def test_consumers_of_one_group_lose_nothing_when_some_of_them_and_the_service_are_killed(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    count, kills = 12_000, 5
    with service(tmp_path, count) as (node, client):
        workers = Workers(node.url, tmp_path)
        for _ in range(3):
            workers.begin()
        for number in range(kills):
            workers.until(workers.handled().total() + chance.randrange(100, 1_000))
            workers.kill(chance)
            if number == 2:
                node.kill()
                node.start()
            workers.begin()
        handled = finish(workers, client, count)
        generations = client.group(GROUP).generation
    again = handled.total() - count
    bound = generations * QUEUES * READ_AHEAD  # each generation may move every queue
    print(f"{kills} kills, {generations} generations, {again} of {count} messages again, at most {bound}")
    assert again <= bound
