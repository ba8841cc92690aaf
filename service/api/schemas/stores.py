"""The shapes of a store's answers about itself: topics, files, numbers, health."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from tierlog.service.api.schemas.messages import TopicOut
from tierlog.service.api.schemas.parameters import absent

_COUNT = Field(ge=0)
_REASON = Field(description="null: nothing is wrong")


class TopicListOut(BaseModel):
    """Topics by name."""

    topics: list[TopicOut]


class FileOut(BaseModel):
    """A segment or an index file in one tier."""

    kind: Literal["segment", "index", "classic index"]
    name: str = Field(description="of a hot file; the object's key in the archive")
    tier: Literal["hot", "cold"]
    state: str = Field(
        description="segments: `active`, `rolled`, `archived`, `published`; index files: `writing`, `sealed`, "
        "`compacted`, `uploaded`, `published`; classic index files: `writing`, `full`"
    )
    first_offset: int = Field(ge=0, description="physical offset of the first byte of the log that it is about")
    next_offset: int = Field(ge=0, description="first physical offset that it is not about")
    bytes: int = Field(ge=0, description="size of the file or object")
    min_store_ms: int | None = Field(description="ms since the epoch; null: unknown or nothing in it")
    max_store_ms: int | None = Field(description="ms since the epoch, included")
    records: int | None = Field(description="records of a segment, items of an index file; null: not counted")
    min_born_ms: int | None = Field(description="ms since the epoch; null: unknown, as of every hot segment")
    max_born_ms: int | None = Field(description="ms since the epoch, included")


class FileListOut(BaseModel):
    """Every segment and index file."""

    files: list[FileOut]


class CacheLayerOut(BaseModel):
    """One layer of the archive's caches."""

    hits: int = _COUNT
    misses: int = _COUNT
    evictions: int = _COUNT
    bytes: int = Field(ge=0, description="held now")
    entries: int = Field(ge=0, description="held now")
    limit_bytes: int = _COUNT


class FilterLayerOut(CacheLayerOut):
    """The layer of key filters, which are fetched when objects are searched often enough without one."""

    false_positives: int = Field(ge=0, description="objects that were searched although the key was not there")
    fetched: int = Field(ge=0, description="filters that were read from the object store")
    fetched_bytes: int = _COUNT
    failures: int = Field(ge=0, description="filters that could not be read")


class FollowedBrokerOut(BaseModel):
    """A RocketMQ broker that this process follows, and how far it is behind."""

    state: str = Field(description="`following` where all is well")
    error: str | None = Field(description="why it does not follow")
    hint: str | None
    store_id: str
    cluster: str | None
    address: str | None = Field(description="where the broker was reached last")
    end: int = Field(ge=0, description="physical offset below which everything is durable here")
    lag_bytes: int = Field(ge=0, description="which the broker has, and which are not durable here")
    lag_ms: int = Field(ge=0, description="age of the oldest message that is not here")
    margin_ms: int | None = Field(description="until the broker may remove what is not here; null: not known")
    gap_bytes: int | None = Field(ge=0, description="which nobody has any more; null: the archive was not asked yet")


_FOLLOWED: dict[str, FollowedBrokerOut] = absent("brokers that this process follows, by name; only where it does")


class LostRangeOut(BaseModel):
    """A range `[first, next)` of a broker's log that nobody has: removed there before its follower came."""

    first: int = Field(ge=0, description="physical offset of its first byte")
    next: int = Field(ge=0, description="physical offset of the first byte behind it")
    from_ms: int = Field(description="its messages were stored at this time or later, ms since the epoch")
    to_ms: int = Field(description="and before this time")


class StatsOut(BaseModel):
    """Offsets are physical, in bytes from the log's beginning; null where there is no archive, or none was reached."""

    store_id: str
    volume_id: str
    cold_url: str | None
    topics: int = _COUNT
    log_begin: int = Field(ge=0, description="the border: hot copies begin here")
    log_end: int = _COUNT
    flushed_to: int = _COUNT
    dispatched_to: int = _COUNT
    dispatch_lag_bytes: int = Field(ge=0, description="to be seen by readers, and not by queues and index yet")
    dispatch_lag_ms: int = Field(ge=0, description="age of the oldest record of these")
    mended_queue_units: int = Field(ge=0, description="damaged units of queues that were derived again for readers")
    damaged_ranges: int = Field(ge=0, description="of the log in which nothing can be read")
    damaged_bytes: int = Field(ge=0, description="of these")
    recover_from: int = _COUNT
    archived_to: int | None
    archive_lag_bytes: int | None
    archive_lag_ms: int | None = Field(description="age of the oldest record that waits for the archive")
    indexed_to: int | None
    cold_min: int | None = Field(description="the archive begins here")
    cold_held_at: int | None = Field(description="base of the segment at which a hold stops expiry")
    open_erasures: int | None
    delayed_messages: int | None = Field(description="messages that wait for their time")
    delay_lag_ms: int | None = Field(description="how long the one of these that is overdue longest is")
    fired_messages: int | None = Field(description="delayed messages that were delivered since the store was opened")
    undeliverable_messages: int | None = Field(description="delayed messages that could go to no topic")
    manifest_version: int | None
    index_behind_bytes: int = _COUNT
    index_sealed_to: int = _COUNT
    index_files_waiting: int = _COUNT
    index_files_damaged: int = Field(ge=0, description="files moved to quarantine/ since the store was opened")
    hot_bytes: int = _COUNT
    unflushed_bytes: int = _COUNT
    unarchived_bytes: int | None
    tailed_to: int | None = Field(description="acknowledged as `archived` up to here")
    tail_lag_bytes: int | None
    tails_written: int = _COUNT
    tail_bytes_written: int = _COUNT
    appended_messages: int = Field(ge=0, description="since the store was opened")
    appended_bytes: int = Field(ge=0, description="since the store was opened")
    flushes: int = Field(ge=0, description="since the store was opened")
    produce_window_requests: int = Field(ge=0, description="requests that are remembered by their Idempotency-Key")
    produce_window_from_ms: int | None = Field(description="ms since the epoch of the oldest of them")
    produce_window_ms: int = Field(ge=0, description="how long they are remembered")
    last_store_ms: int = Field(description="ms since the epoch of the newest message")
    disk_free_bytes: int = _COUNT
    disk_total_bytes: int = _COUNT
    clock_behind_ms: int = Field(ge=0, description="how far the clock is behind the newest message")
    archive_requests: int = Field(ge=0, description="to the object store since the store was opened")
    archive_failures: int = Field(ge=0, description="of these, failed")
    archive_bytes_read: int = _COUNT
    archive_bytes_written: int = _COUNT
    cache: dict[str, CacheLayerOut | FilterLayerOut] | None = Field(
        description="layers of the archive's caches by name"
    )
    followed: dict[str, FollowedBrokerOut] = _FOLLOWED
    lost: list[LostRangeOut] | None = absent(
        "of a store with the log of a broker only: what nobody has; null: the archive was not asked yet"
    )
    read_only_reason: str | None = _REASON
    cold_error: str | None = _REASON
    index_error: str | None = _REASON
    damage: str | None = _REASON
    consumer_offsets: dict[str, dict[str, int]] | str = absent(
        "of a RocketMQ broker's store only: `topic@group` to the next offset of each queue, or why that cannot be told"
    )


class ArchivedStoreOut(BaseModel):
    """How far a store's archive goes; physical offsets."""

    archived_to: int
    indexed_to: int
    manifest_version: int
    epoch: int = Field(description="rises when a volume takes the store over")


class ServiceOut(BaseModel):
    """A service that a querier asks what is hot."""

    url: str
    store_id: str | None = Field(description="null: it has not answered yet")


class QuerierStatsOut(BaseModel):
    """What a querier reads."""

    role: Literal["querier"]
    archives: list[str]
    cache: dict[str, dict[str, CacheLayerOut | FilterLayerOut]] = Field(description="by archive, then by layer")
    stores: dict[str, ArchivedStoreOut]
    services: list[ServiceOut]
    silent: int = Field(ge=0, description="services that gave no answer when they were asked last")
    followed: dict[str, FollowedBrokerOut] = _FOLLOWED


class AliveOut(BaseModel):
    """The process answers."""

    status: Literal["alive"]


class ReadyOut(BaseModel):
    """Messages are taken; none of these errors keeps the store from that."""

    status: Literal["ready"]
    cold_error: str | None = Field(description="why the archive cannot be reached")
    index_error: str | None = Field(description="why the index cannot be written")
    damage: str | None = Field(description="what of the log is damaged, and what to do; all the rest is served")
    follow_error: str | None = Field(
        default=None, description="which broker is not followed or too far ahead, and why, where brokers are followed"
    )
