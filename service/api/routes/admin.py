"""What an operator asks for: archive, flush and check now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse

from index.query import Query
from service.api.deps import TheEngine
from service.api.schemas import ArchiveIn, CheckIn, EraseIn
from service.wire import report_json
from tiering.errors import InvalidRequestError

router = APIRouter(prefix="/v1/admin", tags=["admin"])


@router.post("/archive")
def archive(engine: TheEngine, wanted: Annotated[ArchiveIn | None, Body()] = None) -> JSONResponse:
    """Roll, seal and publish now; answered when published. ``drop_hot`` then removes the hot copies."""
    wanted = wanted or ArchiveIn()
    if wanted.all and wanted.until is not None:
        raise InvalidRequestError("give either until or all")
    return JSONResponse(
        report_json(engine.archive(until_ms=wanted.until, everything=wanted.all, drop_hot=wanted.drop_hot))
    )


@router.post("/flush")
def flush(engine: TheEngine) -> JSONResponse:
    """Make everything acknowledged so far durable."""
    engine.flush()
    return JSONResponse({"flushed": True})


@router.post("/check")
def check(engine: TheEngine, wanted: Annotated[CheckIn | None, Body()] = None) -> JSONResponse:
    """Verify the invariants; an empty list of findings is what everybody wants."""
    return JSONResponse(engine.check_report(deep=(wanted or CheckIn()).deep).to_json())


@router.post("/erase")
def erase(engine: TheEngine, wanted: EraseIn) -> JSONResponse:
    """Hide messages for ever, at once; their archived copies are overwritten in the background.

    The answer is the receipt, which `GET /v1/admin/receipts/{id}` gives again as the work goes on. 409 for a topic on
    hold, 400 for a store without a cold tier.
    """
    query = Query(wanted.topic, wanted.key, wanted.from_ms, wanted.to_ms)
    return JSONResponse(engine.removal.erase(query, dry_run=wanted.dry_run, wait=wanted.wait))


@router.get("/receipts")
def receipts(engine: TheEngine) -> JSONResponse:
    """Receipts of all erasures, the oldest first."""
    return JSONResponse({"receipts": engine.removal.receipts()})


@router.get("/receipts/{tombstone_id}")
def receipt(tombstone_id: str, engine: TheEngine) -> JSONResponse:
    """The receipt of one erasure: objects rewritten and deleted, and what may still hold bytes."""
    return JSONResponse(engine.removal.receipt(tombstone_id))
