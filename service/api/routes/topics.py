"""Topics, files and statistics of a store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from tierlog.service.access.caller import Scope
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import TheAudit, TheCaller, TheEngine, TheReader
from tierlog.service.api.json_bodies import sent, to_topic
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.admin import DeletedTopicOut
from tierlog.service.api.schemas.messages import DeleteTopicIn, HoldIn, TopicIn, TopicOut
from tierlog.service.api.schemas.parameters import TopicName
from tierlog.service.api.schemas.stores import FileListOut, QuerierStatsOut, StatsOut, TopicListOut
from tierlog.service.cluster.routing import ARCHIVE, TOPIC_ARCHIVE, TOPIC_HOME, TOPIC_STORE
from tierlog.service.engine.removal import TopicChanges
from tierlog.service.engine.store import Store
from tierlog.service.follow.followed_broker import FollowedBroker
from tierlog.service.wire.documents import file_json, topic_json
from tierlog.tiering.base.errors import InvalidRequestError, TopicNotFoundError
from tierlog.tiering.message.batch import validate_topic, validate_topic_or_generation

router = APIRouter(route_class=LaneRoute, prefix="/v1", tags=["store"])

_NEW_QUEUES = 8


@router.get("/topics", operation_id="list_topics", response_model=TopicListOut)
@traits(lane=LaneChoice.READ, store=ARCHIVE)
def topics(caller: TheCaller, engine: TheReader) -> JSONResponse:
    """Every topic that the caller may read, with its queues and their offsets."""
    caller.check(Scope.READ)
    return JSONResponse({"topics": [topic_json(topic) for topic in engine.topics(partial(caller.may, Scope.READ))]})


@router.get("/topics/{topic}", operation_id="get_topic", response_model=TopicOut, responses=may_answer(404))
@traits(lane=LaneChoice.READ, store=TOPIC_ARCHIVE)
def topic(topic: TopicName, caller: TheCaller, engine: TheReader) -> JSONResponse:
    """One topic."""
    caller.check(Scope.READ, topic)
    return JSONResponse(topic_json(engine.topic(validate_topic_or_generation(topic))))


@router.put(
    "/topics/{topic}",
    operation_id="put_topic",
    response_model=TopicOut,
    response_description="changed, or as it was",
    responses={201: {"model": TopicOut, "description": "made"}, **may_answer(409, 507)},
)
@traits(lane=LaneChoice.READ, store=TOPIC_HOME)
def create(
    topic: TopicName,
    wanted: Annotated[TopicIn, sent(TopicIn, to_topic(Scope.ADMIN))],
    caller: TheCaller,
    engine: TheEngine,
    audit: TheAudit,
) -> JSONResponse:
    """Make a topic (201), or change one (200): more queues, its options. Fewer queues is a conflict."""
    try:
        queues = len(engine.topic(validate_topic(topic)).queues)
        status = 200
    except TopicNotFoundError:
        queues = _NEW_QUEUES
        status = 201
    with audit(caller, wanted):
        _change(engine, topic, wanted, queues)
    return JSONResponse(topic_json(engine.topic(topic)), status)


def _change(engine: Store, topic: str, wanted: TopicIn, queues: int) -> None:
    engine.create_topic(topic, wanted.queues or queues)
    changes = TopicChanges()
    if wanted.archive is not None:
        changes["archive"] = wanted.archive
    if "cold_retention_ms" in wanted.model_fields_set:
        changes["cold_retention_ms"] = wanted.cold_retention_ms
    if changes:
        engine.removal.configure(topic, **changes)


@router.put(
    "/topics/{topic}/hold", operation_id="hold_topic", response_model=TopicOut, responses=may_answer(404, 409, 507)
)
@traits(lane=LaneChoice.READ, store=TOPIC_STORE)
def hold(
    topic: TopicName,
    wanted: Annotated[HoldIn, sent(HoldIn, to_topic(Scope.ADMIN))],
    caller: TheCaller,
    engine: TheEngine,
    audit: TheAudit,
) -> JSONResponse:
    """Put a topic on hold: until that ends, nothing of it is erased or expires."""
    validate_topic(topic)
    with audit(caller, wanted):
        engine.removal.configure(topic, hold=wanted.hold)
    return JSONResponse(topic_json(engine.topic(topic)))


@router.delete(
    "/topics/{topic}",
    operation_id="delete_topic",
    response_model=DeletedTopicOut,
    responses=may_answer(404, 409, 507),
)
@traits(lane=LaneChoice.ADMIN, store=TOPIC_STORE)
def delete(
    topic: TopicName,
    caller: TheCaller,
    engine: TheEngine,
    audit: TheAudit,
    wanted: Annotated[DeleteTopicIn, Query()],
) -> JSONResponse:  # fmt: skip
    """Delete a topic with all its messages: gone for every reader at once, its archived bytes are overwritten.

    It needs `all=true`, or `dry_run=true`, which changes nothing.
    The answer says where each queue ended. A topic of this name that is made again goes on there, and shows nothing of
    before. 409 for a topic on hold. If the object store does not answer (503), the topic is deleted in the store all
    the same, and the archive is told in the background, or when the call is made again.
    """
    caller.check(Scope.ADMIN, topic)
    validate_topic(topic)
    if not (wanted.all or wanted.dry_run):
        raise InvalidRequestError(
            f"this deletes topic {topic!r} with every message it has",
            hint="say all=true if that is meant; dry_run=true tells where its queues would end",
        )
    with audit(caller, wanted, must=not wanted.dry_run):
        done = engine.removal.delete_topic(topic, dry_run=wanted.dry_run, wait=wanted.wait)
    return JSONResponse(done)


@router.get("/files", operation_id="list_files", response_model=FileListOut)
@traits(lane=LaneChoice.READ, store=ARCHIVE)
def files(caller: TheCaller, engine: TheReader) -> JSONResponse:
    """Every segment and index file with tier, state, time range and bytes."""
    caller.check(Scope.READ)
    return JSONResponse({"files": [file_json(file) for file in engine.files()]})


@router.get("/stats", operation_id="get_stats", response_model=StatsOut | QuerierStatsOut)
@traits(lane=LaneChoice.READ, store=ARCHIVE)
def stats(request: Request, caller: TheCaller, engine: TheReader) -> JSONResponse:
    """Sizes in bytes, times in ms. What names topics is left out for a caller who may not read all of them."""
    caller.check(Scope.READ)
    found = engine.stats()
    brokers: Sequence[FollowedBroker] = request.app.state.followed()
    if brokers:
        found["followed"] = {broker.name: broker.stats() for broker in brokers}
    if not caller.is_unlimited:
        found.pop("consumer_offsets", None)
    return JSONResponse(found)
