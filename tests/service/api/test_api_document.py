"""The OpenAPI document: whole, named, drawn from the code's own rules, and the one that is committed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from openapi_spec_validator import validate

from docs.tools.openapi import openapi, problems
from tests.conftest import ROOT
from tierlog.service.api.application.app import routed_app
from tierlog.service.api.schemas.parameters import whole
from tierlog.service.engine.appends import IDEMPOTENCY_KEY_PATTERN, IdempotencyKey
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.message.batch import KEY_PATTERN, TOPIC_PATTERN, validate_key, validate_topic
from tierlog.tiering.message.stored_message import MESSAGE_ID_PATTERN, offset_in_message_id

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Json:
    found: Json = json.loads(openapi())
    return found


def _operations(document: Json) -> list[tuple[str, str, Json]]:
    return [(path, method, one) for path, calls in document["paths"].items() for method, one in calls.items()]


def test_the_document_is_valid_openapi(document: Json) -> None:
    validate(document)


def test_what_is_committed_is_what_the_code_says() -> None:
    for name, made in (("openapi.json", openapi()), ("problems.md", problems())):
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made, "run: python -m docs.tools.openapi"


def test_every_call_has_a_name_a_tag_and_a_description(document: Json) -> None:
    names = [one["operationId"] for _, _, one in _operations(document)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in names), names
    tags = {tag["name"] for tag in document["tags"]}
    assert all(one["description"] and set(one["tags"]) <= tags for _, _, one in _operations(document))


def test_every_failure_is_a_problem_and_every_good_answer_has_a_shape(document: Json) -> None:
    for path, method, one in _operations(document):
        assert {"400", "500"} <= set(one["responses"]), path
        assert "4XX" not in one["responses"]
        for status, answer in one["responses"].items():
            if status >= "400":
                component = answer["$ref"].rpartition("/")[2]
                assert [*document["components"]["responses"][component]["content"]] == ["application/problem+json"]
            else:
                assert all(form["schema"] for form in answer["content"].values()), (method, path)


def test_only_calls_that_tell_nothing_need_no_token(document: Json) -> None:
    free = {path for path, _, one in _operations(document) if "security" not in one}
    assert free == {"/livez", "/readyz"}
    assert all("security" not in one for _, _, one in _operations(routed_app(access=False).openapi()))


def test_every_call_below_v1_can_name_the_store_that_is_meant(document: Json) -> None:
    for path, method, one in _operations(document):
        named = {argument["name"] for argument in one.get("parameters", ()) if argument["in"] == "query"}
        assert ("store_id" in named) == path.startswith("/v1/"), (method, path)


def test_no_number_of_an_answer_is_without_a_unit(document: Json) -> None:
    """Its name has one, or says that it is a count or an offset, or its description does."""
    known = re.compile(
        r"(bytes|_ms|_usd|_id|_to|_from|_at|_min|offset|version|log_begin|log_end|failures|written)$|bytes"
        r"|^(segments?|index_objects|requests|records|queues|topics|lag|members|entries|hits|misses|evictions|flushes"
        r"|generation|hot|cold|read|expired|erased|unreachable|considered|filtered|searched|skipped|asked|least|likely"
        r"|most|removed|position|status|level|count|.*_(requests|erasures|waiting|messages))$"
    )
    silent = []
    for name, schema in document["components"]["schemas"].items():
        for field, shape in schema.get("properties", {}).items():
            kinds = [shape, *shape.get("anyOf", ())]
            is_number = any(kind.get("type") in ("integer", "number") for kind in kinds)
            if is_number and not known.search(field) and not shape.get("description"):
                silent.append(f"{name}.{field}")
    assert silent == []


@pytest.mark.parametrize("text", ["orders", "%RETRY%g", "%DLQ%" + "x" * 250, "a" * 127, "a-b_c|d"])
def test_a_legal_topic_fits_the_pattern_and_the_rule(text: str) -> None:
    assert re.search(whole(TOPIC_PATTERN), text)
    assert validate_topic(text) == text


@pytest.mark.parametrize("text", ["", "a b", "a/b", "ä", "a\n", "a\0", "a" * 128, "%DLQ%" + "x" * 251, "%RETRX%" * 20])
def test_an_illegal_topic_fits_neither(text: str) -> None:
    assert not re.fullmatch(whole(TOPIC_PATTERN), text)
    with pytest.raises(InvalidRequestError):
        validate_topic(text)


@pytest.mark.parametrize("text", ["", "a b", "a\x01", "\x02"])
def test_an_illegal_key_fits_neither(text: str) -> None:
    assert not re.fullmatch(whole(KEY_PATTERN), text)
    with pytest.raises(InvalidRequestError):
        validate_key(text)


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "g" * 32, "0" * 16 + "8" + "0" * 15, "٣" * 32])
def test_an_illegal_message_id_fits_neither(text: str) -> None:
    assert not re.fullmatch(whole(MESSAGE_ID_PATTERN), text)
    with pytest.raises(InvalidRequestError):
        offset_in_message_id(text)


@pytest.mark.parametrize(("text", "producer", "first"), [("p", "p", 0), ('"p:7"', "p", 7), ("p:07", "p", 7)])
def test_an_idempotency_key_is_read_quoted_or_not(text: str, producer: str, first: int) -> None:
    assert re.fullmatch(whole(IDEMPOTENCY_KEY_PATTERN), text)
    assert IdempotencyKey.parse(text) == IdempotencyKey(producer, first)


@pytest.mark.parametrize("text", ["", '"p', 'p"', "p:", "p q", "p:1234567890123456789"])
def test_half_an_idempotency_key_is_none(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        IdempotencyKey.parse(text)
