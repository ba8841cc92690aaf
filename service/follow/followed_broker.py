"""What a process knows of a broker that it follows: for whoever serves, measures or answers in its place.

The follower's thread writes it, and any thread reads it; each field by itself is of one moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tierlog.service.engine.stats import ReadinessProblem
from tierlog.service.engine.store import Store
from tierlog.tiering.rocketmq.broker_files import BrokerTopic


class FollowState(StrEnum):
    """What a follower does at the moment."""

    CONNECTING = "connecting"
    """The broker is not reached; it is tried again."""
    WAITING = "waiting"
    """The broker has no log yet: it is looked for again."""
    FOLLOWING = "following"
    BEHIND = "behind"
    """It follows, and lags more than ``follow.behind_ms``."""
    GAP = "gap"
    """The broker has removed what was wanted: the store's log is made to go on behind it."""
    DIVERGED = "diverged"
    """The broker's log is another one than the archive has: an operator decides."""
    REFUSED = "refused"
    """The broker cannot be followed as it is set up: an operator decides."""
    PROMOTED = "promoted"
    """The broker is gone, and the store takes messages itself."""
    TWO_WRITERS = "two_writers"
    """The store was promoted, and the broker is back: both take messages."""
    STOPPED = "stopped"


_FOLLOWS = (FollowState.FOLLOWING, FollowState.PROMOTED)


@dataclass(slots=True)
class FollowedBroker:
    """A broker, the store that follows it, and how it goes."""

    name: str
    store_id: str
    cluster: str = ""
    """Its cluster's name; empty until the broker was reached."""
    address: str | None = None
    """Where the broker itself was reached last."""
    state: FollowState = FollowState.CONNECTING
    error: str | None = None
    """Why it does not follow; None while it does."""
    hint: str | None = None
    store: Store | None = None
    """The open store; None while it is opened again, as after a gap."""
    slaves: Sequence[str] = ()
    """Where its slaves answer, as a nameserver said last."""
    topics: Sequence[BrokerTopic] = field(default=())
    """The topics of the broker when they were copied last."""
    live_min_offset: int | None = None
    """Physical offset below which the broker itself has nothing any more; None until it was asked once."""
    live_max_offset: int | None = None
    """Physical offset where the broker's log ended when it was asked last."""
    heard_s: float = -math.inf
    """When the broker gave a sign of life last, by its log or by an answer: monotonic seconds."""
    end: int = 0
    """Physical offset below which everything is durable here; of a promoted store, where what it took itself begins."""
    lag_ms: int = 0
    margin_ms: int | None = None
    """ms until the broker may remove what is not durable here; None while that is not known."""
    gap_bytes: int | None = None
    """Bytes of the broker's log that nobody has any more: removed there before they were here; None while the archive,
    which says so, was not reached."""
    gap_declared_ms: int | None = None
    """When the newest of them were declared; None if there are none."""

    @property
    def lag_bytes(self) -> int:
        """Bytes that the broker had, when it was asked last, and that are not durable here."""
        return max(0, (self.live_max_offset or 0) - self.end)

    def stats(self) -> dict[str, object]:
        """Returns what ``tierlog stats`` tells of it, by name."""
        return {
            "state": self.state.value,
            "error": self.error,
            "hint": self.hint,
            "store_id": self.store_id,
            "cluster": self.cluster or None,
            "address": self.address,
            "end": self.end,
            "lag_bytes": self.lag_bytes,
            "lag_ms": self.lag_ms,
            "margin_ms": self.margin_ms,
            "gap_bytes": self.gap_bytes,
        }

    @property
    def is_promoted(self) -> bool:
        """Whether the store takes messages itself."""
        return self.state in (FollowState.PROMOTED, FollowState.TWO_WRITERS)

    @property
    def problem(self) -> ReadinessProblem | None:
        """Why this broker is not followed as it should be; None if it is."""
        if self.state in _FOLLOWS and self.store is not None:
            return None
        if self.state is FollowState.BEHIND:
            why = f"{self.lag_bytes} bytes, {self.lag_ms / 1000:.0f} s"
        else:
            why = self.error or "no reason is known"
        return ReadinessProblem(
            f"broker {self.name}: {self.state}: {why}",
            f"a broker is not followed: {self.state}",
            self.hint or "see to what the reason names; the follower goes on by itself",
        )
