"""How long to leave the other side alone after a failure: longer with every one in a row, and never in step."""

from __future__ import annotations

from tiering.clock import Clock
from tiering.randomness import Randomness

_JITTER_BYTES = 4


class Backoff:
    """Pauses between tries: ``first_s`` after the first failure, twice as long after each further one up to ``most_s``.

    Each pause is drawn between half of that and all of it, so that many nodes which lost the same bucket do not come
    back together. One success forgets all failures. For one thread.
    """

    def __init__(self, clock: Clock, randomness: Randomness, *, first_s: float, most_s: float) -> None:
        self._clock = clock
        self._randomness = randomness
        self._first_s = first_s
        self._most_s = max(first_s, most_s)
        self._longest_s = first_s
        self._until_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is time to try."""
        return self._until_s is None or self._clock.monotonic_s() >= self._until_s

    @property
    def left_s(self) -> float:
        """How much of the pause is left, 0 once it is over."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - self._clock.monotonic_s())

    def failed(self) -> None:
        """Begin the next pause now: a try that took long is not followed at once by another."""
        share = int(self._randomness.token_hex(_JITTER_BYTES), 16) / (1 << 8 * _JITTER_BYTES)
        self._until_s = self._clock.monotonic_s() + self._longest_s * (1 + share) / 2
        self._longest_s = min(2 * self._longest_s, self._most_s)

    def succeeded(self) -> None:
        """Forget the failures."""
        self._until_s, self._longest_s = None, self._first_s
