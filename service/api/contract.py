"""The OpenAPI document: what the framework makes of the routes, completed by what holds for all of them.

Routes name the failures that are their own (``responses=may_answer(404, 409)``). What follows from the form of a call
is added here: whatever has arguments can be given a bad one, whatever has a body can be sent a bad one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from tierlog.service.api.lane_route import LaneRoute
from tierlog.service.api.schemas.messages import MessagesIn
from tierlog.service.cluster.routing import STORE_ID
from tierlog.service.wire.documents import ARROW_STREAM, NDJSON, PARQUET

Json = dict[str, Any]

PROBLEM_JSON = "application/problem+json"

_PROBLEM: Json = {
    "type": "object",
    "title": "Problem",
    "description": "What went wrong (RFC 9457); docs/problems.md lists the types.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {
            "type": "string",
            "format": "uri",
            "description": "URN of the class of the failure; `about:blank` where the status says it all",
            "examples": ["urn:tierlog:problem:topic-not-found"],
        },
        "title": {"type": "string", "description": "the class in words", "examples": ["topic not found"]},
        "status": {"type": "integer", "minimum": 400, "maximum": 599, "description": "the status of the answer"},
        "detail": {"type": "string", "description": "this occurrence", "examples": ["no such topic 'ordres'"]},
        "hint": {"type": "string", "description": "what to do about it"},
        "path": {"type": "string", "description": "the file or object that it is about"},
        "position": {"type": "integer", "description": "a byte in it, or the place of a message in the batch"},
        "request_id": {"type": "string", "description": "what the service's log calls the request"},
        "store_id": {"type": "string", "description": "of a request that another node was to answer: its store"},
        "address": {"type": "string", "description": "of such a request: where that store should answer"},
    },
}

_REQUEST_ID: Json = {
    "description": "what the service's log calls the request: as it was sent, or made by the service",
    "required": True,
    "schema": {"type": "string"},
}
_WHERE: Json = {
    "Tierlog-Address": {
        "description": "where the store that answered is, if another node was asked",
        "schema": {"type": "string"},
    },
    "Tierlog-Store": {"description": "in a cluster, the store that answered", "schema": {"type": "string"}},
}
_RETRY_AFTER: Json = {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 1}}

_REQUEST_ID_REF: Json = {"$ref": "#/components/headers/RequestId"}

#: The description of an Arrow stream in OpenAPI.
ARROW_SCHEMA: Json = {"type": "string", "format": "binary", "description": "an Arrow IPC stream, a message a row"}
#: The forms of a query's answer beside JSON.
QUERY_FORMS: Json = {
    NDJSON: {
        "schema": {
            "type": "string",
            "description": "a message a line, as of the JSON form; the last line has what stands beside the messages",
        }
    },
    ARROW_STREAM: {"schema": ARROW_SCHEMA},
    PARQUET: {"schema": {"type": "string", "format": "binary", "description": "a Parquet file, a message a row"}},
}
#: The forms of a pull's answer beside JSON.
PULL_FORMS: Json = {form: QUERY_FORMS[form] for form in (NDJSON, ARROW_STREAM)}

#: Name of the component and what it says.
_FAILURES: dict[int, tuple[str, str]] = {
    400: ("BadArgument", "an argument or a message is not what it has to be; nothing was changed"),
    401: ("Unauthenticated", "no token, or one that is not known"),
    403: ("Forbidden", "the token is known, but not for this; without tokens: a page of another origin asks"),
    404: ("NotFound", "no such topic, queue, message, group, member, receipt or store"),
    406: ("NotAcceptable", "`Accept` rules out every form that the answer has"),
    408: ("TooSlow", "the body took too long to arrive; nothing was done"),
    409: ("Conflict", "the state forbids it: see `type`; with `Retry-After` the same request may work in a moment"),
    413: ("TooLarge", "the request, or a message in it, is over its limit of bytes"),
    415: ("UnsupportedForm", "the body's `Content-Type` or `Content-Encoding` is not one that is taken"),
    421: (
        "Misdirected",
        "without tokens: the request came under a name that is not the loopback's; or another node has sent it on for "
        "a store that is not this one's",
    ),
    422: ("Unprocessable", "the body is not what it has to be; or its Idempotency-Key belongs to other messages"),
    429: ("TooMuch", "the service has too much to do at once, or a budget is spent; nothing was done"),
    500: ("Failed", "damage was found, or the service itself is at fault; its log says more"),
    503: (
        "Unavailable",
        "the archive or another node does not answer, the store takes no writes, or the service stops",
    ),
    507: ("DiskFull", "no room on the disk for what would be written; nothing was acknowledged"),
}

#: Names of bounds, also those that are left over where a bound stands beside a function.
_BOUNDS = {
    "ge": "minimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusiveMaximum": "exclusiveMaximum",
}

#: Where an answer has what another call asks for.
_LINKS: dict[str, Json] = {
    "append_messages": {
        "message": {
            "operationId": "get_message",
            "description": "the first message that was appended",
            "parameters": {"message_id": "$response.body#/results/0/message_id"},
        }
    },
    "query_messages": {
        "message": {
            "operationId": "get_message",
            "description": "the first message of the page",
            "parameters": {"message_id": "$response.body#/messages/0/message_id"},
        }
    },
    "erase_messages": {
        "receipt": {
            "operationId": "get_receipt",
            "description": "the receipt as the work goes on",
            "parameters": {"tombstone_id": "$response.body#/tombstone_id"},
        }
    },
}

_TAGS = [
    {"name": "messages", "description": "Append messages, find them by key and time, read queues in order."},
    {"name": "store", "description": "Topics and files: what is there."},
    {"name": "groups", "description": "Consumer groups: who reads which queue, and how far each group is."},
    {"name": "deliveries", "description": "Messages delivered to a group one by one, and what became of them."},
    {"name": "cluster", "description": "Stores that are one cluster: where each answers, and which one takes a topic."},
    {"name": "admin", "description": "What an operator asks for: archive, flush, check, erase."},
    {"name": "health", "description": "For orchestrators and monitoring."},
]

_DESCRIPTION = """A message log in two tiers. Times are integer milliseconds since the epoch, UTC; a time in a request
may also be RFC 3339. Ranges are half-open: `from` is included, `to` is not. Sizes are bytes.

Arguments that a call does not name are refused, as are arguments given twice. HEAD is answered wherever GET is, and
OPTIONS tells what a path allows. A slash at the end of a path is another path, where there is nothing. In a path,
percent-encode what a name has besides letters, digits, `_` and `-`: the topic `%RETRY%g` is `%25RETRY%25g`.

In a cluster every node takes every request and sends it on to the node of the store that it is meant for: new messages
to the home of their topic, calls of a consumer group to the home of the group, any other to the store that `store_id`
names.

A request may name itself with `X-Request-Id`. Every failure is answered as `application/problem+json`."""


def may_answer(*statuses: int) -> dict[int | str, Json]:
    """Describes the failures that are a route's own, for its decorator."""
    return {status: {"description": _FAILURES[status][1]} for status in statuses}


def describe(app: FastAPI, *, access: bool) -> None:
    """Gives the application its whole document; ``access``: whether calls need a token."""
    made, making = app.openapi, threading.Lock()

    def openapi() -> Json:
        with making:  # the framework fails if two of the first requests make it at the same time
            if app.openapi_schema is None:
                # the framework does not know bodies that it does not read
                routes = (route for route in app.routes if isinstance(route, LaneRoute))
                bodies: list[type[BaseModel]] = [
                    MessagesIn,
                    *(route.sent.model for route in routes if route.sent is not None),
                ]
                app.openapi_schema = _completed(made(), bodies, access=access)
            return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the framework's own way to extend the document


def _completed(document: Json, bodies: Sequence[type[BaseModel]], *, access: bool) -> Json:
    document["info"]["description"] = _DESCRIPTION
    document["info"]["license"] = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    document["servers"] = [{"url": "/", "description": "the service that this document comes from"}]
    document["tags"] = _TAGS
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # the framework's form of a problem
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    for model in bodies:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}), **{model.__name__: schema})
    components["schemas"] = schemas = dict(sorted(schemas.items()))
    components["headers"] = {"RequestId": _REQUEST_ID}
    components["responses"] = {name: _failure(status, text) for status, (name, text) in _FAILURES.items()}
    if access:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in document["paths"].items():
        is_open = not path.startswith("/v1/") and path != "/metrics"
        for described in methods.values():
            _complete(described, is_open=is_open, access=access)
    for operation, links in _LINKS.items():
        _answer_of(document, operation)["links"] = links
    _tidy(document["paths"])
    _tidy(schemas)
    return document


def _answer_of(document: Json, operation: str) -> Json:
    """Finds the good answer of a call."""
    calls = (described for methods in document["paths"].values() for described in methods.values())
    found: Json = next(call for call in calls if call["operationId"] == operation)["responses"]["200"]
    return found


def _complete(described: Json, *, is_open: bool, access: bool) -> None:
    for argument in described.get("parameters", ()):
        _without_null(argument["schema"])
    responses = described["responses"]
    failures = {int(status) for status in responses if status.isdigit() and int(status) >= 400}
    if "requestBody" in described:
        failures |= {408, 413, 415, 422}
    else:
        failures.discard(422)  # the framework assumes it wherever there is an argument
    failures |= {400, 500}
    if not access:
        failures |= {403, 421}
    is_of_a_store = any(argument["name"] == STORE_ID for argument in described.get("parameters", ()))
    if is_of_a_store:
        failures |= {404, 421}
    if not is_open:
        failures |= {429, 503}
        if access:
            failures |= {401, 403}
            described["security"] = [{"token": []}]
    good = {status: answer for status, answer in responses.items() if status.startswith("2")}
    for answer in good.values():
        answer.setdefault("headers", {})["X-Request-Id"] = _REQUEST_ID_REF
        if is_of_a_store:
            answer["headers"].update(_WHERE)
    described["responses"] = good | {
        str(status): {"$ref": f"#/components/responses/{_FAILURES[status][0]}"} for status in sorted(failures)
    }


def _without_null(schema: Json) -> None:
    """Removes null from an argument's schema: in a URL it is there or not."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(kinds) == 1:
        schema.update(kinds[0])
        del schema["anyOf"]


def _failure(status: int, text: str) -> Json:
    headers: Json = {"X-Request-Id": _REQUEST_ID_REF}
    if status in (429, 503):
        headers["Retry-After"] = {**_RETRY_AFTER, "required": True}
    if status == 409:
        headers["Retry-After"] = _RETRY_AFTER
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string"}}
    return {
        "description": text,
        "headers": headers,
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def _tidy(value: Any) -> None:
    """Takes away titles that the framework made of names, and the fraction that it gives to bounds."""
    if isinstance(value, list):
        for one in value:
            _tidy(one)
    elif isinstance(value, dict):
        for name, one in list(value.items()):
            if name == "properties":
                for field in one.values():
                    if isinstance(field, dict):
                        field.pop("title", None)
            if name == "schema":
                one.pop("title", None)
            if name in _BOUNDS and isinstance(one, int | float):
                value[_BOUNDS[name]] = int(value.pop(name))
            _tidy(one)
