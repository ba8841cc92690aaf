"""A cursor with a number that is no whole number ended the request with an error of ours, not with a refusal."""

from __future__ import annotations

import base64

import pytest

from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import InvalidRequestError


@pytest.mark.parametrize("time_ms", ["Infinity", "-Infinity", "NaN", "1e999", "null", "[" * 100_000])
def test_an_odd_cursor_is_refused(time_ms: str) -> None:
    text = f'[1,"store","newest",{time_ms},"s",0]'
    with pytest.raises(InvalidRequestError, match="bad cursor"):
        Query("t", cursor=base64.urlsafe_b64encode(text.encode()).decode())
