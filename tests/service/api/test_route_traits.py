"""Each route declares its lane and its store, once, and everybody else looks the declaration up."""

from __future__ import annotations

import ast
import inspect
import re
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from fastapi import APIRouter

from tierlog.service.api import deps, lanes, limits
from tierlog.service.api.application import forwarding
from tierlog.service.api.application.app import route_table, routed_app
from tierlog.service.api.deps import TheDeliveries, TheEngine, TheReader, TheServed
from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.lanes import LaneChoice
from tierlog.service.api.route_traits import RouteTraits, traits, traits_of
from tierlog.service.api.schemas import parameters
from tierlog.service.cluster import routing
from tierlog.service.cluster.routing import STORE_ID

_APP = routed_app(access=False)
_ROUTES = [route for route in _APP.routes if isinstance(route, LaneRoute)]
#: Modules that go by the declaration; they know no path of a route.
_ELSEWHERE = (lanes, limits, routing, forwarding, deps, parameters)


def _name(route: LaneRoute) -> str:
    return f"{min(route.methods or ())} {route.path}"


def test_every_route_of_ours_declares_both_and_the_table_has_what_it_declares() -> None:
    assert {route.path for route in _APP.routes if not isinstance(route, LaneRoute)} == {_APP.openapi_url}  # type: ignore[attr-defined]
    table = route_table(_APP)
    for route in _ROUTES:
        path = re.sub(r"\{([^{}:]+)(?::path)?\}", r"a-\1", route.path)
        for method in route.methods or ():
            found = table.find(method, path)
            assert found.traits == route.traits == traits_of(inspect.unwrap(route.endpoint)), _name(route)
            if route.traits.store is not None:
                assert found.names == {name: f"a-{name}" for name in re.findall("{(.*?)}", route.path)}
    assert len(_ROUTES) > 35


def test_a_route_without_a_declaration_is_refused_when_it_is_made() -> None:
    router = APIRouter(route_class=LaneRoute)

    def undeclared() -> None:
        """Does nothing."""

    with pytest.raises(AssertionError, match="@traits is missing"):
        router.get("/v1/undeclared")(undeclared)
    router.get("/v1/undeclared")(traits(lane=LaneChoice.READ, store=None)(undeclared))


@pytest.mark.parametrize("route", _ROUTES, ids=_name)
def test_a_route_is_handed_what_its_declaration_says_and_has_store_id_if_it_is_for_a_store(route: LaneRoute) -> None:
    rule = route.traits.store
    arguments = [one.alias for part in route.dependant.dependencies for one in part.query_params]
    assert (STORE_ID in arguments) == (rule is not None)
    assert (rule is not None) == route.path.startswith("/v1/")
    hints = get_type_hints(inspect.unwrap(route.endpoint), include_extras=True)
    handed = hints.get("engine", hints.get("deliveries"))
    allowed: tuple[Any, ...] = (TheServed, None)
    if rule is not None:
        allowed = (TheReader,) if rule.reads_archive else (TheEngine, TheDeliveries) if rule.needs_store else (None,)
        allowed = (TheServed,) if rule.is_message else allowed
    assert handed in allowed


@pytest.mark.parametrize("module", _ELSEWHERE, ids=lambda module: module.__name__)
def test_no_other_place_knows_routes_by_their_paths(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    documented = {
        ast.get_docstring(node, clean=False)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert [text for text in texts if "/v1" in text and text not in documented] == []


@pytest.mark.parametrize(
    ("method", "path", "lane", "rule"),
    [
        ("GET", "/nothing", LaneChoice.ALWAYS, None),
        ("GET", "/v1", LaneChoice.ALWAYS, None),
        ("GET", "/web/0123/deep/er.js", LaneChoice.ALWAYS, None),
        ("GET", "/v1/nothing", LaneChoice.READ, routing.ANY_PROCESS),
        ("GET", "/v1/stats/", LaneChoice.READ, routing.ANY_PROCESS),
        ("GET", "/v1/topics//messages", LaneChoice.READ, routing.ANY_PROCESS),
        ("POST", "/v1/topics/orders", LaneChoice.READ, routing.TOPIC),
        ("POST", "/v1/topics/orders/messages\n", LaneChoice.READ, routing.TOPIC),
        ("PATCH", "/v1/topics/orders/queues/0/messages", LaneChoice.READ, routing.TOPIC_STORE),
        ("HEAD", "/v1/groups/billing/members", LaneChoice.READ, routing.GROUP),
        ("DELETE", "/v1/timeline", LaneChoice.READ, routing.ONE_STORE),
        ("GET", "/v1/admin/flush", LaneChoice.ADMIN, routing.ONE_STORE),
        ("PUT", "/v1/cluster/stores/a", LaneChoice.ADMIN, routing.CLUSTER_TABLE),
    ],
)
def test_what_no_route_takes_is_refused_where_its_store_is(
    method: str, path: str, lane: LaneChoice, rule: routing.StoreRule | None
) -> None:
    assert route_table(_APP).find(method, path).traits == RouteTraits(lane, rule)


def test_head_is_as_get() -> None:
    table = route_table(_APP)
    for route in _ROUTES:
        if "GET" in (route.methods or ()):
            assert table.find("HEAD", route.path) == table.find("GET", route.path)
