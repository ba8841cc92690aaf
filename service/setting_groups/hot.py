"""Settings of the hot tier."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from service.setting_groups.group import SettingGroup

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
            "ms. `async` appends lose at most this much when the machine crashes, nothing when the "
            "process does. Shorter costs more flushes."
        ),
    )
    flush_dirty_bytes: int = Field(
        default=32 << 20,
        ge=1,
        description=(
            "Bytes that `async` appends may leave unflushed, one batch more at most: above it an append flushes "
            "before it returns. The background begins at half of it. Smaller loses less when the machine crashes "
            "and costs more flushes."
        ),
    )
    visibility: Literal["flushed", "written"] = Field(
        default="flushed",
        description=(
            "What readers see: `flushed`, what no crash takes back, or `written`, each message as soon as it is in the "
            "log, as in RocketMQ. With `written` a crash of the machine (not of the process) may take back what was "
            "pulled or found, and the messages after it get the same queue offsets and message ids. A group's commit "
            "flushes first; consumers that keep offsets elsewhere, also in another store of the cluster, may miss "
            "those messages."
        ),
    )
    checkpoint_interval_ms: int = Field(
        default=5_000,
        ge=10,
        le=3_600_000,
        description="ms between recovery points. Longer makes reopening after a kill slower, never lossy.",
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
            "Bytes of log to be seen that queues and index may be behind. An append that finds them further behind "
            "derives first, and gets 429 if that does not help, as while the index cannot be written. More makes the "
            "next open after a kill read longer."
        ),
    )
    record_checksum: bool = Field(
        default=False,
        description=(
            "End every record with a checksum of all of it, as RocketMQ's `enabledAppendPropCRC` does; without it only "
            "bodies have one. Costs 20 bytes a message. A checksum that is there is verified either way."
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
            "Percent of the volume, as `df` counts, whoever uses it. Above it the oldest hot copies are removed "
            "whatever their age, once they are archived and indexed (without a cold tier: removed for good), at most "
            "10 segments a round and never the last one; 100 = never."
        ),
    )
    disk_full_percent: int = Field(
        default=90,
        ge=1,
        le=100,
        description=(
            "Percent of the volume. Above it appends are refused with 507 until there is room again; reading, "
            "archiving and commits of groups go on; 100 = append until the disk itself refuses, which makes the store "
            "read-only until it is opened again."
        ),
    )

    @model_validator(mode="after")
    def _frees_before_it_refuses(self) -> HotSettings:
        if self.disk_full_percent < self.disk_max_used_percent:
            raise ValueError("disk_full_percent is below disk_max_used_percent")
        return self
