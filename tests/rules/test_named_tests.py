"""The tests that pages of the documentation name exist, so that their tables cannot promise what is gone."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

_NAMED = re.compile(r"`(tests/[\w/]+/(?:test_\w+|object_store_contract)\.py)?(?:::(test_\w+))?`")


@pytest.mark.parametrize(("page", "least"), [("recovery.md", 40), ("rocketmq.md", 25)])
def test_every_test_that_a_page_names_exists(page: str, least: int) -> None:
    named, path = 0, ""
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if line.startswith("| ") and "](" not in line:
            for file, test in _NAMED.findall(line):
                path = file or path
                assert (ROOT / path).is_file(), line
                assert f"def {test}(" in (ROOT / path).read_text() or not test, f"{path} has no {test}"
                named += 1
    assert named > least
