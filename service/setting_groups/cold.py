"""Settings of the cold tier, with those of the S3 client."""

from __future__ import annotations

from pydantic import Field, model_validator

from service.setting_groups.s3 import S3Settings
from tiering.cold.s3.keeping import S3Keeping

_DAY_MS = 86_400_000


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
            "Bytes of memory for what was read of the archive: three quarters for decoded metadata (directories, seek "
            "tables, manifest pages), a quarter for data (frames, index pages). Less asks the archive again."
        ),
    )
    filter_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description=(
            "Bytes of memory for key filters of index objects, about 3 for each key of an object (60 MB for one of 20 "
            "million); 0 = none. A look-up asks an object whose filter is there only if it holds the key. Which are "
            "there is decided by use, and they are fetched in the background."
        ),
    )
    disk_cache_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description=(
            "Bytes of disk for what is kept in memory, over restarts; 0 = none. Never more, and nothing new while the "
            "volume is fuller than `hot.disk_max_used_percent`. Key filters may take `cold.filter_bytes` of it, half "
            "of it at most. About 1 kB of memory goes to each 100 kB of it."
        ),
    )
    cache_dir: str | None = Field(
        default=None,
        description=(
            "Directory of the disk cache; unset = `cache/` in the store's own directory, and none for those who read "
            "an archive without a store. One process at a time uses it; others do without."
        ),
    )
    read_ahead_bytes: int = Field(
        default=64 << 20,
        ge=0,
        description=(
            "Bytes of memory for what is fetched ahead of consumers that replay archived queues in order, and "
            "decompressed for them, all of them together, 17 MiB for one at most; 0 = nothing is fetched ahead, and a "
            "replay waits for each request."
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
            "ms, on the clock of the object store. How long an object stays after nothing names it any more: at least "
            "a third longer than the longest query or job that reads the archive. Longer keeps replaced objects longer."
        ),
    )
    tail_bytes: int = Field(
        default=8 << 20,
        ge=1 << 10,
        le=64 << 20,
        description=(
            "Bytes of log in one object that `archived` appends share. Four are on their way at a time, each in "
            "memory; larger makes fewer requests where much is appended."
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
            "ms that an `archived` append waits for the bucket. Then it is answered with 503: its messages are "
            "flushed on the volume, and whether they are archived is unknown."
        ),
    )
    retry_interval_ms: int = Field(
        default=1_000,
        ge=10,
        le=3_600_000,
        description=(
            "ms. The background leaves an archive that failed alone for this long, twice as long after each further "
            "failure, up to `cold.retry_max_ms`; a pause is drawn between half of that and all of it. Reads do not "
            "wait for it."
        ),
    )
    retry_max_ms: int = Field(
        default=60_000,
        ge=10,
        le=86_400_000,
        description=(
            "ms. The longest such pause: how much later than an archive's recovery archiving may go on. Longer asks a "
            "dead archive less often."
        ),
    )

    @model_validator(mode="after")
    def _kept_as_can_be(self) -> ColdSettings:
        S3Keeping(self.storage_class, self.sse, self.sse_kms_key_id)
        return self
