"""Settings of the S3 client, which stand in the group of the cold tier."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.setting_groups.group import SettingGroup


class S3Settings(SettingGroup):
    """Where the bucket's server is, and how patient to be with it."""

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
            "Seconds that S3 may keep silent, beside what the bytes sent take at `cold.min_bytes_per_s`. Shorter "
            "notices a dead server sooner and gives up on slow ones."
        ),
    )
    min_bytes_per_s: int = Field(
        default=128 << 10,
        ge=1024,
        description=(
            "Bytes a second. A transfer slower than this is ended and tried again: set it below what the line has "
            "left for one of many connections."
        ),
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=10,
        description=(
            "How often a request to S3 is tried before its caller hears of it; pauses double from 50 ms, from 1 s "
            "where the server says slow down. Each try is a request on the bill."
        ),
    )
    connections: int = Field(
        default=64,
        ge=1,
        le=1024,
        description="Connections to S3 that are kept; more requests at once make one each and close it again.",
    )
    single_writer: bool = Field(
        default=False,
        description=(
            "Whether to write to an S3 bucket without safe conditional writes, which is refused otherwise. Promise "
            "that nobody else ever writes to the store's prefix: no other process, no copy of the volume, no job "
            "(docs/object_stores.md). A write without an answer stops archiving for 15 minutes."
        ),
    )
