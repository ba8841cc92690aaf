"""The ``state`` object: what a new volume, or a reader without one, must know of a store beyond its records.

One section ``TLSTATE1``: topics and a few numbers in its table, queue ends and consumer groups in one zstd page of
JSON. ``docs/formats/manifest.md`` has its fields. Unknown keys are ignored. Version 2 tells of deleted topics, which
earlier versions would show again. Version 3 has an entry for each generation of a topic
(``tiering.format.generation``), or is of a log that follows a broker or once did, which earlier versions would restore
as one of their own, and whose lost ranges their answers would not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from tierlog.tiering.format.generation import chosen, generations_of, is_numbered, number_of, record_topic, shown_name
from tierlog.tiering.format.section import compress_json, decompress_json, encode_section, whole_section

MAGIC_STATE = b"TLSTATE1"
VERSION = 3
#: Of objects that tell of neither a generation nor a followed log, and of no deletion; earlier versions may read them.
_VERSION_WITH_DELETIONS, _VERSION_WITHOUT_DELETIONS = 2, 1


@dataclass(frozen=True, slots=True)
class TopicState:
    """The facts that the archive remembers of one topic."""

    topic_id: int
    name: str
    queues: int
    archive: bool = True
    cold_retention_ms: int | None = None
    hold: bool = False
    ends: tuple[int, ...] = ()
    """Next offset of each queue, all that lies below :attr:`StoreState.log_end` counted."""
    deleted: bool = False
    """There is no such topic for readers."""
    deleted_below: int = 0
    """Physical offset below which no record of it is shown."""
    begins: tuple[int, ...] = ()
    """Where each queue ended when it was deleted last."""

    @property
    def has_deletion(self) -> bool:
        """Whether there is anything to tell of a deletion: one of an empty log is nothing once it was made again."""
        return self.deleted or self.deleted_below > 0

    def begin(self, queue_id: int) -> int:
        """Returns where the queue begins: what it had below is deleted."""
        return self.begins[queue_id] if queue_id < len(self.begins) else 0


class CommittedOffset(NamedTuple):
    """The offset of a consumer group in one queue of this store."""

    topic: str
    queue_id: int
    offset: int


class OffsetElsewhere(NamedTuple):
    """The offset of a consumer group in a queue of another store of the cluster."""

    topic: str
    store_id: str
    queue_id: int
    offset: int


class OpenMessageState(NamedTuple):
    """A message of a queue that a group has looked at, and not acknowledged."""

    offset: int
    attempt: int
    """How often it was given."""
    visible_ms: int
    """When it may be given again; 0: it waits for another one."""
    line: int = 0
    """A hash of its message group, 0 for none."""
    topic: int = 0
    """In a retry topic, a hash of the topic it came from."""
    reason: str = ""
    """What the consumer said that gave it back last."""

    @classmethod
    def of(cls, fields: Sequence[Any]) -> OpenMessageState:
        """Returns what a document says."""
        offset, attempt, visible_ms, line, topic, reason = fields
        return cls(int(offset), int(attempt), int(visible_ms), int(line), int(topic), str(reason))


class QueueDeliveryState(NamedTuple):
    """What a group has of a queue above the offset that it has committed; what is not open there is done."""

    topic: str
    queue_id: int
    committed: int
    next: int
    """The first offset that nobody looked at."""
    opened: tuple[OpenMessageState, ...]

    @classmethod
    def of(cls, fields: Sequence[Any]) -> QueueDeliveryState:
        """Returns what a document says."""
        topic, queue_id, committed, following, opened = fields
        return cls(
            str(topic), int(queue_id), int(committed), int(following), tuple(map(OpenMessageState.of, opened))
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One consumer group; its offsets are sorted."""

    name: str
    generation: int
    offsets: tuple[CommittedOffset, ...] = ()
    elsewhere: tuple[OffsetElsewhere, ...] = ()
    deliveries: tuple[QueueDeliveryState, ...] = ()


class Takeover(NamedTuple):
    """A volume that was fenced by a restore, and the first physical offset of its log that the archive lacks."""

    volume_id: str
    lacks_from: int


@dataclass(frozen=True, slots=True)
class StoreState:
    """Topics in the order of their creation, groups by name, and what a volume goes on from."""

    topics: tuple[TopicState, ...] = ()
    groups: tuple[GroupRecord, ...] = ()
    volume_id: str = ""
    """Who wrote it; empty: nobody yet."""
    log_end: int = 0
    """Physical offset up to which queue ends were counted."""
    next_topic_id: int = 1
    first_offset: int = 0
    """Where queues begin that nobody knew of at the last restore."""
    segment_bytes: int = 0
    """Size of a log segment; 0: not known."""
    takeovers: tuple[Takeover, ...] = ()
    """Every restore, oldest first."""
    log_begin: int | None = None
    """Physical offset at which the volume's log begins, which only rises; None: not known."""
    followed: bool = False
    """Whether the log is a broker's that is followed, at the broker's offsets."""
    was_followed: bool = False
    """Whether a part of the log is of a broker that was followed, by a store that takes messages itself now."""

    def find(self, name: str) -> TopicState | None:
        """Returns the topic of this name for readers, None if there is none or it is deleted.

        Of a topic that was made again that is the current generation; ``name@1`` is the oldest.
        """
        found = chosen(generations_of(self.topics, record_topic(name)), name)
        return found[-1] if found and not found[-1].deleted else None

    def shown_name(self, topic: TopicState) -> str:
        """Returns what people call a topic."""
        return shown_name(generations_of(self.topics, record_topic(topic.name)), topic.name)

    def number_of(self, topic: TopicState) -> int | None:
        """Returns the number of a generation; None if the topic has no other."""
        return number_of(generations_of(self.topics, record_topic(topic.name)), topic.name)

    @property
    def listed(self) -> tuple[TopicState, ...]:
        """Topics without those that are deleted."""
        return tuple(topic for topic in self.topics if not topic.deleted)

    def tells_as_much(self, other: StoreState) -> bool:
        """Whether ``other`` says the same, apart from how much of the log was looked at."""
        return replace(self, log_end=0) == replace(other, log_end=0)

    def encode(self) -> bytes:
        table = {
            "topics": [_table_of(topic) for topic in self.topics],
            "volume_id": self.volume_id, "log_end": self.log_end, "next_topic_id": self.next_topic_id,
            "first_offset": self.first_offset, "segment_bytes": self.segment_bytes, "takeovers": self.takeovers,
            "log_begin": self.log_begin,
            **{name: True for name in ("followed", "was_followed") if getattr(self, name)},
        }  # fmt: skip
        body: dict[str, object] = {
            "ends": [topic.ends for topic in self.topics],
            "groups": [[group.name, group.generation, group.offsets] for group in self.groups],
        }
        elsewhere = {group.name: group.elsewhere for group in self.groups if group.elsewhere}
        if elsewhere:
            body["elsewhere"] = elsewhere
        deliveries = {group.name: group.deliveries for group in self.groups if group.deliveries}
        if deliveries:
            body["deliveries"] = deliveries
        has_deletions = any(topic.has_deletion for topic in self.topics)
        if has_deletions:
            body["begins"] = [topic.begins for topic in self.topics]
        version = _VERSION_WITH_DELETIONS if has_deletions else _VERSION_WITHOUT_DELETIONS
        if self.followed or self.was_followed or any(is_numbered(topic.name) for topic in self.topics):
            version = VERSION
        return encode_section(MAGIC_STATE, version, table, [(compress_json(body), {})])[0]

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> StoreState:
        """Inverse of :meth:`encode`; raises the errors of a section."""
        table, pages = whole_section(data, MAGIC_STATE, VERSION, path=path)
        body = decompress_json(pages[0]) if pages else {}
        topics = table["topics"]
        ends = body.get("ends") or [()] * len(topics)
        begins = body.get("begins") or [()] * len(topics)
        elsewhere, deliveries = body.get("elsewhere", {}), body.get("deliveries", {})
        return cls(
            topics=tuple(_topic(*each) for each in zip(topics, ends, begins, strict=True)),
            groups=tuple(
                _group(name, generation, offsets, elsewhere.get(name, ()), deliveries.get(name, ()))
                for name, generation, offsets in body.get("groups", ())
            ),
            volume_id=table.get("volume_id", ""),
            log_end=table.get("log_end", 0),
            next_topic_id=table.get("next_topic_id", 1),
            first_offset=table.get("first_offset", 0),
            segment_bytes=table.get("segment_bytes", 0),
            takeovers=tuple(Takeover(*takeover) for takeover in table.get("takeovers", ())),
            log_begin=table.get("log_begin"),
            followed=table.get("followed", False),
            was_followed=table.get("was_followed", False),
        )


def _table_of(topic: TopicState) -> dict[str, Any]:
    left_out = {"ends", "begins", *(() if topic.has_deletion else ("deleted", "deleted_below"))}
    return {key: value for key, value in asdict(topic).items() if key not in left_out}


def _topic(value: dict[str, Any], ends: Sequence[int], begins: Sequence[int]) -> TopicState:
    return TopicState(
        topic_id=value["topic_id"], name=value["name"], queues=value["queues"], archive=value.get("archive", True),
        cold_retention_ms=value.get("cold_retention_ms"), hold=value.get("hold", False), ends=tuple(ends),
        deleted=value.get("deleted", False), deleted_below=value.get("deleted_below", 0), begins=tuple(begins),
    )  # fmt: skip


def _group(
    name: str,
    generation: int,
    offsets: Sequence[Sequence[Any]],
    elsewhere: Sequence[Sequence[Any]],
    deliveries: Sequence[Sequence[Any]],
) -> GroupRecord:
    return GroupRecord(
        name,
        generation,
        tuple(CommittedOffset(*offset) for offset in offsets),
        tuple(OffsetElsewhere(*offset) for offset in elsewhere),
        tuple(map(QueueDeliveryState.of, deliveries)),
    )
