"""A store or an archive that a command opened in its own process, answering as a running service does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from service.wire import Json, answer_json, file_json, pull_json, report_json, topic_json
from tiering.errors import TopicNotFoundError
from tiering.types import Boundary, Durability

if TYPE_CHECKING:
    from index.query import Query
    from service.cli.targets import Progress
    from service.cold_engine import ColdEngine
    from service.engine import Engine
    from tiering.batch import Message
    from tiering.group_offsets import Queue


class LocalReader:
    """An engine in this process."""

    def __init__(self, engine: Engine | ColdEngine) -> None:
        self._reading = engine

    def query(self, query: Query) -> Json:
        """A page of results."""
        return answer_json(self._reading.query(query))

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, *, wait_ms: int = 0, tag: str | None = None
    ) -> Json:
        """Messages of a queue in order."""
        return pull_json(self._reading.pull(topic, queue_id, offset, limit, tag))

    def offset_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The first offset at or after a time."""
        return self._reading.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)

    def topics(self) -> list[Json]:
        """Topics with their queues."""
        return [topic_json(topic) for topic in self._reading.topics()]

    def files(self) -> list[Json]:
        """Segments and index files."""
        return [file_json(file) for file in self._reading.files()]

    def stats(self) -> Json:
        """Sizes and lags."""
        return dict(self._reading.stats())

    def check(self, *, deep: bool, progress: Progress | None) -> Json:
        """Findings and notes."""
        return self._reading.check_report(deep=deep, progress=progress).to_json()


class LocalWriter(LocalReader):
    """A store opened for writing in this process."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine

    def only_store(self, store_id: str) -> None:
        """There is no other."""

    def append(self, messages: Sequence[Message], durability: Durability) -> None:
        """Append a batch."""
        self._engine.append(messages, durability)

    def queues_of(self, topic: str) -> int | None:
        """How many queues a topic has."""
        try:
            return len(self._engine.topic(topic).queues)
        except TopicNotFoundError:
            return None

    def create_topic(self, name: str, queues: int) -> None:
        """Make a topic or give it more queues."""
        self._engine.create_topic(name, queues)

    def archive(self, *, until_ms: int | None, everything: bool, drop_hot: bool, progress: Progress | None) -> Json:
        """Archive now."""
        report = self._engine.archive(until_ms=until_ms, everything=everything, drop_hot=drop_hot, progress=progress)
        return report_json(report)

    def flush(self) -> None:
        """Make durable now."""
        self._engine.flush()

    def committed_offsets(self, group: str) -> dict[Queue, int]:
        """Where a consumer group is."""
        return dict(self._engine.groups.committed(group).offsets)

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commit for a group without members."""
        self._engine.groups.commit(group, offsets)

    def erase(self, query: Query, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Erase what the query matches."""
        return self._engine.removal.erase(query, dry_run=dry_run, wait=wait, progress=progress)

    def delete_topic(self, topic: str, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Delete a topic."""
        return self._engine.removal.delete_topic(topic, dry_run=dry_run, wait=wait, progress=progress)

    def hold(self, topic: str, *, hold: bool) -> None:
        """Put a topic on hold, or end that."""
        self._engine.removal.configure(topic, hold=hold)

    def receipts(self) -> list[Json]:
        """Receipts of all erasures."""
        return self._engine.removal.receipts()

    def receipt(self, tombstone_id: str) -> Json:
        """The receipt of one."""
        return self._engine.removal.receipt(tombstone_id)
