"""The calls of an operator: archive, flush, check and erase now, and the receipts of erasures."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from tierlog.index.search.query import Query
from tierlog.service.access.caller import Caller, Scope
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import TheAudit, TheCaller, TheEngine
from tierlog.service.api.json_bodies import sent, to_all, to_some
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.admin import (
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
from tierlog.service.api.schemas.parameters import ReceiptId
from tierlog.service.cluster.routing import ONE_STORE
from tierlog.service.wire.documents import report_json
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError
from tierlog.tiering.lifecycle.tombstones import hides_whole_topic

router = APIRouter(route_class=LaneRoute, prefix="/v1/admin", tags=["admin"])


@router.post("/archive", operation_id="archive_now", response_model=ArchiveReportOut, responses=may_answer(409, 507))
@traits(lane=LaneChoice.ADMIN, store=ONE_STORE)
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
@traits(lane=LaneChoice.ADMIN, store=ONE_STORE)
def flush(caller: TheCaller, engine: TheEngine, audit: TheAudit) -> JSONResponse:
    """Make everything acknowledged so far durable."""
    caller.check_everywhere(Scope.ADMIN)
    with audit(caller):
        engine.flush()
    return JSONResponse({"flushed": True})


@router.post("/check", operation_id="check_now", response_model=CheckReportOut)
@traits(lane=LaneChoice.ADMIN, store=ONE_STORE)
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
@traits(lane=LaneChoice.ADMIN, store=ONE_STORE)
def erase(
    caller: TheCaller,
    engine: TheEngine,
    audit: TheAudit,
    wanted: Annotated[EraseIn, sent(EraseIn, to_some(Scope.ADMIN))],
) -> JSONResponse:
    """Hide messages for ever, at once; their archived copies are overwritten in the background.

    A whole topic needs `"all": true`. The answer is the receipt, which `GET /v1/admin/receipts/{id}` gives again as the
    work goes on. 409 for a topic on hold, 400 for a store without a cold tier.
    """
    caller.check(Scope.ADMIN, wanted.topic)
    query = Query(wanted.topic, wanted.key, wanted.from_ms, wanted.to_ms)
    _check_words(wanted)
    with audit(caller, wanted, must=not wanted.dry_run) as act:
        receipt = engine.removal.erase(query, dry_run=wanted.dry_run, wait=wanted.wait)
        act.outcome["tombstone_id"] = receipt["tombstone_id"]
    return JSONResponse(receipt)


def _check_words(wanted: EraseIn) -> None:
    is_whole = hides_whole_topic([wanted.key], wanted.from_ms, wanted.to_ms)
    if wanted.all and not is_whole:
        raise InvalidRequestError("all is the whole topic, and key, from and to a part of it", hint="give one of them")
    if is_whole and not (wanted.all or wanted.dry_run):
        raise InvalidRequestError(
            f"this erases all that topic {wanted.topic!r} holds",
            hint='give key, from or to, or "all": true if it is meant; "dry_run": true only counts',
        )


@router.get("/receipts", operation_id="list_receipts", response_model=ReceiptListOut)
@traits(lane=LaneChoice.ADMIN, store=ONE_STORE)
def receipts(caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """Receipts of all erasures in topics that the caller administers, the oldest first."""
    caller.check(Scope.ADMIN)
    found = engine.removal.receipts()
    return JSONResponse({"receipts": [one for one in found if _may_see(caller, one)]})


@router.get(
    "/receipts/{tombstone_id}", operation_id="get_receipt", response_model=ReceiptOut, responses=may_answer(404)
)
@traits(lane=LaneChoice.ADMIN, store=ONE_STORE)
def receipt(tombstone_id: ReceiptId, caller: TheCaller, engine: TheEngine) -> JSONResponse:
    """The receipt of one erasure: objects rewritten and deleted, and what may still hold bytes."""
    caller.check(Scope.ADMIN)
    found = engine.removal.receipt(tombstone_id)
    if not caller.may(Scope.ADMIN, found["topic"]):
        raise NotFoundError(f"there is no receipt {tombstone_id!r}")
    return JSONResponse(found)


def _may_see(caller: Caller, receipt: dict[str, Any]) -> bool:
    """Whether the caller may see a receipt; nobody knows the topic of one that cannot be read."""
    return caller.may(Scope.ADMIN, receipt["topic"]) if "topic" in receipt else caller.is_unlimited
