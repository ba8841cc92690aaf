"""The coverage of several pages as one: why it is not complete is the reason of the page that was not."""

from __future__ import annotations

import pytest

from tierlog.index.search.query import Coverage
from tierlog.service.wire.documents import merged_coverage


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ((True, "limit"), (True, None), (True, None)),
        ((False, "limit"), (True, None), (False, None)),  # something could not be read, but nothing was cut off
        ((False, "limit"), (False, "timeout"), (False, "timeout")),
        ((False, "budget"), (True, None), (False, "budget")),
        ((False, "timeout"), (True, "limit"), (False, "timeout")),
        ((True, "limit"), (True, "limit"), (True, "limit")),
    ],
)
def test_what_cut_a_page_short(
    first: tuple[bool, str | None], second: tuple[bool, str | None], merged: tuple[bool, str | None]
) -> None:
    pages = [Coverage(complete=complete, cut_by=cut_by).to_json() for complete, cut_by in (first, second)]
    found = merged_coverage(*pages)
    assert (found["complete"], found["cut_by"]) == merged
