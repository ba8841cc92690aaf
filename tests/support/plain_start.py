"""The two ways in which a store is opened and asked: by kernels, and by a process that has called none yet."""

from __future__ import annotations

import pytest

from tierlog.index.format import trailer
from tierlog.index.local import chained_file
from tierlog.tiering.kernels import queue_units, scan

WAYS = ("kernels", "none yet")


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has plain Python asked wherever it may be asked, whatever was called before in this process; or never."""
    for module in (trailer, chained_file, queue_units, scan):
        monkeypatch.setattr(module, "is_sooner_without", lambda plain_us: way == "none yet")
