"""``tierlog/topics.json``: topics with ids that are never reused, their queue counts and a floor per queue.

Primary data: a topic is durable before its first record is written. A queue's floor is a lower bound of its next
offset, made durable before the last segment that could tell goes away, so that no offset is ever given out twice.

::

    {"format": 1, "next_id": 3, "first_offset": 0,
     "topics": [{"id": 1, "name": "orders", "queues": 4, "floors": {"0": 17}, "starts": {},
     "archive": true, "cold_retention_ms": null, "hold": false, "archived_from": 0}]}

``starts`` and ``first_offset`` come from a restore: where a queue that an earlier volume may have written to, and any
other queue, begins on this volume. ``deletion`` is there once a topic was deleted (:class:`TopicDeletion`), and
``format`` is then 2, which versions that would show the topic again refuse. A topic that a broker made again has an
entry for each generation (:mod:`tiering.format.generation`), and ``format`` is 3. Such an entry is durable before
anything is derived from its records; the log tells the same again as long as it has what was before.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tierlog.tiering.base.errors import InvalidRequestError, TopicNotFoundError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.generation import (
    Generation,
    begin_of,
    chosen,
    entry_name,
    generations_of,
    is_numbered,
    number_of,
    ranges_of,
    record_topic,
    shown_name,
)
from tierlog.tiering.format.manifest import Tombstone
from tierlog.tiering.message.batch import validate_topic

_FORMAT = 1
#: Of a file that tells of a deletion.
_FORMAT_WITH_DELETIONS = 2
#: Of a file that tells of a topic's second beginning.
_FORMAT_WITH_GENERATIONS = 3
#: What no folder's name has, and what stands for bytes that are no UTF-8: U+FFFD in a record, a half pair in a name.
_NO_FOLDER = re.compile("[/\0\ufffd\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """The last deletion of one topic, which ``topics.json`` keeps for ever: up to where, and where its queues go on.

    ::

        {"deleted": true, "below": 8192, "begins": {"0": 17}, "tombstone": "…", "salt": "…", "told": false}

    A deleted topic keeps its id, so that its queues go on behind their old ends if it is made again, and its entry, so
    that what the log still holds of it stays hidden. All of it that lies below :attr:`below` is gone for every reader.
    :attr:`is_archived` (``told``) says that the archive has the tombstone of it; until then the store's own process
    owes it to the archive.
    """

    below: int
    """Physical offset that the log had reached: no record of the topic below it is shown."""
    begins: Mapping[int, int]
    """Where each queue ended, which is where it begins if the topic is made again."""
    tombstone_id: str = ""
    salt: str = ""
    in_force: bool = True
    """There is no such topic; False once it was made again."""
    is_archived: bool = False
    """Whether the archive has the tombstone; ``told`` in the file."""

    def tombstone(self, topic: str) -> Tombstone:
        """Returns the erasure that carries it out."""
        return Tombstone(
            tombstone_id=self.tombstone_id,
            topic=record_topic(topic),
            key_hash=None,
            salt=self.salt,
            from_ms=None,
            to_ms=None,
            end=self.below,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "deleted": self.in_force,
            "below": self.below,
            "begins": {str(queue): offset for queue, offset in sorted(self.begins.items())},
            "tombstone": self.tombstone_id,
            "salt": self.salt,
            "told": self.is_archived,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> TopicDeletion | None:
        """Inverse of :meth:`to_json`; None stays None."""
        if value is None:
            return None
        begins = {int(queue): int(offset) for queue, offset in value["begins"].items()}
        return cls(
            below=int(value["below"]), begins=begins, tombstone_id=str(value["tombstone"]), salt=str(value["salt"]),
            in_force=bool(value["deleted"]), is_archived=bool(value["told"]),
        )  # fmt: skip


@dataclass(slots=True)
class Topic:
    """One topic, or one generation of it, as :attr:`name` says.

    ``floors`` maps a queue id to the next offset that was durable once, ``starts`` to its first here.
    """

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

    deletion: TopicDeletion | None = None
    """The last one."""

    @property
    def record_topic(self) -> str:
        """The topic that its records have."""
        return record_topic(self.name)

    @property
    def is_deleted(self) -> bool:
        """Whether readers and listings have no such topic."""
        return self.deletion is not None and self.deletion.in_force

    def begin(self, queue_id: int) -> int:
        """Returns where the queue begins: what it had below is deleted."""
        return 0 if self.deletion is None else self.deletion.begins.get(queue_id, 0)

    def start(self, queue_id: int) -> int:
        """Returns the queue's first offset here: what lies below is an earlier volume's, which the archive has."""
        return self.starts.get(queue_id, self.first_offset)

    def floor(self, queue_id: int) -> int:
        """Returns a lower bound of the queue's next offset."""
        return max(self.floors.get(queue_id, 0), self.start(queue_id))


def validate_foreign_topic(topic: str) -> str:
    """Returns a name that a folder can have, or raises :class:`InvalidRequestError`.

    More than RocketMQ lets in today, but none that looks like a generation's.
    """
    if is_numbered(topic) or topic in (".", "..") or _NO_FOLDER.search(topic) or not 1 <= len(topic.encode()) <= 255:
        raise InvalidRequestError(f"bad topic name {topic[:300]!r}")
    return topic


def encode_topics(topics: Iterable[Topic], next_id: int, first_offset: int = 0, begun_anew: bool = False) -> bytes:
    """Returns the file's content."""
    topics = list(topics)
    number = _FORMAT_WITH_DELETIONS if any(topic.deletion for topic in topics) else _FORMAT
    document = {
        "format": _FORMAT_WITH_GENERATIONS if any(is_numbered(topic.name) for topic in topics) else number,
        "next_id": next_id,
        "first_offset": first_offset,
        **({"begun_anew": True} if begun_anew else {}),
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
                **({} if topic.deletion is None else {"deletion": topic.deletion.to_json()}),
            }
            for topic in topics
        ],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _texts(by_queue: Mapping[int, int]) -> dict[str, int]:
    return {str(queue): offset for queue, offset in sorted(by_queue.items())}


def _numbers(by_queue: Mapping[str, int]) -> dict[int, int]:
    return {int(queue): int(offset) for queue, offset in by_queue.items()}


class KnownTopics(NamedTuple):
    """The content of ``topics.json``: every topic, the next one's id, and where queues without a start begin.

    ``begun_anew``: the log of a broker begins behind a gap.
    """

    topics: Sequence[Topic]
    next_id: int
    first_offset: int = 0
    begun_anew: bool = False


def _decode(document: Any) -> KnownTopics:
    first_offset = int(document.get("first_offset", 0))
    topics: dict[str, Topic] = {}
    for entry in document["topics"]:
        retention_ms = entry.get("cold_retention_ms")
        topics[entry["name"]] = Topic(
            topic_id=int(entry["id"]), name=entry["name"], queues=int(entry["queues"]),
            floors=_numbers(entry["floors"]), archive=bool(entry.get("archive", True)),
            cold_retention_ms=None if retention_ms is None else int(retention_ms),
            hold=bool(entry.get("hold", False)), starts=_numbers(entry.get("starts", {})), first_offset=first_offset,
            archived_from=int(entry.get("archived_from", 0)), deletion=TopicDeletion.from_json(entry.get("deletion")),
        )  # fmt: skip
    begun_anew = bool(document.get("begun_anew", False))
    return KnownTopics(list(topics.values()), int(document["next_id"]), first_offset, begun_anew)


#: ``topics.json``.
TOPICS_FILE = JsonFile(
    _decode, lambda known: encode_topics(*known), (_FORMAT, _FORMAT_WITH_DELETIONS, _FORMAT_WITH_GENERATIONS)
)


class TopicRegistry:
    """The topics of one store. Thread safe; every change is durable when the call returns.

    A topic that was deleted keeps its place for those who derive, check and archive; :meth:`find` and :meth:`get` have
    it no more. Of a topic that was made again, its name stands for the current generation, and ``name@1`` for the
    oldest; :meth:`of_log` takes the names of entries.
    """

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
        #: Those of which there are several, each with its entries, oldest first.
        self._made_again: dict[str, list[Topic]] = {}
        #: The next topic's id.
        self.next_id = 1
        #: Where every queue begins that has no start of its own.
        self.first_offset = 0
        #: Whether the log, a broker's, begins behind a gap.
        self.begun_anew = False
        #: Rises whenever a topic is added.
        self.version = 0
        #: Whether floors were raised that the file does not know, as after a try that failed.
        self._are_floors_raised = False
        #: Every topic's last deletion, with its name: another tuple after each change.
        self.deletions: tuple[tuple[str, TopicDeletion], ...] = ()
        known = TOPICS_FILE.read(fs, paths.topics_json)
        if known is not None:
            self.next_id, self.first_offset, self.begun_anew = known.next_id, known.first_offset, known.begun_anew
            self._by_name = {topic.name: topic for topic in known.topics}
            self._note_deletions()
            self._note_generations()

    def _note_deletions(self) -> None:
        self.deletions = tuple((topic.name, topic.deletion) for topic in self._by_name.values() if topic.deletion)

    def _note_generations(self) -> None:
        topics = {topic.record_topic for topic in self._by_name.values() if is_numbered(topic.name)}
        self._made_again = {topic: generations_of(self._by_name.values(), topic) for topic in topics}

    def _named(self, name: str) -> Topic | None:
        """Returns the topic that people mean by a name, deleted or not."""
        found = self._by_name.get(name)
        if is_numbered(name) or name in self._made_again:
            found = next(reversed(chosen(self._generations(record_topic(name)), name)), None)
        return found

    def _generations(self, topic: str) -> list[Topic]:
        found = self._by_name.get(topic)
        return self._made_again.get(topic, [] if found is None else [found])

    def ranges(self, name: str) -> tuple[Generation, ...]:
        """Returns what a name stands for in the log, oldest first; :class:`TopicNotFoundError`."""
        self.get(name)
        with self._lock:
            return ranges_of(self._generations(record_topic(name)), name)

    def shown_name(self, topic: Topic) -> str:
        """Returns what people call a topic: its name, or ``name@1`` for its oldest generation."""
        with self._lock:
            return shown_name(self._generations(topic.record_topic), topic.name)

    def number_of(self, topic: Topic) -> int | None:
        """Returns the number of a generation; None if the topic has no other."""
        with self._lock:
            return number_of(self._generations(topic.record_topic), topic.name)

    def entry_at(self, topic: str, offset: int) -> Topic | None:
        """Returns the topic of a record at a physical offset, None if there is none or it is deleted."""
        with self._lock:
            mine = [each for each in self._generations(topic) if begin_of(each.name) <= offset]
        return mine[-1] if mine and not mine[-1].is_deleted else None

    def generations(self, name: str) -> list[Topic]:
        """Returns all generations of a topic, oldest first, those that were deleted included."""
        with self._lock:
            return list(self._generations(record_topic(name)))

    def begin_generation(self, topic: str, begin: int) -> Topic:
        """Makes the entry for the records of a topic from ``begin`` on durable, with the options of the one before."""
        with self._lock:
            name, before = entry_name(topic, begin), self._generations(topic)[-1]
            found = Topic(
                self.next_id, name, 1, archive=before.archive, cold_retention_ms=before.cold_retention_ms,
                hold=before.hold, first_offset=self.first_offset, archived_from=before.archived_from,
            )  # fmt: skip
            self._add(found)
            self._note_generations()
            self.version += 1
            return found

    def forget_generations(self, end: int) -> list[Topic]:
        """Forgets those that begin at or above ``end``, where a log ends that lost its tail; returns them."""
        with self._lock:
            before = dict(self._by_name)
            gone = [topic for topic in before.values() if is_numbered(topic.name) and begin_of(topic.name) >= end]
            if gone:
                for topic in gone:
                    del self._by_name[topic.name]
                try:
                    self._save()
                except BaseException:
                    self._by_name = before
                    raise
                self._note_generations()
                self.version += 1
            return gone

    def _save(self) -> None:
        if self._read_only:
            return
        known = KnownTopics(list(self._by_name.values()), self.next_id, self.first_offset, self.begun_anew)
        TOPICS_FILE.replace(self._fs, self._paths.topics_json, known, self._paths.tmp)

    def take_own_names(self, default_queues: int) -> None:
        """Takes for new topics only names that ours may have, which get so many queues unless told."""
        with self._lock:
            self._validate, self._default_queues = validate_topic, default_queues

    def all(self) -> list[Topic]:
        """Topics in the order of their creation, those that were deleted included."""
        with self._lock:
            return list(self._by_name.values())

    def listed(self) -> list[Topic]:
        """Topics in the order of their creation, without those that were deleted."""
        return [topic for topic in self.all() if not topic.is_deleted]

    def of_log(self, name: str) -> Topic:
        """Returns the topic whose entry has this name, deleted or not; :class:`TopicNotFoundError`."""
        with self._lock:
            topic = self._by_name.get(name)
        if topic is None:
            raise TopicNotFoundError(f"no such topic {name!r}")
        return topic

    def find(self, name: str) -> Topic | None:
        """Returns the topic, or None, also if it is deleted."""
        with self._lock:
            topic = self._named(name)
        return None if topic is None or topic.is_deleted else topic

    def get(self, name: str) -> Topic:
        """Returns the topic, or :class:`TopicNotFoundError`."""
        topic = self.find(name)
        if topic is None:
            raise TopicNotFoundError(f"no such topic {name!r}")
        return topic

    def create(self, name: str, queues: int | None = None) -> Topic:
        """Returns the topic, created durably with ``queues`` queues if it is new. An existing one is returned as it is.

        One that was deleted is made again with the options of a new one; it keeps its id, its offsets and its queues.
        """
        with self._lock:
            topic = self._named(name)
            if topic is None:
                topic = Topic(self.next_id, self._validate(name), queues or self._default_queues)
                topic.first_offset = self.first_offset
                self._add(topic)
                self.version += 1
            elif topic.is_deleted:
                self._make_again(topic)
            return topic

    def _add(self, topic: Topic) -> None:
        """Makes a new entry durable; without it, nothing has changed."""
        self._by_name[topic.name] = topic
        self.next_id += 1
        try:
            self._save()
        except BaseException:  # also an exit: what is not durable is not there
            del self._by_name[topic.name]
            self.next_id -= 1
            raise

    def _make_again(self, topic: Topic) -> None:
        assert topic.deletion is not None
        before = topic.archive, topic.archived_from, topic.deletion
        if not topic.archive:  # of what was deleted the archive may have only fillers
            topic.archive, topic.archived_from = True, topic.deletion.below
        topic.deletion = replace(topic.deletion, in_force=False)
        try:
            self._save()
        except BaseException:
            topic.archive, topic.archived_from, topic.deletion = before
            raise
        self._note_deletions()

    def set_deletions(self, deletions: Sequence[tuple[Topic, TopicDeletion]]) -> None:
        """Deletes all generations of a topic; what an operator chose for it is forgotten, but for ``archive``."""
        with self._lock:
            before = [(topic, (topic.cold_retention_ms, topic.hold, topic.deletion)) for topic, _ in deletions]
            for topic, deletion in deletions:
                topic.cold_retention_ms, topic.hold, topic.deletion = None, False, deletion
            try:
                self._save()
            except BaseException:
                for topic, options in before:
                    topic.cold_retention_ms, topic.hold, topic.deletion = options
                raise
            self._note_deletions()

    def confirm_archived_deletion(self, name: str, tombstone_id: str) -> None:
        """Notes that the archive has this tombstone; nothing changes if the topic was deleted once more since."""
        with self._lock:
            before = [
                (topic, topic.deletion)
                for topic in self._generations(name)
                if topic.deletion and not topic.deletion.is_archived and topic.deletion.tombstone_id == tombstone_id
            ]
            if not before:
                return
            for topic, deletion in before:
                topic.deletion = replace(deletion, is_archived=True)
            try:
                self._save()
            except BaseException:
                for topic, deletion in before:
                    topic.deletion = deletion
                raise
            self._note_deletions()

    def lower_begins(self, topic: Topic, ends: Mapping[int, int]) -> None:
        """Lets no queue of a topic that was deleted begin behind these ends, which are those of a log that was cut."""
        with self._lock:
            before = topic.deletion
            if before is None:
                return
            begins = {queue_id: min(begin, ends[queue_id]) for queue_id, begin in before.begins.items()}
            topic.deletion = replace(before, begins=begins)
            try:
                self._save()
            except BaseException:
                topic.deletion = before
                raise
            self._note_deletions()

    def ensure_queues(self, topic: Topic, queues: int) -> None:
        """Raises the topic's queue count to at least ``queues``."""
        with self._lock:
            if topic.queues < queues:
                before, topic.queues = topic.queues, queues
                try:
                    self._save()
                except BaseException:
                    topic.queues = before
                    raise

    def queues_of(self, name: str) -> int:
        """Returns how many queues a message to the topic finds.

        A new topic has as many as its first message makes.
        """
        with self._lock:
            topic = self._named(name)
        return self._default_queues if topic is None else topic.queues

    def __len__(self) -> int:
        """Returns how many topics there are, those that were deleted included: their numbering is kept."""
        return len(self._by_name)

    def set_options(
        self, topic: Topic, *, archive: bool, cold_retention_ms: int | None, hold: bool, log_end: int = 0
    ) -> None:
        """Replaces what an operator may choose for a topic, all its generations; ``log_end``: of the log as it is."""
        if cold_retention_ms is not None and cold_retention_ms <= 0:
            raise InvalidRequestError(f"cold_retention_ms is {cold_retention_ms}, which keeps nothing")
        with self._lock:
            before = [
                (each, (each.archive, each.cold_retention_ms, each.hold, each.archived_from))
                for each in self._generations(topic.record_topic)
            ]
            for each, _ in before:
                if archive and not each.archive:
                    each.archived_from = log_end
                each.archive, each.cold_retention_ms, each.hold = archive, cold_retention_ms, hold
            try:
                self._save()
            except BaseException:
                for each, options in before:
                    each.archive, each.cold_retention_ms, each.hold, each.archived_from = options
                raise

    def copy(self, wanted: Sequence[tuple[str, int, bool]]) -> None:
        """Makes topics of so many queues, and archived or not, by one change of the file; old ones get more queues."""
        with self._lock:
            by_name, next_id = dict(self._by_name), self.next_id
            queues = {topic.name: topic.queues for topic in by_name.values()}
            current: dict[str, str] = {}
            for name, count, archive in wanted:
                topic = self._named(name) or by_name.get(name)
                if topic is None:
                    topic = Topic(next_id, self._validate(name), count, archive=archive, first_offset=self.first_offset)
                    by_name[name] = topic
                    next_id += 1
                current[name] = topic.name
            grown = [(current[name], count) for name, count, _ in wanted if by_name[current[name]].queues < count]
            if next_id == self.next_id and not grown:
                return
            before = self._by_name, self.next_id
            self._by_name, self.next_id = by_name, next_id
            for name, count in grown:
                by_name[name].queues = count
            try:
                self._save()
            except BaseException:
                self._by_name, self.next_id = before
                for name, count in queues.items():
                    self._by_name[name].queues = count
                raise
            self.version += 1

    def lower_floors(self, next_offsets: Mapping[tuple[int, int], int]) -> None:
        """Lets no queue be promised to go on behind these offsets, which are those of a log that is about to be cut."""
        with self._lock:
            for topic in self._by_name.values():
                for queue_id in topic.floors:
                    ends = next_offsets.get((topic.topic_id, queue_id), topic.floors[queue_id])
                    topic.floors[queue_id] = min(topic.floors[queue_id], ends)
            self._save()

    def begin_queues_anew(self) -> None:
        """Turns floors into starts: the queues have no units here any more, and go on at or behind them."""
        with self._lock:
            for topic in self._by_name.values():
                for queue_id, floor in topic.floors.items():
                    topic.starts[queue_id] = max(floor, topic.starts.get(queue_id, topic.first_offset))
                topic.floors.clear()
            self.begun_anew = True
            self._save()

    def raise_floors(self, next_offsets: Mapping[tuple[int, int], int]) -> None:
        """Makes durable that the next offset of (topic id, queue id) is at least the given one."""
        with self._lock:
            changed = self._are_floors_raised
            by_id = {topic.topic_id: topic for topic in self._by_name.values()}
            for (topic_id, queue_id), next_offset in next_offsets.items():
                floors = by_id[topic_id].floors
                if floors.get(queue_id, 0) < next_offset:
                    floors[queue_id] = next_offset
                    changed = True
            self._are_floors_raised = changed
            if changed:
                self._save()
                self._are_floors_raised = False
