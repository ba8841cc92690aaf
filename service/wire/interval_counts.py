"""Counts per interval as another store's service tells them."""

from __future__ import annotations

from typing import Any

from tierlog.index.search.counts import CountQuery, IntervalCounts
from tierlog.index.search.query import Coverage, Failure, StoreCoverage, TierCoverage
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.errors import CorruptionError


def counts_of(found: Json, query: CountQuery, store_id: str | None) -> IntervalCounts:
    """Reads an answer; :class:`CorruptionError` for one that is not to the question: services are not trusted."""
    try:
        counts = [int(each["messages"]) for each in found["counts"]]
        read = IntervalCounts(
            query.topic, query.axis, int(found["from_ms"]), int(found["to_ms"]), int(found["interval_ms"]), counts,
            int(found["estimated"]), _coverage(found["coverage"]),
        )  # fmt: skip
        is_right = (
            (found["topic"], found["time"]) == (query.topic, query.axis.value)
            and read.interval_ms > 0
            and len(counts) == len(range(read.from_ms, read.to_ms, read.interval_ms))
            and min(counts, default=0) >= 0
            and max(counts, default=0) < 1 << 62
            and (query.from_ms is None or query.to_ms is None or _is_asked(read, query))
        )
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptionError(f"store {store_id} answered with something else than counts") from error
    if not is_right:
        raise CorruptionError(f"store {store_id} answered with other counts than were asked for")
    return read


def _is_asked(read: IntervalCounts, query: CountQuery) -> bool:
    return (read.from_ms, read.to_ms, read.interval_ms) == (query.from_ms, query.to_ms, query.width_ms(query.within))


def _coverage(told: Any) -> Coverage:
    return Coverage(
        complete=bool(told["complete"]),
        cut_by=None if told["cut_by"] is None else str(told["cut_by"]),
        stores=[
            StoreCoverage(
                str(store["store_id"]), _tier(store["hot"]), _tier(store["cold"]),
                None if store["error"] is None else str(store["error"]),
            )
            for store in told["stores"]
        ],
        segments_read=int(told["segments"]["read"]), round_trips=int(told["round_trips"]), waves=int(told["waves"]),
        requests=int(told["requests"]), manifest_requests=int(told["manifest_requests"]), bytes=int(told["bytes"]),
        cost_usd=float(told["cost_usd"]),
        failures=[Failure(str(one["object"]), str(one["error"])) for one in told["failures"]],
    )  # fmt: skip


def _tier(told: Any) -> TierCoverage | None:
    if told is None:
        return None
    version = told.get("manifest_version")
    return TierCoverage(int(told["from_ms"]), int(told["to_ms"]), None if version is None else int(version))
