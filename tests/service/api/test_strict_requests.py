"""What requests are held to is what the document says."""

from __future__ import annotations

import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from tierlog.service.api.application.app import routed_app
from tierlog.service.api.json_bodies import validated
from tierlog.service.api.lane_route import RouteInputs
from tierlog.service.api.routes.groups import OffsetsIn
from tierlog.service.api.schemas.admin import EraseIn
from tierlog.service.api.schemas.messages import HoldIn, MessagesIn, TopicIn


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


@pytest.mark.parametrize(
    ("model", "text", "said"),
    [
        (MessagesIn, '{"messages": [{"body": "b", "key": "k"}]}', ("messages", 0, "key", "did you mean 'keys'?")),
        (MessagesIn, '{"messages": [{"body": "b", "tags": "t"}]}', ("messages", 0, "tags", "did you mean 'tag'?")),
        (MessagesIn, '{"message": []}', ("message", "did you mean 'messages'?")),
        (EraseIn, '{"topic": "t", "keys": "k"}', ("keys", "did you mean 'key'?")),
        (EraseIn, '{"topic": "t", "form": 5}', ("form", "did you mean 'from'?")),
        (EraseIn, '{"topic": "t", "from_ms": 5}', ("from_ms", "did you mean 'from'?")),
        (TopicIn, '{"queue": 4}', ("queue", "did you mean 'queues'?")),
        (HoldIn, '{"hold": true, "xyz": 1}', ("xyz", "there are: hold")),
        (OffsetsIn, '{"offsets": [{"topic": "t", "queue": 0, "offset": 0}]}',
         ("offsets", 0, "queue", "did you mean 'queue_id'?")),
    ],
)  # fmt: skip
def test_a_field_that_does_not_exist_is_answered_with_what_was_meant(
    model: type[BaseModel], text: str, said: tuple[str | int, ...]
) -> None:
    with pytest.raises(RequestValidationError) as refused:
        validated(model, text.encode())
    told = [(*one["loc"], one["msg"]) for one in refused.value.errors() if one["type"] == "extra_forbidden"]
    *place, hint = said
    assert told == [("body", *place, f"no such field; {hint}")]
