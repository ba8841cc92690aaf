"""The cluster: which stores there are, which one takes a topic, and what an operator decides about them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from tierlog.service.access.caller import Caller, Scope
from tierlog.service.api.contract import may_answer
from tierlog.service.api.deps import OwnStore, TheAudit, TheCaller, TheCluster
from tierlog.service.api.json_bodies import sent, to_topic
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import traits
from tierlog.service.api.schemas.parameters import MemberStore, TopicName, whole
from tierlog.service.cluster.documents import change_cluster, cluster_json, home_json, taken_out
from tierlog.service.cluster.routing import ANY_PROCESS, CLUSTER_TABLE
from tierlog.service.cluster.view import ClusterView
from tierlog.tiering.hot.identity import STORE_ID_PATTERN, validate_known_store_id

StoreId = Annotated[str, WithJsonSchema({"type": "string", "pattern": whole(STORE_ID_PATTERN), "examples": ["a"]})]


class RouteIn(BaseModel):
    """Where new messages of a topic shall go."""

    model_config = ConfigDict(extra="forbid", strict=True)

    store_id: StoreId = Field(description="a store of the cluster")


class ClusterStoreOut(BaseModel):
    """One store of the cluster."""

    store_id: str
    url: str | None = Field(description="where its node answers; null for a service that is in no cluster")
    doors: dict[str, str] = Field(description="where clients of RocketMQ reach it, `host:port` by protocol")
    epoch: int | None = Field(
        ge=0, description="counts the owners of its archive; null: not entered in the table, or not yet"
    )
    volume_id: str | None = Field(description="the volume that has entered it")
    closed: bool = Field(description="gets no topics by hashing")
    is_own: bool = Field(description="is the store of the service that answers")


class RouteOut(BaseModel):
    """A topic that is routed by name."""

    topic: str
    store_id: str


class ClusterOut(BaseModel):
    """The cluster as one service knows it."""

    store_id: str | None = Field(description="the own store; null: the service has none")
    version: int = Field(ge=0, description="of the cluster table; 0: none was seen yet, or there is none")
    age_ms: int | None = Field(description="ms since it was known to be the newest; null: never")
    error: str | None = Field(
        description="why the table cannot be read or the own store not be entered; null: nothing is wrong"
    )
    stores: list[ClusterStoreOut]
    topics: list[RouteOut] = Field(description="routed by name, as far as the caller may see them")


class TopicHomeOut(BaseModel):
    """Where new messages of a topic go."""

    topic: str
    store_id: str
    url: str | None = Field(description="where its node answers; null: here, the service is in no cluster")
    is_routed: bool = Field(description="by name; else by hashing, which a change of the stores may change")


router = APIRouter(route_class=LaneRoute, prefix="/v1/cluster", tags=["cluster"])


@router.get("", operation_id="get_cluster", response_model=ClusterOut)
@traits(lane=LaneChoice.READ, store=ANY_PROCESS)
def cluster(caller: TheCaller, own: OwnStore, view: TheCluster) -> JSONResponse:
    """The stores of the cluster as this service knows them, and topics that are routed by name.

    A service that is in no cluster answers with its own store. Of topics only those that the caller may read are told.
    """
    caller.check(Scope.READ)
    return _whole(caller, own, view)


@router.get("/topics/{topic}", operation_id="get_topic_home", response_model=TopicHomeOut)
@traits(lane=LaneChoice.READ, store=ANY_PROCESS)
def home(topic: TopicName, caller: TheCaller, own: OwnStore, view: TheCluster) -> JSONResponse:
    """The store that takes new messages of a topic, and its URL: for clients that go there by themselves.

    Whoever may write to or read from the topic may ask, whether the topic exists or not.
    """
    if not caller.may(Scope.PRODUCE, topic):
        caller.check(Scope.READ, topic)
    return JSONResponse(home_json(view, own, topic))


@router.put("/topics/{topic}", operation_id="route_topic", response_model=ClusterOut, responses=may_answer(404, 409))
@traits(lane=LaneChoice.ADMIN, store=CLUSTER_TABLE)
def route(
    topic: TopicName,
    *,
    wanted: Annotated[RouteIn, sent(RouteIn, to_topic(Scope.ADMIN))],
    caller: TheCaller,
    own: OwnStore,
    view: TheCluster,
    audit: TheAudit,
) -> JSONResponse:
    """Send new messages of a topic to one store from now on; what was written before stays where it is.

    Other nodes know it within `cluster.refresh_ms`. 404 for a store that is not in the cluster.
    """
    store_id = validate_known_store_id(wanted.store_id)
    with audit(caller, wanted):
        change_cluster(view, lambda table: table.route(topic, store_id))
    return _whole(caller, own, view)


@router.delete("/topics/{topic}", operation_id="unroute_topic", response_model=ClusterOut, responses=may_answer(409))
@traits(lane=LaneChoice.ADMIN, store=CLUSTER_TABLE)
def unroute(topic: TopicName, caller: TheCaller, own: OwnStore, view: TheCluster, audit: TheAudit) -> JSONResponse:
    """Leave a topic to hashing again; fine if it was not routed."""
    caller.check(Scope.ADMIN, topic)
    with audit(caller):
        change_cluster(view, lambda table: table.unroute(topic))
    return _whole(caller, own, view)


@router.put("/closed/{store}", operation_id="close_store", response_model=ClusterOut, responses=may_answer(404, 409))
@traits(lane=LaneChoice.ADMIN, store=CLUSTER_TABLE)
def close(store: MemberStore, caller: TheCaller, own: OwnStore, view: TheCluster, audit: TheAudit) -> JSONResponse:
    """Hash no topic to a store any more; topics that are routed there by name stay. 409 for the last open one."""
    caller.check_everywhere(Scope.ADMIN)
    with audit(caller):
        change_cluster(view, lambda table: table.close(store))
    return _whole(caller, own, view)


@router.delete("/closed/{store}", operation_id="open_store", response_model=ClusterOut, responses=may_answer(409))
@traits(lane=LaneChoice.ADMIN, store=CLUSTER_TABLE)
def reopen(store: MemberStore, caller: TheCaller, own: OwnStore, view: TheCluster, audit: TheAudit) -> JSONResponse:
    """Hash topics to a store again; fine if it was open."""
    caller.check_everywhere(Scope.ADMIN)
    with audit(caller):
        change_cluster(view, lambda table: table.open(store))
    return _whole(caller, own, view)


@router.delete(
    "/stores/{store}", operation_id="remove_store", response_model=ClusterOut, responses=may_answer(404, 409)
)
@traits(lane=LaneChoice.ADMIN, store=CLUSTER_TABLE)
def remove(store: MemberStore, caller: TheCaller, own: OwnStore, view: TheCluster, audit: TheAudit) -> JSONResponse:
    """Take a store that will not come back out of the table, with the topics that are routed to it.

    Its archive is not touched. A node that still runs enters itself again.
    """
    caller.check_everywhere(Scope.ADMIN)
    with audit(caller):
        change_cluster(view, taken_out(store))
    return _whole(caller, own, view)


def _whole(caller: Caller, own: str | None, view: ClusterView | None) -> JSONResponse:
    return JSONResponse(cluster_json(view, own, partial(_may_see, caller)))


def _may_see(caller: Caller, topic: str) -> bool:
    return caller.may(Scope.READ, topic) or caller.may(Scope.ADMIN, topic)
