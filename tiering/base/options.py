"""Numbers a store is run with. Collaborators (file system, clock, object store) are passed apart from these."""

from __future__ import annotations

from dataclasses import dataclass

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import Visibility

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class HotOptions:
    """The hot tier.

    Fixed when a store is made: ``segment_bytes``, ``queue_file_units``. The rest may change at every open.
    """

    segment_bytes: int = 1 << 30
    """Bytes of one commit-log segment; a multiple of 4096, at most 1 GiB."""
    queue_file_units: int = 300_000
    """20-byte units in one consume-queue file."""
    flush_interval_ms: int = 500
    """``async`` appends lose at most this much on a machine crash; nothing on a process crash."""
    flush_dirty_bytes: int = 32 << 20
    """Bytes that ``async`` appends may leave unflushed, one batch more at most; above it an append flushes itself."""
    visibility: Visibility = Visibility.FLUSHED
    """What readers see; ``written`` shows a message before it is durable, and a machine crash may take it back."""
    checkpoint_interval_ms: int = 5_000
    """How often queue files are flushed and the recovery point moves; longer makes reopening slower, never lossy."""
    max_body_bytes: int = 4 << 20
    """Larger bodies are refused."""
    default_queues: int = 8
    """Queues of a topic that is created by its first message."""
    max_topics: int = 10_000
    """Where there are so many, those that were deleted included, no message makes another."""
    record_checksum: bool = False
    """End every record with a checksum of all of it; costs 20 bytes and a second pass over the body."""
    producer_window_ms: int = 86_400_000
    """How long it is known which messages a producer has sent."""
    producer_window_requests: int = 100_000
    """Of how many requests that is known."""
    foreign: bool = False
    """The log is a RocketMQ broker's, only read: topic names and queue offsets are taken that ours never has."""
    followed: bool = False
    """A follower of a RocketMQ broker writes the log: topic names are taken that ours never has, and nothing rolls it
    but the broker's own records."""
    followed_below: int = 0
    """Physical offset below which a follower wrote the log, before the store took messages itself."""
    begin: int = 0
    """Physical offset at which a new log begins; a segment's base."""

    def __post_init__(self) -> None:
        if self.segment_bytes % _PAGE_BYTES or not _PAGE_BYTES <= self.segment_bytes <= 1 << 30:
            raise InvalidRequestError(f"segment size {self.segment_bytes} is not a multiple of 4096 up to 1 GiB")
        if self.queue_file_units < 1:
            raise InvalidRequestError("a queue file holds at least one unit")
        if self.default_queues < 1:
            raise InvalidRequestError("a topic has at least one queue")
        if self.begin < 0 or self.begin % self.segment_bytes:
            raise InvalidRequestError(f"a log begins at a segment, which {self.begin} is not the base of")


@dataclass(frozen=True, slots=True)
class ColdOptions:
    """The cold tier."""

    frame_bytes: int = 64 << 10
    """Record bytes in one compressed frame; a point read fetches one frame."""
    compression_level: int = 1
    """zstd level of frames."""
    max_inline_entries: int = 200
    """Manifest entries kept inside the head; more are moved into pages."""
    page_entries: int = 256
    """Entries, or page references, in one manifest page."""
    cache_bytes: int = 256 << 20
    """Memory for what was read of the archive: decoded metadata and data."""
    read_ahead_bytes: int = 64 << 20
    """Memory for what is fetched ahead of consumers that read queues in order."""

    grace_ms: int = 24 * 3_600_000
    """How long an object outlives its leaving the manifest; at least as long as the longest reader."""

    def __post_init__(self) -> None:
        if not 2 <= self.max_inline_entries <= 200:
            raise InvalidRequestError("the head keeps between 2 and 200 entries")
        if not 2 <= self.page_entries <= 256:
            raise InvalidRequestError("a manifest page keeps between 2 and 256 entries")


@dataclass(frozen=True, slots=True)
class TailOptions:
    """The tails by which appends are acknowledged as ``archived``."""

    max_bytes: int = 8 << 20
    """Bytes of log in one tail; a larger record gets a tail of its own."""
    in_flight: int = 4
    """Tails on their way at a time; each takes up to ``max_bytes`` of memory."""
    interval_ms: int = 100
    """Between the starts of two tails that are not full: fewer requests for a longer wait."""
    timeout_ms: int = 10_000
    """An append waits so long for its acknowledgement."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.in_flight < 1:
            raise InvalidRequestError("a tail holds at least one byte, and one is on its way at a time")


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The ages and sizes at which rolled segments are archived and copies go."""

    roll_age_ms: int = 3_600_000
    """A segment whose first record is older is rolled, if there is a cold tier."""
    hot_retention_ms: int = 72 * 3_600_000
    """Hot copies whose newest record is older may go."""
    hot_max_bytes: int = 0
    """Oldest hot copies go above this many bytes of log; 0 = no limit."""
    cold_retention_ms: int = 0
    """Archived segments whose newest record is older are dropped; 0 = kept for ever."""
    cold_max_bytes: int = 0
    """Oldest archived segments are dropped above this many bytes of segments and index objects; 0 = no limit."""
