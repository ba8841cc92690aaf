"""A broker's store directory as the broker left it, for what tierlog shows of it beside the messages."""

from __future__ import annotations

from dataclasses import dataclass

from tiering.errors import CorruptionError
from tiering.fs import FileSystem
from tiering.paths import StorePaths
from tiering.rocketmq.check import check_broker
from tiering.rocketmq.config_files import read_consumer_offsets


@dataclass(frozen=True, slots=True)
class BrokerStore:
    """The directory below the overlay; nothing here writes."""

    fs: FileSystem
    paths: StorePaths

    def check(self) -> list[str]:
        """One line a finding, see :func:`check_broker`."""
        return check_broker(self.fs, self.paths)

    def consumer_offsets(self) -> dict[str, dict[str, int]] | str:
        """``topic@group`` to the next offset of each queue, as the broker names them, or why that cannot be told."""
        try:
            found = read_consumer_offsets(self.fs, self.paths)
        except CorruptionError as error:
            return str(error)
        return {
            f"{topic}@{group}": {str(queue): offset for queue, offset in queues.items()}
            for (topic, group), queues in found.items()
        }
