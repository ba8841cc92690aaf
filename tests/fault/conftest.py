"""Faults while files grow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stores.small_steps import small_steps


@pytest.fixture
def in_small_steps() -> Iterator[None]:
    """Segments and index files of a few KiB are grown many times."""
    with small_steps():
        yield
