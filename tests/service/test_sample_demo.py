"""What `make run` shows on its first start: a sample in both tiers, and a key that finds messages in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog.index.search.query import Query
from tierlog.service import demo
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store

LINES = 2_000
SIZES = {"hot.segment_bytes": 1 << 20, "hot.queue_file_units": 1_000, "index.slots": 5_000, "index.items": 20_000}


def test_the_first_start_fills_both_tiers_and_the_second_adds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Store.open(tmp_path / "store", cold_url=f"file://{tmp_path}/cold", settings=Settings.load(None, SIZES))
    try:
        demo.load_sample(engine, LINES)
        key = demo._key_in_both_halves(LINES)
        answer = engine.query(Query(demo.TOPIC, key, limit=1_000))
        assert {message.tier.value for message in answer.messages} == {"hot", "cold"}
        assert answer.coverage.complete
        ends = [queue.max_offset for topic in engine.topics() for queue in topic.queues]
        demo.load_sample(engine, LINES)
        assert [queue.max_offset for topic in engine.topics() for queue in topic.queues] == ends
        assert engine.check(deep=True) == []
    finally:
        engine.close()
    assert "first start" in capsys.readouterr().err


def test_the_announced_commands_are_ones_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    demo._announce("http://127.0.0.1:1")
    said = capsys.readouterr().out
    assert "http://127.0.0.1:1/ " in said
    assert said.count("--url http://127.0.0.1:1") == 3
