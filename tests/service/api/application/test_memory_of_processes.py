"""What every process that serves does for its memory before it has threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tierlog.service.api.application import process
from tierlog.service.config.settings import Settings


class _NoListenerError(Exception):
    """In the place of the first thing that a process does for others."""


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda root, settings: process.serve(root, settings), id="a node"),
        pytest.param(lambda root, settings: process.follow(root, settings), id="a follower"),
        pytest.param(lambda root, settings: process.serve_querier(settings, cold_url=root.as_uri()), id="a querier"),
        pytest.param(lambda root, settings: process.serve_gateway(settings, "http://127.0.0.1:1"), id="a gateway"),
    ],
)
def test_whatever_serves_has_its_threads_share_two_arenas_of_malloc(
    run: Callable[[Path, Settings], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower had one for each of its threads, and each kept the most that its thread ever used."""
    shared: list[int] = []

    def listen(*_: object, **__: object) -> None:
        raise _NoListenerError

    monkeypatch.setattr(process, "share_arenas", shared.append)
    monkeypatch.setattr(process, "_listen", listen)
    with pytest.raises(_NoListenerError):
        run(tmp_path, Settings.load())
    assert shared == [2]
