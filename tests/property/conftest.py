"""A small archive with every kind of object, for tests that damage, check and repair it."""

from __future__ import annotations

import pytest

from tests.support.stores.archives import build
from tests.support.world import World


@pytest.fixture(scope="module")
def good() -> World:
    """The archive, which no test changes."""
    return build()


@pytest.fixture
def world(good: World) -> World:
    """A copy of it that the test may damage."""
    return good.copy()
