"""Rules by which archived messages expire."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from tiering.options import RetentionOptions
from tiering.store_view import RetainedTopic

_LEAST_STEP_MS = 60_000
_MOST_STEP_MS = 3_600_000


class Rules(Protocol):
    """What is too old, and what is too much."""

    def topic_below_ms(self, topic: RetainedTopic, now_ms: int) -> int | None:
        """Archived messages of the topic that were stored before count as expired; None: none do by this rule."""
        ...

    def step_ms(self, topic: RetainedTopic) -> int:
        """By how much the expiry of a topic rises at least: each rise is a commit."""
        ...

    def archive_below_ms(self, now_ms: int) -> int | None:
        """Segments whose newest record was stored before leave the archive; None: none do for their age."""
        ...

    @property
    def most_bytes(self) -> int:
        """The oldest segments leave above so many bytes of segments and index objects; 0: no limit."""
        ...


@dataclass(frozen=True, slots=True)
class SetRules:
    """The rules that are set: of each topic, and for the whole archive those of the settings."""

    options: RetentionOptions = field(default_factory=RetentionOptions)

    def topic_below_ms(self, topic: RetainedTopic, now_ms: int) -> int | None:
        """By the topic's own retention."""
        return None if topic.cold_retention_ms is None else now_ms - topic.cold_retention_ms

    def step_ms(self, topic: RetainedTopic) -> int:
        """A 24th of the retention, a minute at least and an hour at most."""
        return min(_MOST_STEP_MS, max(_LEAST_STEP_MS, (topic.cold_retention_ms or 0) // 24))

    def archive_below_ms(self, now_ms: int) -> int | None:
        """By the retention of the archive."""
        return now_ms - self.options.cold_retention_ms if self.options.cold_retention_ms else None

    @property
    def most_bytes(self) -> int:
        """By the settings."""
        return self.options.cold_max_bytes


@dataclass(frozen=True, slots=True)
class GivenRules:
    """What somebody asks for now: an age or a store time, for some topics or for the whole archive."""

    age_ms: int | None = None
    before_ms: int | None = None
    """In place of an age."""
    topics: Collection[str] = ()
    """Empty: the whole archive."""

    def topic_below_ms(self, topic: RetainedTopic, now_ms: int) -> int | None:
        """Of the topics that are named."""
        return self._below_ms(now_ms) if topic.name in self.topics else None

    def step_ms(self, topic: RetainedTopic) -> int:
        """To the millisecond."""
        return 1

    def archive_below_ms(self, now_ms: int) -> int | None:
        """Unless topics are named."""
        return None if self.topics else self._below_ms(now_ms)

    @property
    def most_bytes(self) -> int:
        """No limit."""
        return 0

    def _below_ms(self, now_ms: int) -> int:
        if self.before_ms is not None:
            return min(self.before_ms, now_ms)
        return now_ms - (self.age_ms or 0)
