"""What requests are held to is what the document says."""

from __future__ import annotations

from fastapi.routing import APIRoute

from tierlog.service.api.application.app import routed_app
from tierlog.service.api.lane_route import RouteInputs


def test_calls_read_from_routes_are_those_of_the_document() -> None:
    app = routed_app(access=False)
    described = {}
    for path, methods in app.openapi()["paths"].items():
        for method, call in methods.items():
            given = [one for one in call.get("parameters", ()) if one["in"] == "query"]
            names = [one["name"] for one in given]
            lists = frozenset(one["name"] for one in given if one["schema"].get("type") == "array")
            forms = call.get("requestBody", {}).get("content", {})
            described[path, method.upper()] = RouteInputs(frozenset(names), lists, tuple(forms))
    read = {
        (route.path, method): RouteInputs.of(route)
        for route in app.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    }
    assert read == described
    assert sum(bool(call.arguments) for call in read.values()) > 10
    assert sum(bool(call.forms) for call in read.values()) > 5
