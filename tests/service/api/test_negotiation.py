"""Which form an answer has: weights, wildcards, and what rules everything out."""

from __future__ import annotations

import pytest
from fastapi import Request
from starlette.exceptions import HTTPException

from tierlog.service.api.negotiation import wanted_form, weight_of
from tierlog.service.wire.documents import ARROW_STREAM, JSON, NDJSON

OFFERED = (JSON, NDJSON, ARROW_STREAM)


def asking(*accept: str) -> Request:
    return Request({"type": "http", "headers": [(b"accept", one.encode()) for one in accept]})


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("*", JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON),
        ("application/x-ndjson", NDJSON),
        ("Application/X-NDJSON; Charset=utf-8", NDJSON),
        ("application/x-ndjson, */*", NDJSON),
        ("application/json;q=0.5, application/x-ndjson;q=0.9", NDJSON),
        ("application/*;q=0.9, application/json;q=0.1", NDJSON),
        ("application/json;q=0, */*", NDJSON),
        ("application/json;q=0, application/x-ndjson;q=0, */*;q=0.1", ARROW_STREAM),
        ("text/csv, application/vnd.apache.arrow.stream;q=0.001", ARROW_STREAM),
        (", ,application/x-ndjson ; q = 1.000", NDJSON),
    ],
)
def test_the_form_with_the_highest_weight_is_taken(accept: str, form: str) -> None:
    assert wanted_form(asking(accept), OFFERED) == form


def test_a_request_without_the_header_gets_the_first_form() -> None:
    assert wanted_form(asking(), OFFERED) == JSON


def test_several_headers_count_as_one() -> None:
    assert wanted_form(asking("text/csv", "application/x-ndjson"), OFFERED) == NDJSON


@pytest.mark.parametrize("accept", ["text/csv", "application/json;q=0", "*/*;q=0", "x", "text/*, image/png"])
def test_a_client_that_accepts_no_form_is_told_so(accept: str) -> None:
    with pytest.raises(HTTPException) as refused:
        wanted_form(asking(accept), (JSON,))
    assert refused.value.status_code == 406
    assert JSON in refused.value.detail


def test_a_name_has_the_weight_of_itself_before_that_of_the_star() -> None:
    assert weight_of("gzip", "gzip;q=0.2, *") == 0.2
    assert weight_of("zstd", "gzip;q=0.2, *;q=0") == 0
    assert weight_of("zstd", "gzip") is None
