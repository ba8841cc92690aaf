"""A log in memory that takes appends of the client, and may refuse messages or lose answers."""

from __future__ import annotations

import orjson

from tests.support.client.scripted import Said, good, problem
from tierlog.client.errors import NoAnswerError
from tierlog.client.requests import Request


class FakeLog:
    """Takes appends as the service does: all or nothing, and each number of a producer once."""

    def __init__(self, refused: frozenset[str] = frozenset(), lost: int = 0) -> None:
        self.bodies: list[str] = []
        self.known: dict[tuple[str, int], int] = {}
        self.sizes: list[int] = []
        self._refused = refused
        self._lost = lost

    def __call__(self, request: Request) -> Said:
        if request.method == "GET":
            return good({"topic": "t", "store_id": "s", "url": None, "is_routed": False})
        assert request.body is not None
        bodies = [orjson.loads(line)["body"] for line in request.body.split(b"\n")]
        self.sizes.append(len(bodies))
        if self._refused.intersection(bodies):
            return problem(400, "invalid-request", position=[one in self._refused for one in bodies].index(True))
        producer, _, first = request.headers["Idempotency-Key"].partition(":")
        results = []
        for place, body in enumerate(bodies):
            number = (producer, int(first) + place)
            if number not in self.known:
                self.known[number] = len(self.bodies)
                self.bodies.append(body)
            offset = self.known[number]
            assert self.bodies[offset] == body, "a number stands for one message"
            results.append({"message_id": f"{offset}", "queue_id": 0, "queue_offset": offset, "store_ms": 1})
        if self._lost:  # appended, and nobody is told
            self._lost -= 1
            return NoAnswerError("cut off")
        return good({"results": results})
