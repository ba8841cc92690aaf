"""The arguments that several calls have; the document describes them by the code's own rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from tierlog.service.observing.request_context import current_request
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import RELATIVE_PATTERN, parse_duration, parse_time
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.hot.consumer_groups import GROUP_PATTERN, validate_group
from tierlog.tiering.hot.identity import STORE_ID_PATTERN, validate_known_store_id
from tierlog.tiering.lifecycle.tombstones import TOMBSTONE_ID_PATTERN
from tierlog.tiering.message.batch import KEY_PATTERN, MAX_QUEUES, TOPIC_PATTERN, validate_topic_or_generation
from tierlog.tiering.message.stored_message import MESSAGE_ID_PATTERN, offset_in_message_id

#: Of a queue; every reader of JSON reads whole numbers up to here as they are.
MAX_OFFSET = (1 << 53) - 1
_MEMBER_ID = "[0-9a-f]{16}"

TIMES = (
    "ms since the epoch, RFC 3339 from 1970 to 9999, or relative to the service's clock: `2h` (two hours ago), `now`, "
    "`now-2h`, `now+5m` (in a URL `+` is `%2B`), `today`, `yesterday`, `14:30` (today); days are those of UTC"
)
_TIME: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": END_OF_TIME_MS},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": RELATIVE_PATTERN, "examples": ["2h", "now-2h", "today"]},
    ],
}


class StrictModel(BaseModel):
    """A body without fields that are not declared, and without conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


def whole(pattern: str) -> str:
    """Returns a pattern as a document has it, where one that has no anchors is satisfied by any part of a text."""
    return f"^(?:{pattern})$"


def absent(description: str) -> Any:
    """Makes a field of an answer that is left out where there is nothing to say, and never null."""

    def without_default(schema: dict[str, Any]) -> None:
        schema.pop("default", None)

    return Field(default=None, description=description, json_schema_extra=without_default)


def _text(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": whole(pattern), **more}


def _whole_number(value: object) -> object:
    """Reads a whole number; JSON has one kind of number: 8.0 is as whole as 8."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _time(value: object) -> int:
    request = current_request()
    try:
        return parse_time(str(_whole_number(value)), None if request is None else request.now_ms)
    except InvalidRequestError as error:  # the answer has room for one text
        raise InvalidRequestError(f"{error.message}: {error.hint}") from error


def _duration(value: object) -> object:
    """Reads a duration: a number of ms, or a text with a unit."""
    if not isinstance(value, str):
        return _whole_number(value)
    try:
        return parse_duration(value)
    except InvalidRequestError as error:  # the answer has room for one text
        raise InvalidRequestError(f"{error.message}: {error.hint}, or a number of ms") from error


def _url_duration(value: object) -> object:
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value, re.ASCII) else _duration(value)


def _number(value: object) -> object:
    """Reads a number: of the texts that Python takes for one only what everybody writes."""
    if isinstance(value, str):
        if not re.fullmatch("-?[0-9]{1,19}", value, re.ASCII):
            raise ValueError("not a whole number of at most 19 digits")
        return int(value)
    return value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


#: ms since the epoch, RFC 3339, or relative to when the request came.
Time = Annotated[int, BeforeValidator(_time), WithJsonSchema(_TIME)]
#: A number in a body of JSON.
Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole_number)]
#: A duration in a body of JSON.
Duration = Annotated[
    int,
    Field(strict=True, ge=1, le=END_OF_TIME_MS),
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": END_OF_TIME_MS},
                {"type": "string", "pattern": "^[1-9][0-9]{0,4}(ms|s|m|h|d|w)$", "examples": ["90d"]},
            ]
        }
    ),
]
#: The same in a URL.
UrlDuration = Annotated[
    int,
    Field(strict=True, ge=1, le=END_OF_TIME_MS),
    BeforeValidator(_url_duration),
    WithJsonSchema(_text("[1-9][0-9]{0,14}|[1-9][0-9]{0,4}(ms|s|m|h|d|w)", examples=["10s"])),
]
#: A number in a URL.
Number = Annotated[int, BeforeValidator(_number)]
#: ``true`` or ``false`` in a URL.
Flag = Annotated[bool, Field(strict=True), BeforeValidator(_flag)]

#: Names in a body, which the store judges itself.
Topic = Annotated[str, WithJsonSchema(_text(TOPIC_PATTERN, examples=["orders"]))]
Key = Annotated[str, WithJsonSchema(_text(KEY_PATTERN, examples=["4711"]))]
StoreIdText = Annotated[str, WithJsonSchema(_text(STORE_ID_PATTERN, examples=["store-a"]))]


def _member(text: str) -> str:
    if not re.fullmatch(_MEMBER_ID, text):
        raise InvalidRequestError(f"bad member id {text[:100]!r}", hint="it is in the answer to the join")
    return text


def _receipt(text: str) -> str:
    if not re.fullmatch(TOMBSTONE_ID_PATTERN, text):
        raise InvalidRequestError(f"bad receipt id {text[:100]!r}", hint="it is in the answer to the erasure")
    return text


def _message(text: str) -> str:
    offset_in_message_id(text)
    return text


def _path(description: str, check: Callable[[str], str], pattern: str, example: str) -> tuple[Any, ...]:
    schema = _text(pattern, examples=[example])
    return Path(description=description), AfterValidator(check), WithJsonSchema(schema)


#: Parts of a path.
TopicName = Annotated[
    str, *_path(
        "name of the topic, or orders@1 for the oldest of its generations",
        validate_topic_or_generation, f"(?:{TOPIC_PATTERN})(?:@[0-9]+)?", "orders",
    ),
]  # fmt: skip
GroupName = Annotated[str, *_path("name of the consumer group", validate_group, GROUP_PATTERN, "billing")]
MemberId = Annotated[str, *_path("from the answer to the join", _member, _MEMBER_ID, "00f1e2d3c4b5a697")]
ReceiptId = Annotated[str, *_path("from the answer to an erasure", _receipt, TOMBSTONE_ID_PATTERN, "5a697c4b00f1e2d3")]
MemberStore = Annotated[str, *_path("id of a store of the cluster", validate_known_store_id, STORE_ID_PATTERN, "a")]
MessageId = Annotated[
    str, *_path("from the answer to an append", _message, MESSAGE_ID_PATTERN, "7F00000100002A9F0000000000000000")
]
QueueId = Annotated[Number, Path(description="queue of the topic, counted from 0", ge=0, le=MAX_QUEUES - 1)]

_STORE: dict[str, Any] = _text(STORE_ID_PATTERN, examples=["store-a"])
#: Of every call.
StoreId = Annotated[
    Annotated[str, AfterValidator(validate_known_store_id), WithJsonSchema(_STORE)] | None,
    Query(description="the store that is meant, wherever in the cluster it is; the one that is asked if absent"),
]
