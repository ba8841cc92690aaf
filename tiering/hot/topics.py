"""``tierlog/topics.json``: topics with ids that are never reused, their queue counts and a floor per queue.

Primary data: a topic is durable before its first record is written. A queue's floor is a lower bound of its next
offset, made durable before the last segment that could tell goes away, so that no offset is ever given out twice.

::

    {"format": 1, "next_id": 3, "first_offset": 0,
     "topics": [{"id": 1, "name": "orders", "queues": 4, "floors": {"0": 17}, "starts": {},
     "archive": true, "cold_retention_ms": null, "hold": false, "archived_from": 0}]}

``starts`` and ``first_offset`` come from a restore: where a queue that an earlier volume may have written to, and any
other queue, begins on this volume.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiering.batch import validate_topic
from tiering.errors import InvalidRequestError, TopicNotFoundError, UnsupportedFormatError
from tiering.fs import FileSystem, replace_file
from tiering.json_file import read_json
from tiering.paths import StorePaths

_FORMAT = 1
#: What no folder's name has, and what stands for bytes that are no UTF-8: U+FFFD in a record, a half pair in a name.
_NO_FOLDER = re.compile("[/\0\ufffd\ud800-\udfff]")


@dataclass(slots=True)
class Topic:
    """One topic; ``floors`` maps a queue id to the next offset that was durable once, ``starts`` to its first here."""

    topic_id: int
    name: str
    queues: int
    floors: dict[int, int] = field(default_factory=dict)
    archive: bool = True
    """Whether its messages outlive the hot tier."""
    cold_retention_ms: int | None = None
    """Archived messages that are older count as expired; None: kept for ever."""
    hold: bool = False
    """Nothing of it may expire or be erased."""
    starts: dict[int, int] = field(default_factory=dict)
    first_offset: int = 0
    """Where a queue begins that has no start of its own."""
    archived_from: int = 0
    """Physical offset where ``archive`` was last turned on: of what lies before the archive may have only fillers."""

    def floor(self, queue_id: int) -> int:
        """A lower bound of the queue's next offset."""
        return max(self.floors.get(queue_id, 0), self.starts.get(queue_id, self.first_offset))


def validate_foreign_topic(topic: str) -> str:
    """Return a name that a folder can have, or raise :class:`InvalidRequestError`: more than RocketMQ lets in today."""
    if topic in (".", "..") or _NO_FOLDER.search(topic) or not 1 <= len(topic.encode()) <= 255:
        raise InvalidRequestError(f"bad topic name {topic[:300]!r}")
    return topic


def encode_topics(topics: Iterable[Topic], next_id: int, first_offset: int = 0) -> bytes:
    """The file's content."""
    document = {
        "format": _FORMAT,
        "next_id": next_id,
        "first_offset": first_offset,
        "topics": [
            {
                "id": topic.topic_id,
                "name": topic.name,
                "queues": topic.queues,
                "floors": _texts(topic.floors),
                "starts": _texts(topic.starts),
                "archive": topic.archive,
                "cold_retention_ms": topic.cold_retention_ms,
                "hold": topic.hold,
                "archived_from": topic.archived_from,
            }
            for topic in topics
        ],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _texts(by_queue: Mapping[int, int]) -> dict[str, int]:
    return {str(queue): offset for queue, offset in sorted(by_queue.items())}


def _numbers(by_queue: Mapping[str, int]) -> dict[int, int]:
    return {int(queue): int(offset) for queue, offset in by_queue.items()}


class TopicRegistry:
    """The topics of one store. Thread safe; every change is durable when the call returns."""

    def __init__(
        self,
        fs: FileSystem,
        paths: StorePaths,
        default_queues: int,
        *,
        read_only: bool = False,
        foreign: bool = False,
    ) -> None:
        """``read_only`` keeps changes in memory; ``foreign`` takes any name that a broker can have a folder for."""
        self._validate = validate_foreign_topic if foreign else validate_topic
        self._fs = fs
        self._paths = paths
        self._default_queues = default_queues
        self._read_only = read_only
        self._lock = threading.Lock()
        self._by_name: dict[str, Topic] = {}
        #: The next topic's id.
        self.next_id = 1
        #: Where every queue begins that has no start of its own.
        self.first_offset = 0
        #: Rises whenever a topic is added.
        self.version = 0
        if fs.exists(paths.topics_json):
            read_json(fs, paths.topics_json, self._load)

    def _load(self, document: Any) -> None:
        if document["format"] != _FORMAT:
            raise UnsupportedFormatError("topics.json is of a newer format", path=str(self._paths.topics_json))
        self.next_id = int(document["next_id"])
        self.first_offset = int(document.get("first_offset", 0))
        for entry in document["topics"]:
            retention_ms = entry.get("cold_retention_ms")
            self._by_name[entry["name"]] = Topic(
                int(entry["id"]), entry["name"], int(entry["queues"]), _numbers(entry["floors"]),
                bool(entry.get("archive", True)), None if retention_ms is None else int(retention_ms),
                bool(entry.get("hold", False)), _numbers(entry.get("starts", {})), self.first_offset,
                int(entry.get("archived_from", 0)),
            )  # fmt: skip

    def _save(self) -> None:
        if self._read_only:
            return
        data = encode_topics(self._by_name.values(), self.next_id, self.first_offset)
        replace_file(self._fs, self._paths.topics_json, data, self._paths.tmp)

    def all(self) -> list[Topic]:
        """Topics in the order of their creation."""
        with self._lock:
            return list(self._by_name.values())

    def find(self, name: str) -> Topic | None:
        """The topic, or None."""
        with self._lock:
            return self._by_name.get(name)

    def get(self, name: str) -> Topic:
        """The topic, or :class:`TopicNotFoundError`."""
        topic = self.find(name)
        if topic is None:
            raise TopicNotFoundError(f"no such topic {name!r}")
        return topic

    def create(self, name: str, queues: int | None = None) -> Topic:
        """The topic, created durably with ``queues`` queues if it is new. An existing one is returned as it is."""
        with self._lock:
            topic = self._by_name.get(name)
            if topic is None:
                topic = Topic(self.next_id, self._validate(name), queues or self._default_queues)
                topic.first_offset = self.first_offset
                self._by_name[name] = topic
                self.next_id += 1
                try:
                    self._save()
                except BaseException:
                    del self._by_name[name]
                    self.next_id -= 1
                    raise
                self.version += 1
            return topic

    def ensure_queues(self, topic: Topic, queues: int) -> None:
        """Raise the topic's queue count to at least ``queues``."""
        with self._lock:
            if topic.queues < queues:
                before, topic.queues = topic.queues, queues
                try:
                    self._save()
                except BaseException:
                    topic.queues = before
                    raise

    def set_options(
        self, topic: Topic, *, archive: bool, cold_retention_ms: int | None, hold: bool, log_end: int = 0
    ) -> None:
        """Replace what an operator may choose for a topic; ``log_end``: of the log as it is now."""
        if cold_retention_ms is not None and cold_retention_ms <= 0:
            raise InvalidRequestError(f"cold_retention_ms is {cold_retention_ms}, which keeps nothing")
        with self._lock:
            before = topic.archive, topic.cold_retention_ms, topic.hold, topic.archived_from
            if archive and not topic.archive:
                topic.archived_from = log_end
            topic.archive, topic.cold_retention_ms, topic.hold = archive, cold_retention_ms, hold
            try:
                self._save()
            except BaseException:
                topic.archive, topic.cold_retention_ms, topic.hold, topic.archived_from = before
                raise

    def raise_floors(self, next_offsets: Mapping[tuple[int, int], int]) -> None:
        """Make durable that the next offset of (topic id, queue id) is at least the given one."""
        with self._lock:
            changed = False
            by_id = {topic.topic_id: topic for topic in self._by_name.values()}
            for (topic_id, queue_id), next_offset in next_offsets.items():
                floors = by_id[topic_id].floors
                if floors.get(queue_id, 0) < next_offset:
                    floors[queue_id] = next_offset
                    changed = True
            if changed:
                self._save()
