"""Topics and files: what is there."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from service.api.deps import TheEngine
from service.api.schemas import TopicIn, TopicOut
from service.wire import file_json, topic_json
from tiering.batch import validate_topic
from tiering.errors import TopicNotFoundError

router = APIRouter(prefix="/v1", tags=["store"])


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
    """Make a topic (201), or give one more queues (200); fewer is a conflict."""
    try:
        engine.topic(validate_topic(topic))
        status = 200
    except TopicNotFoundError:
        status = 201
    engine.create_topic(topic, wanted.queues)
    return JSONResponse(topic_json(engine.topic(topic)), status)


@router.get("/files")
def files(engine: TheEngine) -> JSONResponse:
    """Every segment and index file with tier, state, time range and bytes."""
    return JSONResponse({"files": [file_json(file) for file in engine.files()]})


@router.get("/stats")
def stats(engine: TheEngine) -> JSONResponse:
    """Sizes in bytes, times in ms."""
    return JSONResponse(engine.stats())
