"""What a service refused is the class that it raised, and never one that only a client has."""

from __future__ import annotations

import pytest

import tierlog.client.errors
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError, StoreError, UnavailableError
from tierlog.tiering.remote.problems import problem_type, refusal


@pytest.mark.parametrize("name", ["IncompleteAnswerError", "HandlerFailedError"])
def test_a_problem_type_that_is_no_services_is_chosen_by_its_status(name: str) -> None:
    uri = problem_type(getattr(tierlog.client.errors, name))
    for status, kind in ((503, UnavailableError), (400, InvalidRequestError), (500, StoreError)):
        error = refusal(status, {"type": uri, "detail": "words"}, "a service")
        assert (type(error), error.message) == (kind, "words")


def test_a_request_that_is_too_large_is_that() -> None:
    assert type(refusal(413, {"type": "about:blank", "detail": "too large"}, "a service")) is MessageTooLargeError
    assert type(refusal(413, None, "a service")) is MessageTooLargeError
