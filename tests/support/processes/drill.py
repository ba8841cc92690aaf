"""Who takes part in a failover drill: producers that note what they were told, and a consumer that keeps its place."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from urllib.parse import quote

from tests.support.processes.nodes import NO_ANSWER, Json, RefusedError, ask

GROUP = "/v1/groups/audit/offsets"


@dataclass
class Ledger:
    """What producers sent, and what each was told; thread safe."""

    sent: set[str] = field(default_factory=set)
    told: dict[str, set[str]] = field(default_factory=lambda: {"flushed": set(), "archived": set()})
    refused: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self) -> int:
        """Messages that were acknowledged."""
        return sum(map(len, self.told.values()))

    @property
    def acknowledged(self) -> set[str]:
        """All of them, whatever the level."""
        return set().union(*self.told.values())

    def produce(self, url: str, topic: str, level: str, name: str, first: int, count: int) -> bool:
        """One request; whether it was acknowledged."""
        bodies = [f"{name} {number}" for number in range(first, first + count)]
        messages = [{"body": body, "keys": [body.replace(" ", "-")], "tag": level} for body in bodies]
        with self._lock:
            self.sent |= set(bodies)
        path = f"/v1/topics/{topic}/messages?durability={level}"
        try:
            results = ask(url, path, {"messages": messages}, idempotency_key=f"{name}:{first}")["results"]
        except RefusedError:
            self.refused += 1
            return False
        except NO_ANSWER:
            return False
        assert len(results) == count
        with self._lock:
            self.told[level] |= set(bodies)
        return True


class Load:
    """Producers, each on a thread, that go on until one of their requests is not acknowledged."""

    def __init__(self, ledger: Ledger, url: str, topics: tuple[str, ...], name: str) -> None:
        self._ledger = ledger
        self._threads = [
            threading.Thread(target=self._run, args=(url, topic, level, f"{name}-{topic}-{level}"), daemon=True)
            for topic in topics
            for level in ("flushed", "archived")
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, url: str, topic: str, level: str, name: str) -> None:
        first = 0
        while self._ledger.produce(url, topic, level, name, first, 5):
            first += 5

    def wait(self, limit_s: float = 120.0) -> None:
        """Until all have ended."""
        for thread in self._threads:
            thread.join(limit_s)
            assert not thread.is_alive(), "a producer got no answer"


def queried(url: str, topic: str) -> list[Json]:
    """All messages of a topic as a query finds them, page by page; each page says that it is complete."""
    found: list[Json] = []
    cursor = ""
    while True:
        page = ask(url, f"/v1/topics/{topic}/messages?limit=500{cursor}")
        assert page["coverage"]["complete"], page["coverage"]
        found += page["messages"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={quote(page['next_cursor'], safe='')}"


@dataclass
class Consumer:
    """Pulls from where the group is, commits behind every page, and keeps all that it was given."""

    #: Body, queue and offset of everything, in the order in which it came.
    given: list[tuple[str, str, int, int]] = field(default_factory=list)

    def committed(self, url: str) -> dict[tuple[str, int], int]:
        """Where the group is; nowhere before its first commit."""
        try:
            offsets = ask(url, GROUP)["offsets"]
        except RefusedError as error:
            if error.status != 404:
                raise
            return {}
        return {(one["topic"], one["queue_id"]): one["offset"] for one in offsets}

    def consume(self, url: str, topics: tuple[str, ...], most_pages: int = 1 << 30) -> int:
        """Go on to the end of every queue, or for so many pages of each; how many jumps were followed."""
        jumps, places = 0, self.committed(url)
        for topic in topics:
            for queue in ask(url, f"/v1/topics/{topic}")["offsets"]:
                queue_id = queue["queue_id"]
                offset = places.get((topic, queue_id), 0)
                for _ in range(most_pages):
                    path = f"/v1/topics/{topic}/queues/{queue_id}/messages?offset={offset}&limit=20"
                    page: Json = ask(url, path)
                    self.given += [(one["body"], topic, queue_id, one["queue_offset"]) for one in page["messages"]]
                    jumps += page["status"] == "NO_MATCHED_MESSAGE" and page["next_offset"] - offset > 1 << 31
                    if page["next_offset"] > offset:
                        offset = page["next_offset"]
                        moved = {"topic": topic, "queue_id": queue_id, "offset": offset}
                        ask(url, GROUP, {"offsets": [moved]}, "PUT")
                    if page["status"] == "NO_NEW_MESSAGE":
                        break
        return jumps
