"""Whatever a caller's patterns, topics and groups are: no answer names a topic that the caller may not read."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.service.access import GuardedService, line
from tierlog.tiering.message.batch import Message

TOPICS = ("aa-1", "aa-2", "ab-1", "bb-1", "b_2", "AA-1")
SINGLE = ("aa-*", "a?-1", "[ab]b-?", "b*", "*-1", "AA-*", "aa-1", "nothing")
#: An entry for each is there from the start, because a service for each example would be slow.
PATTERNS = [list(some) for count in (0, 1, 2, 3) for some in combinations(SINGLE, count)]


def who(patterns: list[str]) -> str:
    return f"p{PATTERNS.index(patterns)}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedService]:
    entries = [line(who(patterns), "read,admin", ",".join(patterns)) for patterns in PATTERNS]
    made = GuardedService(tmp_path_factory.mktemp("listings"), [line("root", "read,admin", "*"), *entries])
    made.engine.append([Message(topic, b"x", ["k"], queue_id=0) for topic in TOPICS])
    made.engine.archive(everything=True)
    for topic in TOPICS[::2]:
        made.ask("POST", "/v1/admin/erase", {"topic": topic, "key": "k"}, by="root")
    for number, topics in enumerate((TOPICS[:1], TOPICS[1:3], TOPICS[2:], TOPICS)):
        made.ask("POST", f"/v1/groups/g{number}/members", {"topics": topics}, by="root")
        offsets = [{"topic": topic, "queue_id": 0, "offset": 0} for topic in topics]
        made.ask("PUT", f"/v1/groups/c{number}/offsets", {"offsets": offsets}, by="root")
    yield made
    made.close()


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns=st.sampled_from(PATTERNS))
def test_no_listing_names_an_unreadable_topic(service: GuardedService, patterns: list[str]) -> None:
    by = who(patterns)
    readable = {topic for topic in TOPICS if any(fnmatchcase(topic, pattern) for pattern in patterns)}
    listed = service.ask("GET", "/v1/topics", by=by).json()["topics"]
    assert {topic["topic"] for topic in listed} == readable
    receipts = service.ask("GET", "/v1/admin/receipts", by=by).json()["receipts"]
    assert {receipt["topic"] for receipt in receipts} == readable & set(TOPICS[::2])
    groups = service.ask("GET", "/v1/groups", by=by).json()["groups"]
    paths = [f"/v1/groups/{one['group']}{part}" for one in groups for part in ("", "/offsets")]
    for path in ("/v1/topics", "/v1/groups", "/v1/files", "/v1/stats", "/v1/timeline", "/metrics", *paths):
        answer = service.ask("GET", path, by=by)
        assert answer.status_code == 200
        for topic in set(TOPICS) - readable:
            assert topic not in answer.text, (path, topic)
