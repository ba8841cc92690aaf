"""What an operator asks for: archive, flush and check now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from index.query import Query
from service.access.caller import Caller, Scope
from service.api.admin_schemas import (
    ArchiveIn,
    ArchiveReportOut,
    CheckIn,
    CheckReportOut,
    EraseIn,
    ErasePlanOut,
    FlushedOut,
    ReceiptListOut,
    ReceiptOut,
)
from service.api.contract import may_answer
from service.api.deps import TheAudit, TheCaller, TheEngine
from service.api.lane_route import LaneRoute
from service.api.parameters import ReceiptId, any_store
from service.api.sent import sent, to_all, to_some
from service.wire import report_json
from tiering.errors import InvalidRequestError, NotFoundError

router = APIRouter(route_class=LaneRoute, prefix="/v1/admin", tags=["admin"], dependencies=[any_store])


@router.post("/archive", operation_id="archive_now", response_model=ArchiveReportOut, responses=may_answer(409, 507))
def archive(
    caller: TheCaller,
    engine: TheEngine,
    audit: TheAudit,
    wanted: Annotated[ArchiveIn | None, sent(ArchiveIn, to_all(Scope.ADMIN), is_needed=False)],
) -> JSONResponse:
    """Roll, seal and publish now; answered when published. ``drop_hot`` then removes the hot copies."""
    wanted = wanted or ArchiveIn()
    if wanted.all and wanted.until is not None:
        raise InvalidRequestError("give either until or all")
    with audit(caller, wanted):
        report = engine.archive(until_ms=wanted.until, everything=wanted.all, drop_hot=wanted.drop_hot)
    return JSONResponse(report_json(report))


@router.post("/flush", operation_id="flush_now", response_model=FlushedOut, responses=may_answer(507))
def flush(caller: TheCaller, engine: TheEngine, audit: TheAudit) -> JSONResponse:
    """Make everything acknowledged so far durable."""
    caller.check_everywhere(Scope.ADMIN)
    with audit(caller):
        engine.flush()
    return JSONResponse({"flushed": True})


@router.post("/check", operation_id="check_now", response_model=CheckReportOut)
def check(
    caller: TheCaller,
    engine: TheEngine,
    audit: TheAudit,
    wanted: Annotated[CheckIn | None, sent(CheckIn, to_all(Scope.ADMIN), is_needed=False)],
) -> JSONResponse:
    """Verify the invariants; an empty list of findings is what everybody wants."""
    wanted = wanted or CheckIn()
    with audit(caller, wanted, must=False):
        report = engine.check_report(deep=wanted.deep)
    return JSONResponse(report.to_json())


@router.post(
    "/erase",
    operation_id="erase_messages",
    response_model=ReceiptOut | ErasePlanOut,
    responses=may_answer(404, 409, 507),
)
def erase(
    caller: TheCaller,
    engine: TheEngine,
    audit: TheAudit,
    wanted: Annotated[EraseIn, sent(EraseIn, to_some(Scope.ADMIN))],
) -> JSONResponse:
    """Hide messages for ever, at once; their archived copies are overwritten in the background.

    The answer is the receipt, which `GET /v1/admin/receipts/{id}` gives again as the work goes on. 409 for a topic on
    hold, 400 for a store without a cold tier.
    """
    caller.check(Scope.ADMIN, wanted.topic)
    query = Query(wanted.topic, wanted.key, wanted.from_ms, wanted.to_ms)
    with audit(caller, wanted, must=not wanted.dry_run) as act:
        receipt = engine.removal.erase(query, dry_run=wanted.dry_run, wait=wanted.wait)
        act.outcome["tombstone_id"] = receipt["tombstone_id"]
    return JSONResponse(receipt)


@router.get("/receipts", operation_id="list_receipts", response_model=ReceiptListOut)
def receipts(caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Receipts of all erasures in topics that the caller administers, the oldest first."""
    caller.check(Scope.ADMIN)
    found = engine.removal.receipts()
    return JSONResponse({"receipts": [one for one in found if _may_see(caller, one)]})


@router.get(
    "/receipts/{tombstone_id}", operation_id="get_receipt", response_model=ReceiptOut, responses=may_answer(404)
)
def receipt(tombstone_id: ReceiptId, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """The receipt of one erasure: objects rewritten and deleted, and what may still hold bytes."""
    caller.check(Scope.ADMIN)
    found = engine.removal.receipt(tombstone_id)
    if not caller.may(Scope.ADMIN, found["topic"]):
        raise NotFoundError(f"there is no receipt {tombstone_id!r}")
    return JSONResponse(found)


def _may_see(caller: Caller, receipt: dict[str, Any]) -> bool:
    """Of a receipt that cannot be read nobody knows the topic."""
    return caller.may(Scope.ADMIN, receipt["topic"]) if "topic" in receipt else caller.is_unlimited
