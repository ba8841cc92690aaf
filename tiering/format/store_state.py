"""The ``state`` object: what a new volume, or a reader without one, must know of a store beyond its records.

One section ``TLSTATE1`` without pages; ``docs/formats/manifest.md`` has its fields. Unknown keys are ignored.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiering.format.section import encode_section, whole_section

MAGIC_STATE = b"TLSTATE1"
VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicState:
    """What the archive remembers of one topic."""

    topic_id: int
    name: str
    queues: int
    archive: bool = True
    cold_retention_ms: int | None = None
    hold: bool = False


@dataclass(frozen=True, slots=True)
class StoreState:
    """The topics of a store, in the order of their creation."""

    topics: tuple[TopicState, ...] = ()

    def encode(self) -> bytes:
        """The state object."""
        return encode_section(MAGIC_STATE, VERSION, {"topics": [asdict(topic) for topic in self.topics]})[0]

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> StoreState:
        """Inverse of :meth:`encode`; raises the errors of a section."""
        table, _ = whole_section(data, MAGIC_STATE, VERSION, path=path)
        return cls(tuple(_topic(value) for value in table["topics"]))


def _topic(value: dict[str, Any]) -> TopicState:
    return TopicState(
        value["topic_id"], value["name"], value["queues"],
        value.get("archive", True), value.get("cold_retention_ms"), value.get("hold", False),
    )  # fmt: skip
