"""Who takes part in a soak, each on a thread: producers, members of a group, those who look up, and a keeper.

A service that is being killed answers nobody; everybody tries again. What a producer with a name of its own sends is
repeated until it is acknowledged; what a careless one sends is not, and may be there or not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

from tests.soak.ledger import RECURRING, RUN, Ledger, Request, Topic, body_of, keys_of, now_ms
from tests.support.index.index_merge import in_process
from tests.support.processes.nodes import NO_ANSWER, Json, RefusedError, ask
from tierlog.index.maintenance.merge_job import MergeJob
from tierlog.index.maintenance.merge_plan import Level, MergeOptions
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.objects.local import LocalObjectStore

GROUP = "/v1/groups/soak"
#: Busy, starting, or told to come again.
_COME_AGAIN = (408, 429, 503)
_UNDER_WAY = "urn:tierlog:problem:request-under-way"
#: What was appended by the try before has expired meanwhile.
_CONFLICT = "urn:tierlog:problem:conflict"
_PAUSE_S = 0.1
_DAYS_MS = 400 * 86_400_000


class Actor(threading.Thread):
    """Takes turns until it is told to stop; an error that is nobody's kill is a wrong answer."""

    def __init__(self, name: str, url: str, ledger: Ledger, chance: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self._url, self._ledger, self._chance = url, ledger, chance

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.turn()
            except NO_ANSWER:
                self.stopping.wait(_PAUSE_S)
            except RefusedError as error:
                if error.status not in _COME_AGAIN:
                    self._ledger.complain(f"{self.name}: {error}")
                self.stopping.wait(_PAUSE_S)
            except Exception as error:
                self._ledger.complain(f"{self.name}: {type(error).__name__}: {error}")
                self.stopping.wait(1)

    def turn(self) -> None:
        raise NotImplementedError

    def _until_answered(self, call: Callable[[], Json]) -> Json | None:
        """Try again until there is an answer; None if the end came first."""
        while not self.stopping.is_set():
            try:
                return call()
            except NO_ANSWER:
                self.stopping.wait(_PAUSE_S)
            except RefusedError as error:
                if error.status not in _COME_AGAIN and error.said.get("type") != _UNDER_WAY:
                    raise
                self.stopping.wait(_PAUSE_S)
        return None


class Producer(Actor):
    """Sends requests of 50 to 150 messages to random queues of one topic."""

    def __init__(
        self, name: str, url: str, ledger: Ledger, chance: random.Random, topic: Topic, *, is_careless: bool = False
    ) -> None:
        super().__init__(name, url, ledger, chance)
        self._topic, self._is_careless = topic, is_careless
        self._next = 0

    def turn(self) -> None:
        count, queue_id = self._chance.randrange(50, 151), self._chance.randrange(self._topic.queues)
        durability = self._chance.choice(("async", "flushed", "flushed", "archived"))
        first, self._next = self._next, self._next + count
        messages = [
            {"body": body_of(self.name, number), "keys": keys_of(self.name, number), "queue_id": queue_id}
            for number in range(first, first + count)
        ]
        is_async = durability == "async"
        request = self._ledger.sends(self.name, self._topic, queue_id, first, count, is_async=is_async)
        path = f"/v1/topics/{self._topic.name}/messages?durability={durability}"
        send = partial(ask, self._url, path, {"messages": messages})
        if self._is_careless:
            self._ledger.told(request, send()["results"])
        else:
            self._repeat(request, partial(send, idempotency_key=f"{self.name}:{first}"))
        self.stopping.wait(_PAUSE_S)

    def _repeat(self, request: Request, send: Callable[[], Json]) -> None:
        try:
            answer = self._until_answered(send)
        except RefusedError as error:
            if error.said.get("type") != _CONFLICT or request.must_be_kept(now_ms()):
                raise
            return
        if answer is not None:
            self._ledger.told(request, answer["results"])


class Member(Actor):
    """A member of the group: consumes what is assigned to it, and commits behind every page."""

    def __init__(self, name: str, url: str, ledger: Ledger, chance: random.Random) -> None:
        super().__init__(name, url, ledger, chance)
        self._joined: Json | None = None
        self._generation: int | None = None
        self._offsets: dict[tuple[str, str, int], int] = {}

    def turn(self) -> None:
        try:
            self._look_at_assignment()
            moved = [self._page(*queue) for queue in self._offsets]
        except RefusedError as error:
            if error.status == 404:
                self._joined = None
            elif error.status != 409:  # the queues were shared out anew
                raise
            self._generation = None
        else:
            if not any(moved):
                self.stopping.wait(_PAUSE_S)

    def _look_at_assignment(self) -> None:
        if self._joined is None:
            wanted = {"topics": sorted(self._ledger.topics), "session_timeout_ms": 10_000}
            self._joined, self._generation = ask(self._url, f"{GROUP}/members", wanted), None
        else:
            self._joined = ask(self._url, f"{GROUP}/members/{self._joined['member_id']}", method="PUT")
        if self._joined["generation"] != self._generation:
            queues = [(one["topic"], one["store_id"], one["queue_id"]) for one in self._joined["assignment"]]
            offsets = ask(self._url, f"{GROUP}/offsets")["offsets"]
            committed = {(one["topic"], one["store_id"], one["queue_id"]): one["offset"] for one in offsets}
            self._offsets = {queue: committed.get(queue, 0) for queue in queues}
            self._generation = self._joined["generation"]

    def _page(self, topic: str, store_id: str, queue_id: int) -> bool:
        """Consume one page; whether there was one."""
        assert self._joined is not None
        queue = (topic, store_id, queue_id)
        offset, limit = self._offsets[queue], self._chance.choice((50, 500))
        page = ask(self._url, f"/v1/topics/{topic}/queues/{queue_id}/messages?offset={offset}&limit={limit}")
        self._ledger.given(topic, queue_id, offset, page)
        if page["next_offset"] <= offset:
            return False
        self._offsets[queue] = page["next_offset"]
        place = {"topic": topic, "store_id": store_id, "queue_id": queue_id, "offset": page["next_offset"]}
        commit = {"member_id": self._joined["member_id"], "generation": self._generation, "offsets": [place]}
        ask(self._url, f"{GROUP}/offsets", commit, "PUT")
        return True


class LookUp(Actor):
    """Looks keys up, of one producer's neighbours or of all producers, of any time or of the last half minute."""

    def turn(self) -> None:
        topic = self._chance.choice(sorted(self._ledger.topics))
        requests = self._ledger.recent(topic)
        if not requests:
            self.stopping.wait(_PAUSE_S)
            return
        chosen = self._chance.choice(requests)
        number = chosen.first + self._chance.randrange(chosen.count)
        key = self._chance.choice((f"{chosen.producer}-{number // RUN}", f"r{number % RECURRING}"))
        from_ms = self._chance.choice((0, 0, now_ms() - 30_000))
        limit, order = self._chance.choice((7, 100, 1000)), self._chance.choice(("newest", "oldest"))
        path = f"/v1/topics/{topic}/messages?key={key}&from={from_ms}&limit={limit}&order={order}"
        wanted = self._ledger.wanted(topic, key, from_ms)
        found: list[Json] = []
        cursor: str | None = ""
        while cursor is not None:
            at = f"&cursor={quote(cursor, safe='')}" if cursor else ""
            page = self._until_answered(partial(ask, self._url, path + at))
            if page is None:
                return
            if not page["coverage"]["complete"]:
                self._ledger.complain(f"{topic} {key}: {page['coverage']}")
            found += page["messages"]
            cursor = page["next_cursor"]
        self._ledger.looked(topic, key, from_ms, wanted, found)
        self.stopping.wait(_PAUSE_S / 2)


class Keeper(Actor):
    """Asks for archive rounds and checks, and merges index objects beside the service as a job does."""

    def __init__(
        self, name: str, url: str, ledger: Ledger, chance: random.Random, cold: Path, store_id: str, grace_ms: int
    ) -> None:
        super().__init__(name, url, ledger, chance)
        self.rounds = self.merged = self.checks = 0
        self._manifest = ManifestStore(
            LocalObjectStore(cold, SystemClock()), ColdKeys(store_id), randomness=SystemRandomness(),
            options=ColdOptions(grace_ms=grace_ms), clock=SystemClock(),
        )  # fmt: skip

    def turn(self) -> None:
        what = self._chance.choice((self._archive, self._archive, self._merge, self._check))
        what()
        self.stopping.wait(self._chance.uniform(1, 6))

    def _archive(self) -> None:
        wanted = {"all": self._chance.random() < 0.3, "drop_hot": self._chance.random() < 0.7}
        ask(self._url, "/v1/admin/archive", wanted)
        self.rounds += 1

    def _merge(self) -> None:
        """As if the day, the month and the year were over."""
        if not self.rounds:
            return
        clock = ManualClock(now_ms() + _DAYS_MS)
        levels = self._chance.choice(((Level.DAY,), (Level.DAY, Level.MONTH), tuple(Level)))
        job = MergeJob(
            self._manifest, MergeOptions(late_ms=0), in_process(self._manifest.objects, SystemRandomness()), clock
        )
        report = job.run(levels)
        if report.failed:
            self._ledger.complain(f"merge: {report.failed}")
        self.merged += report.inputs

    def _check(self) -> None:
        report = ask(self._url, "/v1/admin/check", {"deep": False})
        if report["findings"]:
            self._ledger.complain(f"check: {report['findings'][:3]}")
        self.checks += 1
