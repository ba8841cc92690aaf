"""What is counted of requests, for metrics. Labels are routes, methods and reasons that the code knows."""

from __future__ import annotations

import threading

from tiering.gauging import Histograms, Tally

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))
_REFUSALS = frozenset((401, 403, 413, 429, 503, 507))
#: The client went away before it was answered.
GONE = 499


class HttpCounts:
    """Counted since the service began. Thread safe."""

    def __init__(self) -> None:
        self.requests = Tally()
        self.seconds = Histograms()
        self.bytes = Tally()
        self.refused = Tally()
        self.in_flight = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Count one that is being answered."""
        with self._lock:
            self.in_flight += 1

    def end(
        self, route: str, method: str, status: int, taken_s: float, *, received: int, sent: int, problem: str | None
    ) -> None:
        """Count one that ended; ``problem`` is the title of the problem that was answered."""
        method = method if method in _METHODS else "other"
        self.requests.add((route, method, str(status)))
        self.seconds.observe((route, method), taken_s)
        self.bytes.add(("received",), received)
        self.bytes.add(("sent",), sent)
        if status in _REFUSALS:
            self.refused.add(((problem or str(status)).replace(" ", "_"),))
        with self._lock:
            self.in_flight -= 1
