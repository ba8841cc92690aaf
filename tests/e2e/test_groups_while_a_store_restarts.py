"""Three consumers over two stores, each a process, while one of them is killed and started again."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

GROUP = "/v1/groups/billing"
QUEUES = {"store-a": 3, "store-b": 2}
MESSAGES = 400
_DEADLINE_S = 120.0
NO_ANSWER = (OSError, http.client.HTTPException)
Queue = tuple[str, int]


def ask(url: str, path: str, body: object = None, method: str | None = None, key: str = "") -> Any:
    """One request; an error answer raises :class:`urllib.error.HTTPError`, which is an OSError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    request = urllib.request.Request(f"{url}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that an answer will say."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline_s:
        try:
            if is_so():
                return
        except NO_ANSWER:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not within {_DEADLINE_S} s: {what}")


class Process:
    """One node."""

    def __init__(self, folder: Path, store_id: str) -> None:
        self.store_id = store_id
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "tierlog.service.main", "serve", "--root", str(self._folder / self.store_id),
            "--cold", (self._folder / "cold").as_uri(), "--store-id", self.store_id,
            "--port", self.url.rpartition(":")[2],
        ]  # fmt: skip
        settings = {"ADDRESS": self.url, "REFRESH_MS": "200", "RETRY_MS": "100", "ASK_TIMEOUT_MS": "20000"}
        environment = {**os.environ, **{f"TIERLOG_CLUSTER_{name}": value for name, value in settings.items()}}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class Producer(threading.Thread):
    """Appends numbered messages to one store until each is acknowledged."""

    def __init__(self, url: str, store_id: str) -> None:
        super().__init__(daemon=True)
        self.bodies = {f"{store_id}-{number}" for number in range(MESSAGES)}
        self.sent = 0
        self._url, self._store_id = url, store_id

    def run(self) -> None:
        path = f"/v1/topics/orders/messages?store_id={self._store_id}"
        while self.sent < MESSAGES:
            messages = [{"body": f"{self._store_id}-{number}"} for number in range(self.sent, self.sent + 4)]
            try:
                ask(self._url, path, {"messages": messages}, key=f"{self._store_id}:{self.sent}")
            except NO_ANSWER:
                time.sleep(0.05)
            else:
                self.sent += 4


class Consumer(threading.Thread):
    """One member, which asks the nodes in turn and notes what it consumed."""

    def __init__(self, urls: list[str], first: int, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.consumed: list[tuple[Queue, int, str]] = []
        self._urls = itertools.islice(itertools.cycle(urls), first, None)
        self._stopping = stopping
        self._member: Any = None
        self._generation: int | None = None
        self._offsets: dict[Queue, int] = {}

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        self._member = None
                    elif error.code == 409:
                        self._generation = None
            except NO_ANSWER:
                time.sleep(0.05)

    def _turn(self) -> None:
        if self._member is None:
            wanted = {"topics": ["orders"], "session_timeout_ms": 10_000}
            self._member, self._generation = self._ask(f"{GROUP}/members", wanted), None
        else:
            self._member = self._ask(f"{GROUP}/members/{self._member['member_id']}", method="PUT")
        if self._member["generation"] != self._generation:
            offsets = self._ask(f"{GROUP}/offsets")["offsets"]
            committed = {(one["store_id"], one["queue_id"]): one["offset"] for one in offsets}
            queues = [(one["store_id"], one["queue_id"]) for one in self._member["assignment"]]
            self._offsets = {queue: committed.get(queue, 0) for queue in queues}
            self._generation = self._member["generation"]
        for queue in self._offsets:
            self._consume(queue)
        if self._offsets:
            entries = [
                {"topic": "orders", "store_id": store_id, "queue_id": queue_id, "offset": offset}
                for (store_id, queue_id), offset in self._offsets.items()
            ]
            named = {"member_id": self._member["member_id"], "generation": self._generation}
            self._ask(f"{GROUP}/offsets", {**named, "offsets": entries}, "PUT")

    def _consume(self, queue: Queue) -> None:
        store_id, queue_id = queue
        path = f"/v1/topics/orders/queues/{queue_id}/messages?limit=7&store_id={store_id}&offset={self._offsets[queue]}"
        try:
            page = self._ask(path)
        except NO_ANSWER:  # the others go on
            return
        self.consumed += [(queue, message["queue_offset"], message["body"]) for message in page["messages"]]
        self._offsets[queue] = page["next_offset"]

    def _ask(self, path: str, body: object = None, method: str | None = None) -> Any:
        return ask(next(self._urls), path, body, method)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, Process]]:
    with ExitStack() as stack:
        made = {store_id: Process(tmp_path, store_id) for store_id in QUEUES}
        for node in made.values():
            node.start()
            stack.callback(node.kill)
        for node in made.values():
            until(partial(_knows_all, node), "nodes know each other")
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["home", "other"])
def test_every_message_of_both_stores_is_consumed_and_none_is_skipped(cluster: dict[str, Process], killed: str) -> None:
    urls = [node.url for node in cluster.values()]
    for store_id, queues in QUEUES.items():
        ask(urls[0], f"/v1/topics/orders?store_id={store_id}", {"queues": queues}, "PUT")
    stopping = threading.Event()
    consumers = [Consumer(urls, first, stopping) for first in range(3)]
    producers = [Producer(node.url, store_id) for store_id, node in cluster.items()]
    for thread in (*consumers, *producers):
        thread.start()
    until(lambda: len(ask(urls[0], GROUP)["members"]) == len(consumers), "all have joined")
    until(lambda: sum(len(consumer.consumed) for consumer in consumers) > MESSAGES / 4, "something is consumed")
    (home,) = [store_id for store_id, node in cluster.items() if _keeps_the_group(node)]
    (other,) = QUEUES.keys() - {home}
    node = cluster[home if killed == "home" else other]
    node.kill()
    generation = None if killed == "home" else ask(cluster[home].url, GROUP)["generation"]
    sent = [producer.sent for producer in producers]
    until(lambda: any(now.sent > before for now, before in zip(producers, sent, strict=True)), "the other one goes on")
    node.start()
    for producer in producers:
        producer.join(_DEADLINE_S)
        assert producer.sent == MESSAGES
    until(lambda: _is_done(urls[0]), "all is committed")
    if generation is not None:
        assert ask(urls[0], GROUP)["generation"] == generation, "a restart of a store is no rebalance"
    stopping.set()
    for consumer in consumers:
        consumer.join(_DEADLINE_S)
    found = {(queue, offset): body for consumer in consumers for queue, offset, body in consumer.consumed}
    assert sorted(found.values()) == sorted(producers[0].bodies | producers[1].bodies), "each at one place"
    for queue in {queue for queue, _ in found}:
        offsets = sorted(offset for each, offset in found if each == queue)
        assert offsets == list(range(len(offsets))), "none is skipped"


def _knows_all(node: Process) -> bool:
    return len(ask(node.url, "/v1/cluster")["stores"]) == len(QUEUES)


def _keeps_the_group(node: Process) -> bool:
    return bool(ask(node.url, f"/v1/groups?store_id={node.store_id}")["groups"])


def _is_done(url: str) -> bool:
    group = ask(url, GROUP)
    offsets = [queue["offset"] for queue in group["queues"]]
    return group["lag"] == 0 and None not in offsets and len(offsets) == sum(QUEUES.values())
