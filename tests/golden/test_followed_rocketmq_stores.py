"""Logs that RocketMQ 5.1.4 to 5.5.0 wrote, followed into stores of ours: what RocketMQ answered is our answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.rocketmq.golden import STALE_DIFFERENCES, STORES, expected, unpack
from tests.support.rocketmq.golden_compare import Comparison, ask, opened
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.tiering.hot.commit_log import Segment


def _whole(segments: list[Segment], end: int) -> list[tuple[int, bytes]]:
    return [(each.base_offset, bytes(each.data)[: end - each.base_offset]) for each in segments]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("most", [32 << 10, 777])
def test_a_followed_log_answers_as_the_broker_did(name: str, most: int, tmp_path: Path) -> None:
    with opened(unpack(name, tmp_path / "broker")) as broker:
        log = broker.hot.store.log
        theirs, end = _whole(log.segments(), log.end), log.end
        topics = {topic.name: topic.queues for topic in broker.hot.store.topics.all()}
        segment_bytes, begin = log.segment_bytes, log.begin
    store = FollowedStore.open(
        tmp_path / "ours", cold_url=None, store_id="broker-a", segment_bytes=segment_bytes, begin=begin
    )
    for base, data in theirs:
        for at in range(0, len(data), most):
            store.append(base + at, data[at : at + most])
    assert store.flush() == store.end == end
    hot, found = store.store._hot, Comparison()
    hot.dispatch()
    assert _whole(hot.log.segments(), hot.log.end) == theirs
    assert {topic.name for topic in hot.topics.all()} <= topics.keys()
    ask(store._parts, expected(name), found)
    differences = Counter(kind for kind, *_ in found.differences)
    assert differences == (STALE_DIFFERENCES if name == "crashed-stale" else {})
    assert min(found.compared.values()) > 0
    store.close()
