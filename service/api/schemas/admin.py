"""The shapes of an operator's requests, and of the reports and receipts that come back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tierlog.service.api.schemas.parameters import TIMES, Key, StrictModel, Time, Topic
from tierlog.tiering.base.types import END_OF_TIME_MS

_COUNT = Field(ge=0)


def _some_or_all(schema: dict[str, Any]) -> None:
    def given(name: str, which: dict[str, Any]) -> dict[str, Any]:
        return {"required": [name], "properties": {name: which}}

    is_true = {"const": True}
    some = [
        given("key", {"type": "string"}),
        given("from", {"not": {"const": 0}}),
        given("to", {"not": {"const": END_OF_TIME_MS}}),
    ]
    schema["anyOf"] = [*some, given("all", is_true), given("dry_run", is_true)]
    schema["not"] = {**given("all", is_true), "anyOf": some}


class EraseIn(StrictModel):
    """What to erase: only a key of a topic, or what was stored in ``[from, to)``, or ``all`` of it.

    ``dry_run`` only counts, and ``wait`` answers after everything that is archived was overwritten.
    """

    model_config = ConfigDict(json_schema_extra=_some_or_all)

    topic: Topic
    key: Key | None = None
    from_ms: Time = Field(default=0, alias="from", description=f"first store time; {TIMES}")
    to_ms: Time = Field(default=END_OF_TIME_MS, alias="to", description=f"end, not included, after `from`; {TIMES}")
    all: bool = Field(default=False, description="the whole topic; needed where neither key nor time says which")
    dry_run: bool = False
    wait: bool = False


def _not_both(schema: dict[str, Any]) -> None:
    schema["not"] = {
        "required": ["all", "until"],
        "properties": {"all": {"const": True}, "until": {"type": ["integer", "string"]}},
    }


class ArchiveIn(StrictModel):
    """What to archive: rolled segments; or all; or what is older than ``until``."""

    model_config = ConfigDict(json_schema_extra=_not_both)

    until: Time | None = Field(default=None, description=f"what was stored before; {TIMES}")
    all: bool = False
    drop_hot: bool = False


class CheckIn(StrictModel):
    """How thorough to be: ``deep`` reads every byte of the archive."""

    deep: bool = False


class ArchiveReportOut(BaseModel):
    """What was published, and where the watermarks are now: physical offsets, in bytes."""

    segments: int = _COUNT
    index_objects: int = _COUNT
    bytes_raw: int = Field(ge=0, description="of the segments in the log")
    bytes_stored: int = Field(ge=0, description="of their objects")
    archived_to: int = _COUNT
    indexed_to: int = _COUNT
    border: int = Field(ge=0, description="hot copies begin here")


class FlushedOut(BaseModel):
    """Everything acknowledged before is durable."""

    flushed: Literal[True]


class FindingOut(BaseModel):
    """One finding or note."""

    object: str | None = Field(description="object of the archive that it is about; null: the local store")
    text: str


class CheckReportOut(BaseModel):
    """Exceptions from what must hold, best none; ``details`` are the same lines with their objects apart."""

    findings: list[str]
    details: list[FindingOut]
    notes: list[FindingOut] = Field(description="no exceptions: what lies in the bucket and will go by itself")
    unasked: list[str] = Field(description="what was not checked, because the object store did not answer")


class MatchedOut(BaseModel):
    """Messages that readers saw when the erasure was asked for."""

    hot: int = _COUNT
    cold: int = _COUNT
    complete: bool = Field(description="false: some places could not be read, there may be more")


class _Asked(BaseModel):
    store_id: str
    topic: str
    by_key: bool
    from_ms: int | None = Field(description="ms since the epoch; null: from the beginning")
    to_ms: int | None = Field(description="ms since the epoch, not included; null: to the end")
    below_offset: int = Field(ge=0, description="physical offset: what was appended later is not erased")
    asked_ms: int = Field(description="ms since the epoch")
    matched: MatchedOut | None = Field(description="null: not counted")
    segments_to_rewrite: list[int] | None = Field(description="base offsets of archived segments; null: not counted")


class ErasePlanOut(_Asked):
    """What a dry run tells; nothing was erased."""

    tombstone_id: None
    state: Literal["dry run"]


class RewrittenOut(BaseModel):
    """One archived segment that was written again without the messages."""

    segment: int = Field(ge=0, description="base offset")
    object: str
    replaced_object: str
    records: int = Field(ge=0, description="that were overwritten")
    replaced_ms: int | None = Field(description="ms since the epoch; null: not known yet")
    deleted: bool = Field(description="whether the replaced object is gone")
    delete_after_ms: int | None = Field(description="ms since the epoch; null: not known yet")


class ReceiptOut(_Asked):
    """An erasure: messages are hidden from its beginning; then they are overwritten; then old objects go."""

    tombstone_id: str
    state: Literal["hidden", "held", "rewritten", "complete"]
    looked_at_bytes: int = Field(ge=0, description="of the log: archived segments below this offset are done")
    segments_rewritten: list[RewrittenOut]
    may_still_hold_bytes: list[str] = Field(description="places in words, with what will empty them")


class DeletedQueueOut(BaseModel):
    """A queue of a deleted topic."""

    queue_id: int
    next_offset: int = Field(ge=0, description="where it ended, and goes on if the topic is made again")


class DeletedTopicOut(BaseModel):
    """A topic that was deleted, or would be."""

    topic: str
    deleted: bool = Field(description="false: a dry run")
    below_offset: int = Field(ge=0, description="physical offset below which no record of the topic is shown")
    queues: list[DeletedQueueOut]
    tombstone_id: str | None = Field(description="of the receipt; null without a cold tier, or for a dry run")
    receipt: ReceiptOut | None


class DamagedReceiptOut(BaseModel):
    """A receipt that cannot be read."""

    tombstone_id: str
    store_id: str
    state: Literal["damaged"]
    error: str


class ReceiptListOut(BaseModel):
    """The oldest first, then those that cannot be read."""

    receipts: list[ReceiptOut | DamagedReceiptOut]
