"""Stores that RocketMQ 5.1.4 to 5.5.0 wrote, opened read-only: what RocketMQ answered about them is our answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.rocketmq.golden import STALE_DIFFERENCES, STORES, expected
from tests.support.rocketmq.golden_compare import compare

#: RocketMQ's recovery cuts its queues where the log ends, by the offset in the unit, and never looks at the record
#: there. In this store messages were put after a cut and the broker halted again, so two queues keep a unit of a
#: message that the cut had removed: its place now holds another queue's record, or the middle of one. Our units come
#: from records only, so both queues end one message earlier, and times are searched among messages that exist.
STALE = {("TopicTest", 0), ("order-events_v2", 0)}


@pytest.mark.parametrize("name", STORES)
def test_every_answer_of_rocketmq(name: str, tmp_path: Path) -> None:
    found, wanted = compare(name, tmp_path), expected(name)
    differences = found.differences
    if name == "crashed-stale":
        assert Counter(kind for kind, *_ in differences) == STALE_DIFFERENCES
        assert {what[:2] for _, what, _, _ in differences if isinstance(what, tuple)} == STALE
    else:
        assert differences == []
    entries = sum(len(queue["entries"]) for queue in wanted["queues"])
    asked = len(wanted["queryMessage"]) - sum(found.left_out.values())
    assert (
        found.compared["messages"], found.compared["queue entries"], found.compared["getMessage"],
        found.compared["offsetByTime"], found.compared["queryMessage"], found.compared["lookMessageByOffset"],
        found.compared["blank records"], found.compared["files as shipped"],
    ) == (
        len(wanted["messages"]), entries, len(wanted["getMessage"]), len(wanted["offsetByTime"]), asked,
        len(wanted["lookMessageByOffset"]), len(wanted["blanks"]), len(wanted["files"]),
    )  # fmt: skip
    assert min(found.compared.values()) > 0
    assert found.left_out["queryMessage by tag"] == sum(each["indexType"] == "T" for each in wanted["queryMessage"])
