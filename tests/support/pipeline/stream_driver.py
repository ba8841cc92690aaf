"""Micro-batches as Spark runs them, without Spark: offsets are logged, then read, then committed, with kills between.

The end of a batch is logged before anything of it is read; a batch that was logged and not committed is read again
after a restart, between the logged offsets; the initial offset is asked for anew.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tierlog.pipeline.source.stream_reader import TierlogStreamReader

Row = tuple[str, int, int, bytes]


class StreamDriver:
    """One query with its checkpoint; what the sink has is in :attr:`rows`, a list for each batch."""

    def __init__(self, make_reader: Callable[[], TierlogStreamReader]) -> None:
        self._make_reader = make_reader
        self._log: list[Any] = []
        self.rows: list[list[Row]] = []
        self._reader = make_reader()

    def restart(self) -> None:
        """A new process with the same checkpoint: a batch that was not committed is read again."""
        self.stop()
        self._reader = pickle.loads(pickle.dumps(self._make_reader()))
        if len(self._log) > len(self.rows):
            self._commit(self.read())

    def stop(self) -> None:
        """The process ends."""
        self._reader.stop()

    def take_checkpoint_of(self, other: StreamDriver) -> None:
        """Go on where another query, which has ended, has committed its last batch."""
        self._log, self.rows = list(other._log), list(other.rows)

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Log the next batch; False if there is nothing new."""
        start = self._start(len(self._log))
        end = self._json(self._reader.latestOffset(start, limit or self._reader.getDefaultReadLimit()))
        if end == start:
            return False
        self._log.append(end)
        return True

    def read(self) -> list[Row]:
        """The rows of the batch that is logged last."""
        start, end = self._start(len(self._log) - 1), self._log[-1]
        found: list[Row] = []
        for partition in self._reader.partitions(start, end):
            for batch in self._reader.read(pickle.loads(pickle.dumps(partition))):
                columns = (batch.column(name).to_pylist() for name in ("topic", "queue_id", "queue_offset", "body"))
                found += zip(*columns, strict=True)
        return found

    def trigger(self, limit: ReadLimit | None = None) -> list[Row]:
        """Plan, read and commit a batch; its rows."""
        if not self.plan(limit):
            return []
        return self._commit(self.read())

    def until_quiet(self) -> None:
        """Trigger until nothing is new."""
        while self.plan():
            self._commit(self.read())

    def available_now(self) -> list[Row]:
        """A run of ``Trigger.AvailableNow`` from a new process; the rows of its batches."""
        self.restart()
        before = len(self.rows)
        self._reader.prepareForTriggerAvailableNow()
        self.until_quiet()
        self.restart()  # the run has ended
        return [row for batch in self.rows[before:] for row in batch]

    def everything(self) -> list[Row]:
        """All rows of the sink."""
        return [row for batch in self.rows for row in batch]

    def _commit(self, rows: list[Row]) -> list[Row]:
        self.rows.append(rows)
        self._reader.commit(self._log[-1])
        return rows

    def _start(self, batch: int) -> Any:
        return self._log[batch - 1] if batch else self._json(self._reader.initialOffset())

    @staticmethod
    def _json(offset: Any) -> Any:
        return json.loads(json.dumps(offset))


#: No limit, as ``Trigger.Once`` asks.
EVERYTHING = ReadAllAvailable()
