"""The tests that ``docs/recovery.md`` names exist, so that its tables cannot promise what is gone."""

from __future__ import annotations

import re

from tests.conftest import ROOT

_NAMED = re.compile(r"`((?:tests/\w+/)?test_\w+\.py)?(?:::(test_\w+))?`")


def test_every_test_that_the_recovery_page_names_exists() -> None:
    named, path = 0, ""
    for line in (ROOT / "docs" / "recovery.md").read_text().splitlines():
        if line.startswith("| ") and "](" not in line:
            for file, test in _NAMED.findall(line):
                path = file if "/" in file else f"tests/unit/{file}" if file else path
                assert (ROOT / path).is_file(), line
                assert f"def {test}(" in (ROOT / path).read_text() or not test, f"{path} has no {test}"
                named += 1
    assert named > 40
