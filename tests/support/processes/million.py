"""A million messages for a cluster: who sends them until they are acknowledged, who archives, and who counts them."""

from __future__ import annotations

import io
import itertools
import json
import random
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tests.support.processes.nodes import NO_ANSWER, Node, RefusedError, ask

ARROW = "application/vnd.apache.arrow.stream"
BATCH = 5_000
#: So many neighbours share a key, which comes again in later requests.
RUN = 200
_BODY_BYTES = 100
_PAUSE_S = 0.3
#: The try before is still at it: one that was given up waits for a bucket that is paused.
_UNDER_WAY = "urn:tierlog:problem:request-under-way"


def batch_of(first: int, keys: int) -> bytes:
    """Messages numbered from ``first``, each with one of so many keys."""
    numbers = range(first, first + BATCH)
    table = pa.table(
        {
            "body": [b"%d " % number + b"." * _BODY_BYTES for number in numbers],
            "keys": [[f"k{number // RUN % keys}"] for number in numbers],
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@dataclass
class Producers:
    """A thread a topic; each request is repeated, under the same key, until it is acknowledged.

    Every next request goes to another node, and so does every repeat: about half of them to one that sends them on.
    """

    homes: dict[str, Node]
    count: int
    keys: int
    limit_s: float
    acknowledged: int = 0
    #: Of these, how many were acknowledged by a node that is not their topic's home.
    sent_on: int = 0
    #: Tries that came to nothing, and of these, how many were answered at all.
    repeated: int = 0
    refused: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Until all are acknowledged; raises if one is not within the limit."""
        deadline_s = time.monotonic() + self.limit_s
        with ThreadPoolExecutor(len(self.homes)) as pool:
            for done in [pool.submit(self._send, topic, deadline_s) for topic in self.homes]:
                done.result()

    def _send(self, topic: str, deadline_s: float) -> None:
        nodes = itertools.cycle({node.url: node for node in self.homes.values()}.values())
        for first in range(0, self.count, BATCH):
            content = batch_of(first, self.keys)
            while not self._is_taken(topic, next(nodes), first, content):
                if time.monotonic() > deadline_s:
                    raise AssertionError(f"{topic} {first} was not acknowledged within {self.limit_s} s")
                time.sleep(_PAUSE_S)

    def _is_taken(self, topic: str, node: Node, first: int, content: bytes) -> bool:
        try:
            ask(
                node.url, f"/v1/topics/{topic}/messages", content, "POST", timeout_s=60,
                content_type=ARROW, idempotency_key=f"loader-{topic}:{first}",
            )  # fmt: skip
        except RefusedError as error:
            if error.status not in (429, 503) and error.said.get("type") != _UNDER_WAY:
                raise
            with self._lock:
                self.refused += 1
        except NO_ANSWER:
            pass
        else:
            with self._lock:
                self.acknowledged += BATCH
                self.sent_on += BATCH * (node is not self.homes[topic])
            return True
        with self._lock:
            self.repeated += 1
        return False


class Archiving:
    """Archives and drops hot copies again and again on every node, until the context ends."""

    def __init__(self, nodes: list[Node]) -> None:
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(node,), daemon=True) for node in nodes]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(90)

    def _run(self, node: Node) -> None:
        while not self._ended.wait(2):
            try:
                ask(node.url, "/v1/admin/archive", {"drop_hot": True}, timeout_s=60)
            except (RefusedError, *NO_ANSWER):
                continue  # the node is down, or its bucket: both come back


def archived(node: Node, *, everything: bool, limit_s: float = 90) -> None:
    """Archive all there is, or every sealed segment, and drop those hot copies; repeated while the bucket is away."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            ask(node.url, "/v1/admin/archive", {"all": everything, "drop_hot": True}, timeout_s=limit_s)
            return
        except (RefusedError, *NO_ANSWER):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(1)


@dataclass(frozen=True)
class Found:
    """What one look-up found; ``numbers`` in ascending order."""

    numbers: np.ndarray[tuple[int], np.dtype[np.int64]]
    stores: Counter[str]
    tiers: Counter[str]


def with_key(url: str, topic: str, key: str) -> Found:
    """All messages with a key; the answer says that it is complete."""
    request = urllib.request.Request(f"{url}/v1/topics/{topic}/messages?key={key}&all=true", headers={"Accept": ARROW})
    with urllib.request.urlopen(request, timeout=120) as answer:
        reader = pa.ipc.open_stream(answer.read())
    batches: list[pa.RecordBatch] = []
    coverage: dict[str, object] = {}
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            break
        batches.append(batch)
        if metadata is not None and b"coverage" in metadata:
            coverage = json.loads(metadata[b"coverage"])
    assert coverage.get("complete") is True, f"{topic} {key}: {coverage}"
    table = pa.Table.from_batches(batches, reader.schema)
    numbers = np.array([int(body.split(b" ", 1)[0]) for body in table["body"].to_pylist()], np.int64)
    return Found(np.sort(numbers), Counter(table["store_id"].to_pylist()), Counter(table["tier"].to_pylist()))


def count_by_key(url: str, homes: dict[str, str], count: int, keys: int, chance: random.Random) -> Counter[str]:
    """Look every key of every topic up; every message must be found once, in its topic's home. Counts by tier."""

    def look(job: tuple[str, int]) -> Counter[str]:
        topic, key = job
        found = with_key(url, topic, f"k{key}")
        wanted = numbers[numbers // RUN % keys == key]
        assert np.array_equal(found.numbers, wanted), f"{topic} k{key}: found {len(found.numbers)} of {len(wanted)}"
        assert found.stores == {homes[topic]: len(wanted)}
        return found.tiers

    numbers = np.arange(count)
    jobs = [(topic, key) for topic in homes for key in range(keys)]
    chance.shuffle(jobs)
    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(look, jobs), Counter())
