"""Chromium, and pages of it that no test leaves with an error in the console or a request to another host.

The browser lives as long as a test module: its event loop would be in the way of other tests in the process.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browsing, browsing
from tests.support.service.page_world import PageWorld, page_world, tell_the_shops_story


@pytest.fixture(scope="module")
def browser() -> Iterator[Browsing]:
    if shutil.which("chromium") is None:
        pytest.skip("no chromium found")
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageWorld]:
    """The story of two days in both tiers; no test changes it."""
    with page_world(tmp_path_factory.mktemp("shop")) as world:
        tell_the_shops_story(world)
        yield world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PageWorld]:
    """An empty store of the test's own."""
    with page_world(tmp_path) as found:
        yield found
