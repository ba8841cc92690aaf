"""The gRPC clients of Java, Python, Node and Rust work unchanged: what they send, receive, acknowledge, fail to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from tests.support.rocketmq.real_clients import (
    FIFO_GROUPS,
    MAX_ATTEMPTS,
    Doors,
    RealClient,
    body_of,
    fresh,
    keys,
    names,
    wait_for_topic,
)

pytestmark = pytest.mark.timeout(400)
_KINDS = [(name, kind) for name in ("java_grpc", "python", "node") for kind in ("push", "simple")]


@pytest.fixture(params=["java_grpc", "python", "node", "rust"])
def client(request: pytest.FixtureRequest) -> RealClient:
    """Each in turn."""
    found: RealClient = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def mqadmin(doors: Doors, request: pytest.FixtureRequest) -> Callable[..., None]:
    """What the real server wants to be told beforehand, and ours does not."""

    def tell(*words: str) -> None:
        if not doors.url:
            client: RealClient = request.getfixturevalue("java_5")
            client.mqadmin(*words, "-c", "DefaultCluster")

    return tell


@pytest.fixture
def typed(mqadmin: Callable[..., None]) -> dict[str, str]:
    """A topic of each type."""
    topics = {kind: fresh(kind.lower()) for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")}
    for kind, topic in topics.items():
        mqadmin("updateTopic", "-t", topic, "-a", f"+message.type={kind}")
    return topics


@pytest.mark.parametrize(("client", "kind"), [*_KINDS, ("rust", "simple")], indirect=["client"])
def test_what_is_sent_is_delivered_as_it_was_sent_and_again_if_it_failed(
    client: RealClient, typed: dict[str, str], kind: str
) -> None:
    sent = client.send(typed["NORMAL"], "work", count=12, tag="yes")
    got = client.consumed(typed["NORMAL"], fresh("group"), 12, kind=kind, fail=1, failing="-7", limit_ms=60_000)
    assert Counter(keys(got)) == Counter([*names("work", 12), "work-7"])
    assert {(m["key"], m["id"], m["body"]) for m in got} == {(m["key"], m["id"], body_of(m["key"])) for m in sent}
    assert {(message["topic"], message["tag"]) for message in got} == {(typed["NORMAL"], "yes")}
    assert [message["attempts_before"] for message in got if message["key"] == "work-7"] == [0, 1]


def test_what_was_acknowledged_is_not_received_again(client: RealClient, typed: dict[str, str]) -> None:
    group = fresh("group")
    client.send(typed["NORMAL"], "one", count=8)
    assert keys(client.consumed(typed["NORMAL"], group, 8, kind="simple")) == names("one", 8)
    client.send(typed["NORMAL"], "two", count=8)
    assert keys(client.consumed(typed["NORMAL"], group, 8, kind="simple")) == names("two", 8)


def test_only_messages_with_the_tag_are_received(client: RealClient, typed: dict[str, str]) -> None:
    for tag in ("no", "yes", "too"):
        client.send(typed["NORMAL"], tag, count=4, tag=tag)
    got = client.consumed(typed["NORMAL"], fresh("group"), 8, kind="simple", tags="yes || too")
    assert keys(got) == sorted([*names("yes", 4), *names("too", 4)])


def test_messages_of_one_call_are_all_received(rust: RealClient, typed: dict[str, str]) -> None:
    sent = rust.send(typed["NORMAL"], "work", count=8, how="batch")
    got = rust.consumed(typed["NORMAL"], fresh("group"), 8, kind="simple")
    assert {(m["key"], m["id"], m["body"]) for m in got} == {(m["key"], m["id"], body_of(m["key"])) for m in sent}
    assert len(got) == 8


# ---- what the clients of Java and Rust are driven to do


@pytest.fixture(params=["java_grpc", "rust"])
def driven(request: pytest.FixtureRequest) -> RealClient:
    """Each in turn."""
    found: RealClient = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(
    ("driven", "kind"), [("java_grpc", "push"), ("java_grpc", "simple"), ("rust", "simple")], indirect=["driven"]
)
def test_messages_of_a_group_come_in_order_and_wait_for_what_failed(
    driven: RealClient, mqadmin: Callable[..., None], typed: dict[str, str], kind: str
) -> None:
    # RocketMQ itself hands out several messages of a group at once: a simple consumer gets what is behind a failure
    group = fresh(FIFO_GROUPS.rstrip("-*"))
    mqadmin("updateSubGroup", "-g", group, "-o", "true")
    for number in range(6):
        for message_group in ("red", "blue"):
            driven.send(typed["FIFO"], f"{message_group}-{number}", message_group=message_group)
    got = driven.consumed(typed["FIFO"], group, 12, kind=kind, fail=1, failing="-2-0", limit_ms=60_000)
    order: dict[str, list[int]] = defaultdict(list)
    for message in got:
        order[message["message_group"]].append(int(message["key"].split("-")[1]))
    assert order == {"red": [0, 1, 2, 2, 3, 4, 5], "blue": [0, 1, 2, 2, 3, 4, 5]}


def test_a_message_with_a_time_comes_after_it_and_once(driven: RealClient, typed: dict[str, str]) -> None:
    driven.send(typed["DELAY"], "late", delay_ms=3_000)
    with driven.consumer(typed["DELAY"], fresh("group"), kind="simple") as wait:
        wait(1, 60_000)
        (late,) = wait(2, 1_500)
    assert late["key"] == "late-0"
    assert late["at_ms"] - late["born_ms"] >= 2_000  # the real server's clock of timers has ticks of a second


def test_a_transaction_is_delivered_only_when_it_is_committed(driven: RealClient, typed: dict[str, str]) -> None:
    decided = {
        "yes": ("COMMIT", "UNKNOWN"),
        "no": ("ROLLBACK", "UNKNOWN"),
        "later-yes": ("UNKNOWN", "COMMIT"),
        "later-no": ("UNKNOWN", "ROLLBACK"),
    }
    for name, (now, later) in decided.items():
        driven.do("transaction", topic=typed["TRANSACTION"], prefix=name, now=now, later=later)
    with driven.consumer(typed["TRANSACTION"], fresh("group"), kind="simple") as wait:
        wait(2, 90_000)
        got = wait(3, 3_000)
    assert sorted(set(keys(got))) == ["later-yes-0", "yes-0"]


def test_what_never_succeeds_goes_to_the_dead_letters(
    java_grpc: RealClient, java_5: RealClient, doors: Doors, mqadmin: Callable[..., None], typed: dict[str, str]
) -> None:
    group = fresh("group")
    mqadmin("updateSubGroup", "-g", group, "-r", str(MAX_ATTEMPTS - 1))
    java_grpc.send(typed["NORMAL"], "work", count=2)
    with java_grpc.consumer(typed["NORMAL"], group, fail=100, failing="-1") as wait:
        wait_for_topic(doors, f"%DLQ%{group}")
        dead = java_5.consumed(f"%DLQ%{group}", fresh("undertaker"), 1, limit_ms=90_000)
        got = wait(1, 0)
    assert [(letter["key"], letter["body"]) for letter in dead] == [("work-1", body_of("work-1"))]
    assert [message["attempts_before"] for message in got if message["key"] == "work-1"] == [0, 1]
