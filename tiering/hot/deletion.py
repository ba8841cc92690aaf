"""What ``topics.json`` keeps of a topic that was deleted, for ever: up to where, and where its queues go on.

A deleted topic keeps its id, so that its queues go on behind their old ends if it is made again, and its entry, so that
what the log still holds of it stays hidden. All of it that lies below :attr:`Deletion.below` is gone for every reader.
``told`` says that the archive has the tombstone of it; until then the store's own process owes it to the archive.

::

    {"deleted": true, "below": 8192, "begins": {"0": 17}, "tombstone": "…", "salt": "…", "told": false}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiering.format.manifest import Tombstone


@dataclass(frozen=True, slots=True)
class Deletion:
    """The last deletion of one topic."""

    below: int
    """Physical offset that the log had reached: no record of the topic below it is shown."""
    begins: Mapping[int, int]
    """Where each queue ended, which is where it begins if the topic is made again."""
    tombstone_id: str = ""
    salt: str = ""
    in_force: bool = True
    """There is no such topic; False once it was made again."""
    told: bool = False
    """The archive has the tombstone."""

    def tombstone(self, topic: str) -> Tombstone:
        """The erasure that carries it out."""
        return Tombstone(self.tombstone_id, topic, None, self.salt, None, None, self.below)

    def to_json(self) -> dict[str, Any]:
        """As ``topics.json`` has it."""
        return {
            "deleted": self.in_force,
            "below": self.below,
            "begins": {str(queue): offset for queue, offset in sorted(self.begins.items())},
            "tombstone": self.tombstone_id,
            "salt": self.salt,
            "told": self.told,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Deletion | None:
        """Inverse of :meth:`to_json`; None stays None."""
        if value is None:
            return None
        begins = {int(queue): int(offset) for queue, offset in value["begins"].items()}
        return cls(
            int(value["below"]), begins, str(value["tombstone"]), str(value["salt"]),
            bool(value["deleted"]), bool(value["told"]),
        )  # fmt: skip
