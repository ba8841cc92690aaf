"""Topics and files: what is there."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from service.api.deps import TheEngine
from service.api.schemas import HoldIn, TopicIn, TopicOut
from service.removal import TopicChanges
from service.wire import file_json, topic_json
from tiering.batch import validate_topic
from tiering.errors import TopicNotFoundError

router = APIRouter(prefix="/v1", tags=["store"])

_NEW_QUEUES = 8


@router.get("/topics")
def topics(engine: TheEngine) -> JSONResponse:
    """Every topic with its queues and their offsets."""
    return JSONResponse({"topics": [topic_json(topic) for topic in engine.topics()]})


@router.get("/topics/{topic}", response_model=TopicOut)
def topic(topic: str, engine: TheEngine) -> JSONResponse:
    """One topic."""
    return JSONResponse(topic_json(engine.topic(validate_topic(topic))))


@router.put("/topics/{topic}", response_model=TopicOut, responses={201: {"model": TopicOut}})
def create(topic: str, wanted: TopicIn, engine: TheEngine) -> JSONResponse:
    """Make a topic (201), or change one (200): more queues, its options. Fewer queues is a conflict."""
    try:
        queues = len(engine.topic(validate_topic(topic)).queues)
        status = 200
    except TopicNotFoundError:
        queues = _NEW_QUEUES
        status = 201
    engine.create_topic(topic, wanted.queues or queues)
    changes = TopicChanges()
    if wanted.archive is not None:
        changes["archive"] = wanted.archive
    if "cold_retention_ms" in wanted.model_fields_set:
        changes["cold_retention_ms"] = wanted.cold_retention_ms
    if changes:
        engine.removal.configure(topic, **changes)
    return JSONResponse(topic_json(engine.topic(topic)), status)


@router.put("/topics/{topic}/hold", response_model=TopicOut)
def hold(topic: str, wanted: HoldIn, engine: TheEngine) -> JSONResponse:
    """Put a topic on hold: until that ends, nothing of it is erased or expires."""
    engine.removal.configure(validate_topic(topic), hold=wanted.hold)
    return JSONResponse(topic_json(engine.topic(topic)))


@router.get("/files")
def files(engine: TheEngine) -> JSONResponse:
    """Every segment and index file with tier, state, time range and bytes."""
    return JSONResponse({"files": [file_json(file) for file in engine.files()]})


@router.get("/stats")
def stats(engine: TheEngine) -> JSONResponse:
    """Sizes in bytes, times in ms."""
    return JSONResponse(engine.stats())
