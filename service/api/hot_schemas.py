"""What one process asks another about its hot tier, and the JSON form of the answer."""

from __future__ import annotations

from pydantic import BaseModel, Field

from index.query import DEFAULT_LIMIT, MAX_LIMIT
from index.results import PAGE_BYTES
from service.api.coverage_schemas import CoverageOut
from service.api.parameters import TIMES, Number, Time
from service.api.schemas import KEY_FIELD, MessageOut
from tiering.types import END_OF_TIME_MS, Order, TimeAxis


class HotIn(BaseModel):
    """A query of a hot tier alone; names and meaning as in a query of both."""

    key: str | None = KEY_FIELD
    from_ms: Time = Field(default=0, alias="from", description=f"first time; {TIMES}")
    to_ms: Time = Field(
        default=END_OF_TIME_MS, alias="to", description=f"end, not included, later than `from`; {TIMES}"
    )
    limit: Number = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)
    axis: TimeAxis = Field(default=TimeAxis.STORE, alias="time")
    order: Order = Field(default=Order.NEWEST, description="which messages come first")
    cursor: str | None = Field(default=None, description="`next_cursor` of a query, unchanged")
    page_bytes: Number = Field(
        default=PAGE_BYTES, ge=1, le=PAGE_BYTES, description="bytes of messages; one message is always given"
    )


class HotTombstoneOut(BaseModel):
    """An erasure of the topic: of keys only keyed hashes are told."""

    tombstone_id: str
    topic: str
    key_hash: str | None
    salt: str
    from_ms: int | None
    to_ms: int | None
    end: int = Field(description="records below this physical offset are meant")
    added: int = Field(description="manifest version that has it; 0: none yet")
    other_hashes: list[str]


class HotOut(BaseModel):
    """What is hot in one store, out of one snapshot; offsets are physical, in bytes."""

    store_id: str
    cold_url: str | None
    border: int = Field(ge=0, description="hot copies begin here; what is below is in the archive alone")
    end: int = Field(ge=0, description="end of what was searched")
    topic_id: int
    first_ms: int | None = Field(description="what is below `border` was stored then or before; null: not known")
    manifest_version: int | None = Field(description="the archive at this version covers what is below `border`")
    tombstones: list[HotTombstoneOut] = Field(description="erasures of the topic that the store knows")
    more: bool = Field(description="true: nothing behind the last message is known")
    coverage: CoverageOut
    messages: list[MessageOut]
