"""A consumer group with its queues in memory, as the service has it, for a consumer's transport.

It follows the rules of ``service.engine.groups``: every change of membership begins a generation, and a commit of
another one is refused. Tests change membership and faults behind the consumer's back.
"""

from __future__ import annotations

import asyncio
import re
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson

from tests.support.client.scripted import good, problem
from tierlog.client.errors import NoAnswerError
from tierlog.client.requests import Answer, Request

Json = dict[str, Any]
TOPIC, STORE = "orders", "store-a"


class GroupInMemory:
    """One group, one topic; ``assigned`` says which queues the consumer has now.

    Queues are of one store unless ``stores`` says another; their messages are of the time 2 ms unless ``times`` does.
    """

    def __init__(self, queues: dict[int, int], *, session_timeout_ms: int = 30_000) -> None:
        """``queues`` are numbers of messages."""
        self.ends = queues
        self.assigned = set(queues)
        self.committed: dict[int, int] = {}
        self.generation = 0
        self.members: set[str] = set()
        self.stores: dict[int, str] = {}
        self.times: dict[int, list[int]] = {}
        #: What the service's clock says, in ms; None: no answer tells it.
        self.now_ms: int | None = None
        #: Stores that do not say where their queues end, and those that are in the cluster no more.
        self.down: set[str] = set()
        self.gone: set[str] = set()
        #: What every commit is refused with.
        self.refusal: Answer | None = None
        self.hung: set[str] = set()
        self.requests: list[Request] = []
        self.commits: list[dict[int, int]] = []
        self.resets: list[dict[int, int]] = []
        self.pulled: list[tuple[int, int]] = []
        self.left: list[str] = []
        self.is_away = self.hangs = False
        self.body = "x"
        self._session_ms = session_timeout_ms
        self._came = asyncio.Event()

    def share_out(self, *queues: int) -> None:
        """The consumer has these from now on."""
        self.assigned = set(queues)
        self.generation += 1

    def came(self) -> None:
        """Pulls that wait at the end of a queue look again."""
        self._came.set()
        self._came = asyncio.Event()

    def forget(self) -> None:
        """As a service that was started again."""
        self.members.clear()

    async def send(self, request: Request) -> Answer:
        self.requests.append(request)
        if f"{request.method} {request.path}" in self.hung:
            await asyncio.sleep(3_600 if request.within_s is None else request.within_s)
            raise NoAnswerError("timed out")
        answer = await self._answer(request)
        dated = {} if self.now_ms is None else {"date": formatdate(self.now_ms / 1000, usegmt=True)}
        return Answer(answer.status, {**answer.headers, **dated}, answer.body)

    async def _answer(self, request: Request) -> Answer:
        await asyncio.sleep(3_600 if self.hangs else 0)
        if self.is_away:
            raise NoAnswerError("refused")
        parts = urlsplit(request.path)
        body = orjson.loads(request.body) if request.body else {}
        if found := re.fullmatch(r"/v1/groups/g/members(?:/(\w+))?", parts.path):
            return self._members(request.method, found[1])
        if parts.path == "/v1/groups/g/offsets":
            return self._commit(body) if request.method == "PUT" else self._offsets()
        found = re.fullmatch(rf"/v1/topics/{TOPIC}/queues/(\d+)/(messages|offset)", parts.path)
        assert found, request.path
        queue, asked = int(found[1]), dict(parse_qsl(parts.query))
        assert asked["store_id"] == self._store_of(queue)
        if asked["store_id"] in self.gone:
            return problem(404, "not-found")
        if found[2] == "offset":
            times = [self._time_of(queue, offset) for offset in range(self.ends[queue])]
            return good({"offset": sum(time_ms < int(asked["time_ms"]) for time_ms in times)})
        return await self._pull(queue, asked)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        pass

    def _members(self, method: str, member_id: str | None) -> Answer:
        if method == "POST":
            self.generation += 1
            member_id = f"member{self.generation}"
            self.members.add(member_id)
        if method == "DELETE":
            assert member_id is not None
            self.left.append(member_id)
            return good({})
        if member_id not in self.members:
            return problem(404, "member-not-found")
        queues = [self._ref_of(one) for one in sorted(self.assigned)]
        return good(
            {
                "group": "g", "member_id": member_id, "generation": self.generation,
                "session_timeout_ms": self._session_ms, "assignment": queues,
            }
        )  # fmt: skip

    def _offsets(self) -> Answer:
        offsets = [{**self._ref_of(one), "offset": offset} for one, offset in self.committed.items()]
        return good({"group": "g", "generation": self.generation, "offsets": offsets})

    def _commit(self, body: Json) -> Answer:
        if body["member_id"] not in self.members:
            return problem(404, "member-not-found")
        if body["generation"] != self.generation:
            return problem(409, "stale-generation")
        offsets = {one["queue_id"]: one["offset"] for one in body["offsets"]}
        if not set(offsets) <= self.assigned:
            return problem(409, "conflict")
        if self.refusal is not None:
            return self.refusal
        if self.down.intersection(self._store_of(one) for one in offsets):
            return problem(503, "unavailable")
        least = {} if body.get("reset") else self.committed
        if any(offset < least.get(one, 0) or offset > self.ends[one] for one, offset in offsets.items()):
            return problem(400, "invalid-request")
        self.commits.append(offsets)
        if body.get("reset"):
            self.resets.append(offsets)
        self.committed |= offsets
        return self._offsets()

    async def _pull(self, queue: int, asked: dict[str, str]) -> Answer:
        offset, end = int(asked["offset"]), self.ends[queue]
        self.pulled.append((queue, offset))
        last = min(end, offset + int(asked["limit"]))
        if offset > end:
            return good(_page("OFFSET_TOO_LARGE", end, end, []))
        if offset == end:
            if "wait_ms" in asked:
                await self._came.wait()
            return good(_page("NO_NEW_MESSAGE", end, self.ends[queue], []))
        return good(_page("FOUND", last, end, [self._message(queue, one) for one in range(offset, last)]))

    def _store_of(self, queue: int) -> str:
        return self.stores.get(queue, STORE)

    def _time_of(self, queue: int, offset: int) -> int:
        times = self.times.get(queue, [])
        return times[offset] if offset < len(times) else 2

    def _ref_of(self, queue: int) -> Json:
        return {"topic": TOPIC, "store_id": self._store_of(queue), "queue_id": queue}

    def _message(self, queue: int, offset: int) -> Json:
        return {
            "message_id": f"{queue}-{offset}", "store_id": self._store_of(queue), "physical_offset": 0, "topic": TOPIC,
            "queue_id": queue, "queue_offset": offset, "keys": [], "tag": "", "properties": {}, "born_ms": 1,
            "store_ms": self._time_of(queue, offset), "tier": "hot", "size_bytes": 100, "body": self.body,
        }  # fmt: skip


def _page(status: str, next_offset: int, end: int, messages: list[Json]) -> Json:
    return {
        "status": status, "next_offset": next_offset, "min_offset": 0, "max_offset": end, "messages": messages
    }  # fmt: skip
