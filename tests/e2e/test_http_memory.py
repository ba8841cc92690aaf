"""Memory under more producers and readers than the service can serve: a small run of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.http_memory import Load, measure


@pytest.mark.slow
def test_memory_stays_below_what_the_settings_imply_and_every_acknowledged_message_is_there_once(
    tmp_path: Path,
) -> None:
    load = Load(rows=10_000, producers=20, readers=10, slow=4, seconds=4.0, body_memory_bytes=2 << 20)
    report = measure(tmp_path, load)
    assert report.acknowledged > 0
    assert (report.missing, report.found_more) == (0, 0)
    assert report.found_once == report.acknowledged
    assert report.peak_bytes < report.bound_bytes
