"""Settings of a store: the hot tier, the cold tier with its S3 client, the key index, and queries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tierlog.index.format.header import DEFAULT_ITEMS, DEFAULT_SLOTS, check_capacity
from tierlog.index.format.layout import TIERLOG
from tierlog.index.rocketmq.classic_format import check_capacity as check_classic_capacity
from tierlog.service.config.group import SettingGroup
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.objects.s3_protocol import S3ObjectOptions

_DAY_MS = 86_400_000


class HotSettings(SettingGroup):
    """The hot tier: commit log and consume queues on the volume."""

    segment_bytes: int | None = Field(
        default=None,
        ge=4096,
        le=1 << 30,
        multiple_of=4096,
        description=(
            "Bytes of one commit-log segment, a multiple of 4096 up to 1 GiB. Fixed when a store is "
            "made; unset = as the store was made, 1 GiB for a new one. Smaller segments are archived "
            "sooner and make more objects."
        ),
    )
    queue_file_units: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description=(
            "20-byte units in one consume-queue file. Fixed when a store is made; unset = as the "
            "store was made, 300,000 for a new one. Every queue that was used keeps at least one file of this length, "
            "which takes blocks as it is written."
        ),
    )
    flush_interval_ms: int = Field(
        default=500,
        ge=1,
        le=60_000,
        description=(
            "ms between flushes. `async` appends lose at most this much when the machine crashes, and nothing "
            "when the process does. A shorter interval costs more flushes."
        ),
    )
    flush_dirty_bytes: int = Field(
        default=32 << 20,
        ge=1,
        description=(
            "Bytes that `async` appends may leave unflushed, plus at most one batch: above it, an append "
            "flushes before it returns. The background starts at half of it. A smaller value loses less when "
            "the machine crashes and costs more flushes."
        ),
    )
    visibility: Literal["flushed", "written"] = Field(
        default="flushed",
        description=(
            "What readers see: `flushed`, only what survives any crash, or `written`, each message as soon as "
            "it is in the log, as in RocketMQ. With `written`, a crash of the machine (not of the process) may "
            "take back messages that were pulled or found, and the messages after them get the same queue "
            "offsets and message ids. A group's commit flushes first; consumers that keep offsets elsewhere, or "
            "in another store of the cluster, may miss those messages."
        ),
    )
    checkpoint_interval_ms: int = Field(
        default=5_000,
        ge=10,
        le=3_600_000,
        description=(
            "ms between recovery points. A longer interval makes reopening after a kill slower; it never loses "
            "anything."
        ),
    )
    max_body_bytes: int = Field(
        default=4 << 20,
        ge=1,
        le=512 << 20,
        description="Bytes. A larger message body is refused; so is a record that does not fit a segment.",
    )
    default_queues: int = Field(
        default=8,
        ge=1,
        le=1024,
        description="Queues of a topic that is made by its first message.",
    )
    max_behind_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description=(
            "Bytes of visible log by which queues and index may lag behind. An append that finds a larger lag "
            "derives first, and gets 429 if that does not help, for example while the index cannot be written. "
            "A larger value makes the next open after a kill read more."
        ),
    )
    record_checksum: bool = Field(
        default=False,
        description=(
            "Whether every record ends with a checksum over all of it, as RocketMQ's `enabledAppendPropCRC` "
            "does; without it, only bodies have one. Costs 20 bytes a message. A checksum that is present is "
            "verified either way."
        ),
    )
    roll_age_ms: int = Field(
        default=3_600_000,
        ge=1,
        description=(
            "ms. With a cold tier, a segment whose first record is older is rolled, so that a quiet "
            "store is archived too. Shorter makes more and smaller objects."
        ),
    )
    retention_ms: int = Field(
        default=3 * _DAY_MS,
        ge=0,
        description=(
            "ms. Hot copies whose newest record is older are removed once they are archived and "
            "indexed (without a cold tier: removed for good). Longer needs more disk."
        ),
    )
    max_bytes: int = Field(
        default=0,
        ge=0,
        description=("Bytes of commit log above which the oldest archived segments are removed early; 0 = no limit."),
    )
    disk_max_used_percent: int = Field(
        default=85,
        ge=1,
        le=100,
        description=(
            "Percent of the volume in use, as `df` counts. Above it, the oldest hot copies are removed whatever "
            "their age, once they are archived and indexed (without a cold tier: removed for good), at most 10 "
            "segments a round and never the last one; 100 = never."
        ),
    )
    disk_full_percent: int = Field(
        default=90,
        ge=1,
        le=100,
        description=(
            "Percent of the volume in use. Above it, appends are refused with 507 until there is room again; "
            "reads, archiving and commits of groups go on. 100 = append until the disk itself refuses, which "
            "makes the store read-only until it is opened again."
        ),
    )

    @model_validator(mode="after")
    def _frees_before_it_refuses(self) -> HotSettings:
        if self.disk_full_percent < self.disk_max_used_percent:
            raise ValueError("disk_full_percent is below disk_max_used_percent")
        return self


class S3Settings(SettingGroup):
    """The bucket's server, and the time limits for it."""

    s3_endpoint: str | None = Field(
        default=None,
        description=(
            "URL of an S3-compatible server; unset = Amazon S3. Credentials and region come from the "
            "usual AWS variables."
        ),
    )
    storage_class: str | None = Field(
        default=None,
        pattern=r"^[A-Z][A-Z0-9_]*$",
        description=(
            "Storage class of sorted segments and index objects on S3, such as `STANDARD_IA` or `GLACIER_IR`; unset = "
            "the standard one. Cheaper classes charge for each GB read and for a least time of keeping, which merging "
            "and erasing run into. `GLACIER` and `DEEP_ARCHIVE` cannot be read at once and are refused."
        ),
    )
    sse: Literal["AES256", "aws:kms"] | None = Field(
        default=None,
        description=(
            "Encryption at rest that every write to S3 asks for; unset = as the bucket is set up. `aws:kms` costs a "
            "request to KMS for writes and reads unless the bucket has a bucket key."
        ),
    )
    sse_kms_key_id: str | None = Field(
        default=None, description="Key for `aws:kms`; unset = the account's own for S3. Losing it loses the archive."
    )
    connect_timeout_s: float = Field(default=5.0, gt=0, le=300, description="Seconds to wait for a connection to S3.")
    read_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description=(
            "Seconds that S3 may stay silent, on top of the time that the bytes sent take at "
            "`cold.min_bytes_per_s`. A shorter time notices a dead server sooner and gives up on slow ones."
        ),
    )
    min_bytes_per_s: int = Field(
        default=128 << 10,
        ge=1024,
        description=(
            "Bytes a second. A slower transfer is ended and retried: set it below the bandwidth that one of "
            "many connections gets."
        ),
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=10,
        description=(
            "Attempts per S3 request before the caller sees the error; pauses double from 50 ms, or from 1 s "
            "where the server asks to slow down. Each attempt is billed."
        ),
    )
    connections: int = Field(
        default=64,
        ge=1,
        le=1024,
        description="Connections to S3 that are kept open; requests beyond that open one each and close it again.",
    )
    single_writer: bool = Field(
        default=False,
        description=(
            "Whether to write to an S3 bucket without safe conditional writes, which is refused otherwise. Promise "
            "that nobody else ever writes to the store's prefix: no other process, no copy of the volume, no job "
            "(docs/object_stores.md). A write without an answer stops archiving for 15 minutes."
        ),
    )


class ColdSettings(S3Settings):
    """The cold tier: the archive in a directory or a bucket."""

    frame_bytes: int = Field(
        default=64 << 10,
        ge=4096,
        le=16 << 20,
        description=(
            "Record bytes in one compressed frame. A read of one message fetches one frame; larger "
            "frames compress a little better."
        ),
    )
    compression_level: int = Field(
        default=1, ge=1, le=19, description="zstd level of frames. Higher is slower and a little smaller."
    )
    max_inline_entries: int = Field(
        default=200,
        ge=2,
        le=200,
        description=("Manifest entries kept inside the head object; more move into pages. Fewer make more requests."),
    )
    page_entries: int = Field(
        default=256, ge=2, le=256, description="Entries, or page references, in one manifest page."
    )
    cache_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description=(
            "Bytes of memory for data read from the archive: three quarters for decoded metadata (directories, "
            "seek tables, manifest pages), a quarter for data (frames, index pages). Less memory means more "
            "requests to the archive."
        ),
    )
    filter_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description=(
            "Bytes of memory for key filters of index objects, about 3 for each key of an object (60 MB for one "
            "of 20 million); 0 = none. A look-up asks an object whose filter is in memory only if it holds the "
            "key. Filters are chosen by use and fetched in the background."
        ),
    )
    disk_cache_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description=(
            "Bytes of disk for a cache that survives restarts; 0 = none. The limit is never exceeded, and "
            "nothing is added while the volume is fuller than `hot.disk_max_used_percent`. Key filters may take "
            "`cold.filter_bytes` of it, half of it at most. About 1 kB of memory goes to each 100 kB of it."
        ),
    )
    cache_dir: str | None = Field(
        default=None,
        description=(
            "Directory of the disk cache; unset = `cache/` in the store's own directory, and none for readers "
            "of an archive without a store. One process at a time uses it; others do without."
        ),
    )
    read_ahead_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description=(
            "Bytes of memory for data that is fetched and decompressed ahead of consumers that replay archived "
            "queues in order, for all consumers together and 17 MiB for one at most; 0 = nothing is fetched "
            "ahead, and a replay waits for each request."
        ),
    )
    retention_ms: int = Field(
        default=0,
        ge=0,
        description=(
            "ms. Archived segments whose newest record is older are dropped for good, with their index objects; 0 = "
            "kept for ever. Never what is still hot, and no segment from the first on that holds a topic on hold. A "
            "topic's own `cold_retention_ms` hides its messages earlier."
        ),
    )
    max_bytes: int = Field(
        default=0,
        ge=0,
        description=(
            "Bytes of segments and index objects in the archive above which the oldest segments are dropped for good; "
            "0 = no limit."
        ),
    )
    grace_ms: int = Field(
        default=_DAY_MS,
        ge=60_000,
        le=366 * _DAY_MS,
        description=(
            "ms, on the object store's clock, for which an object stays after nothing names it any more: at "
            "least a third longer than the longest query or job that reads the archive. A longer time keeps "
            "replaced objects longer."
        ),
    )
    tail_bytes: int = Field(
        default=8 << 20,
        ge=1 << 10,
        le=64 << 20,
        description=(
            "Bytes of log in one object that `archived` appends share. Up to four are in flight, each in "
            "memory; a larger size makes fewer requests where much is appended."
        ),
    )
    tail_interval_ms: int = Field(
        default=100,
        ge=0,
        le=60_000,
        description=(
            "ms between the starts of two such objects that are not full. `archived` appends wait up to this much "
            "longer; as long as there are any, each interval costs one PUT (at 100 ms and 0.005 USD per 1,000: "
            "4.32 USD a day)."
        ),
    )
    tail_timeout_ms: int = Field(
        default=10_000,
        ge=10,
        le=600_000,
        description=(
            "ms that an `archived` append waits for the bucket before it is answered with 503: its messages are "
            "then flushed on the volume, and whether they are archived is unknown."
        ),
    )
    retry_interval_ms: int = Field(
        default=1_000,
        ge=10,
        le=3_600_000,
        description=(
            "ms for which the background leaves a failed archive alone, doubled after each further failure up "
            "to `cold.retry_max_ms`; each pause is random, between half of that and all of it. Reads do not "
            "wait for it."
        ),
    )
    retry_max_ms: int = Field(
        default=60_000,
        ge=10,
        le=86_400_000,
        description=(
            "ms. The longest such pause, and so the longest delay of archiving after an archive recovers. A "
            "longer pause asks a dead archive less often."
        ),
    )

    @model_validator(mode="after")
    def _kept_as_can_be(self) -> ColdSettings:
        S3ObjectOptions(self.storage_class, self.sse, self.sse_kms_key_id)
        return self


class IndexSettings(SettingGroup):
    """Key index files. May change between starts: each file carries its own sizes."""

    slots: int = Field(
        default=DEFAULT_SLOTS,
        ge=1,
        description=(
            "Hash slots of a new index file, 8 bytes each on disk. Fewer make longer chains. At 8 bytes a slot and 32 "
            "an item, a file stays below 2 GiB."
        ),
    )
    items: int = Field(
        default=DEFAULT_ITEMS,
        ge=2,
        description=(
            "Items of a new index file, 36 bytes each on disk. Smaller files are published sooner and "
            "make more objects for a query to ask."
        ),
    )
    layout: Literal["tierlog"] = Field(
        default="tierlog", description="Item layout of new files. `tierlog` keeps 63 bits of hash per key."
    )
    seal_age_ms: int = Field(
        default=3_600_000,
        ge=1,
        description=(
            "ms. An index file whose first message is older is sealed and compacted though it is not full, with and "
            "without a cold tier, so that a quiet store's keys are published too. Each such file takes 8 bytes a slot "
            "on disk (40 MB by default) beside its items until its messages are removed, and becomes an object of its "
            "own: shorter makes more of both, and more objects for a query to ask."
        ),
    )

    classic: bool = Field(
        default=False,
        description=(
            "Whether RocketMQ's own key index is written too, below `index/`, so that a broker which opens the store "
            "finds its keys. Costs disk and about as much work per key as our own index. Switched on for an existing "
            "store, it is made for everything hot while the store opens. A broker that opens the store after a kill "
            "finds all keys only with `messageIndexSafe`, and `commitLogRecoverMaxNum` above the number of segments."
        ),
    )
    classic_slots: int = Field(
        default=5_000_000,
        ge=1,
        description=(
            "Hash slots of a classic index file, 4 bytes each. Must be the broker's `maxHashSlotNum`. Another value "
            "makes all classic files again."
        ),
    )
    classic_items: int = Field(
        default=DEFAULT_ITEMS,
        ge=2,
        description=(
            "Items of a classic index file, 20 bytes each. Must be the broker's `maxIndexNum`. The items of the "
            "unfinished file are linked again when the store opens, 20 million of them in about a second."
        ),
    )

    @model_validator(mode="after")
    def _fits_a_file(self) -> IndexSettings:
        try:
            check_capacity(TIERLOG, self.slots, self.items)
            check_classic_capacity(self.classic_slots, self.classic_items)
        except InvalidRequestError as error:
            raise ValueError(error.message) from error
        return self


class QuerySettings(SettingGroup):
    """Requests to the archive for the answer to a query."""

    concurrency: int = Field(
        default=32,
        ge=1,
        le=256,
        description=(
            "Requests to the archive that one query has in flight. More requests answer sooner where many "
            "objects have to be asked, and may fetch a few answers that turn out not to be needed; 1 = one "
            "after another."
        ),
    )
    threads: int = Field(
        default=64,
        ge=1,
        le=1024,
        description=(
            "Threads that ask the archive, shared by all queries; when they do not suffice, queries take turns. "
            "`cold.connections` should be as many."
        ),
    )
    timeout_ms: int = Field(
        default=60_000,
        ge=0,
        description=(
            "ms after which a query without a time limit of its own is answered with what is known by then, "
            "with `complete` false and `cut_by` `timeout`; 0 = never."
        ),
    )
