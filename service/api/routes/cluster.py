"""The cluster: which stores there are, which one takes a topic, and what an operator decides about them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from service.access.caller import Caller, Scope
from service.api.cluster_schemas import ClusterOut, RouteIn, TopicHomeOut
from service.api.contract import may_answer
from service.api.deps import OwnStore, TheAudit, TheCaller, TheCluster
from service.api.lane_route import LaneRoute
from service.api.parameters import MemberStore, TopicName, any_store
from service.api.sent import sent, to_topic
from service.cluster.describing import change_cluster, cluster_json, home_json, taken_out
from service.cluster.view import ClusterView
from tiering.hot.identity import validate_known_store_id

router = APIRouter(route_class=LaneRoute, prefix="/v1/cluster", tags=["cluster"], dependencies=[any_store])


@router.get("", operation_id="get_cluster", response_model=ClusterOut)
def cluster(caller: TheCaller, own: OwnStore, view: TheCluster) -> JSONResponse:
    """The stores of the cluster as this service knows them, and topics that are routed by name.

    A service that is in no cluster answers with its own store. Of topics only those that the caller may read are told.
    """
    caller.check(Scope.READ)
    return _whole(caller, own, view)


@router.get("/topics/{topic}", operation_id="get_topic_home", response_model=TopicHomeOut)
def home(topic: TopicName, caller: TheCaller, own: OwnStore, view: TheCluster) -> JSONResponse:
    """The store that takes new messages of a topic, and its URL: for clients that go there by themselves.

    Whoever may write to or read from the topic may ask, whether the topic exists or not.
    """
    if not caller.may(Scope.PRODUCE, topic):
        caller.check(Scope.READ, topic)
    return JSONResponse(home_json(view, own, topic))


@router.put("/topics/{topic}", operation_id="route_topic", response_model=ClusterOut, responses=may_answer(404, 409))
def route(
    topic: TopicName,
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
def unroute(topic: TopicName, caller: TheCaller, own: OwnStore, view: TheCluster, audit: TheAudit) -> JSONResponse:
    """Leave a topic to hashing again; fine if it was not routed."""
    caller.check(Scope.ADMIN, topic)
    with audit(caller):
        change_cluster(view, lambda table: table.unroute(topic))
    return _whole(caller, own, view)


@router.put("/closed/{store}", operation_id="close_store", response_model=ClusterOut, responses=may_answer(404, 409))
def close(store: MemberStore, caller: TheCaller, own: OwnStore, view: TheCluster, audit: TheAudit) -> JSONResponse:
    """Hash no topic to a store any more; topics that are routed there by name stay. 409 for the last open one."""
    caller.check_everywhere(Scope.ADMIN)
    with audit(caller):
        change_cluster(view, lambda table: table.close(store))
    return _whole(caller, own, view)


@router.delete("/closed/{store}", operation_id="open_store", response_model=ClusterOut, responses=may_answer(409))
def reopen(store: MemberStore, caller: TheCaller, own: OwnStore, view: TheCluster, audit: TheAudit) -> JSONResponse:
    """Hash topics to a store again; fine if it was open."""
    caller.check_everywhere(Scope.ADMIN)
    with audit(caller):
        change_cluster(view, lambda table: table.open(store))
    return _whole(caller, own, view)


@router.delete(
    "/stores/{store}", operation_id="remove_store", response_model=ClusterOut, responses=may_answer(404, 409)
)
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
