"""The shapes of what stands beside the messages of a query: its coverage, and the estimate of a dry run."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

_COUNT = Field(ge=0)


class HotCoverageOut(BaseModel):
    """What was searched of a hot tier: every message that it held there is in the answer or a page before."""

    from_ms: int = Field(description="ms since the epoch, on the time axis of the query")
    to_ms: int = Field(description="ms since the epoch, not included")


class ColdCoverageOut(HotCoverageOut):
    """What was searched of an archive, and in which version of its manifest."""

    manifest_version: int = Field(ge=0)


class StoreCoverageOut(BaseModel):
    """What was searched of one store; null for a tier that holds nothing to search, or of which nothing was."""

    store_id: str
    hot: HotCoverageOut | None
    cold: ColdCoverageOut | None
    error: str | None = Field(description="why this store is not covered as far as was asked")


class IndexCoverageOut(BaseModel):
    """Index files and objects that overlap the range: each considered once, and once as one of the others."""

    considered: int = _COUNT
    filtered: int = Field(ge=0, description="what is in memory proved that the key is not there")
    searched: int = _COUNT
    expired: int = Field(ge=0, description="deleted meanwhile, by retention")
    unreachable: int = Field(ge=0, description="could not be read; see failures")
    skipped: int = Field(ge=0, description="not asked: the page was certain without, or budget or time were over")


class SegmentCoverageOut(BaseModel):
    """Segments that messages were looked for in."""

    read: int = _COUNT
    expired: int = _COUNT
    erased: int = _COUNT
    unreachable: int = Field(ge=0, description="could not be read; see failures")


class FailureOut(BaseModel):
    """One thing that could not be read."""

    object: str
    error: str


class CoverageOut(BaseModel):
    """What was searched for the page returned, and what that took."""

    complete: bool = Field(description="whether all that `stores` claim was searched in full for this page")
    cut_by: Literal["limit", "budget", "timeout", "dry_run"] | None = Field(
        description="what ended the page: `limit` messages, `max_requests`, `timeout_ms`; null: nothing is left"
    )
    stores: list[StoreCoverageOut]
    index_files: IndexCoverageOut
    segments: SegmentCoverageOut
    round_trips: int = Field(ge=0, description="longest chain of requests that each needed the one before")
    waves: int = Field(ge=0, description="rounds of parallel requests that they fit in")
    requests: int = Field(ge=0, description="to the object store, all that were begun")
    manifest_requests: int = Field(ge=0, description="of these, those that read the manifest")
    bytes: int = Field(ge=0, description="bytes read from the object store")
    cost_usd: float = Field(ge=0, description="US dollars, by the price list of the service")
    failures: list[FailureOut]


class SpanOut(BaseModel):
    """Requests to the object store: at least, probably, at most."""

    least: int = _COUNT
    likely: int = _COUNT
    most: int = Field(ge=0, description="`max_requests` of this number is enough")


class CostOut(BaseModel):
    """US dollars: at least, probably, at most."""

    least: float = _COUNT
    likely: float = _COUNT
    most: float = _COUNT


class ObjectsAskedOut(BaseModel):
    """Index objects of the archive that are not ruled out."""

    asked: int = _COUNT
    filters_resident: int = Field(ge=0, description="those whose key filter is in memory")
    directories_resident: int = Field(ge=0, description="those whose page directory is at hand")


class SegmentsAskedOut(BaseModel):
    """Segments of the archive that will be read."""

    by_hits: int = Field(ge=0, description="holding known hits")
    by_time: int = Field(ge=0, description="searched record by record")


class EstimateOut(BaseModel):
    """What the first page may cost, beside what is in memory and on disk now."""

    requests: SpanOut
    bytes: int = Field(ge=0, description="likely bytes from the object store")
    cost_usd: CostOut
    round_trips: int = Field(ge=0, description="likely longest chain of requests")
    is_whole: bool = Field(description="false: the manifest could not be read in full, there may be more")
    index_objects: ObjectsAskedOut
    segments: SegmentsAskedOut
    notes: list[str]
