"""The tool mqadmin of RocketMQ 5.4.0 looks at topics, messages, groups and clients, and changes them."""

from __future__ import annotations

import pytest

from tests.support.rocketmq.real_clients import BEGIN_MS, RealClient, fresh

CLUSTER = "DefaultCluster"


def rows(printed: str, *first: str) -> list[list[str]]:
    """The words of the lines that begin with these words."""
    found = [line.split() for line in printed.splitlines()]
    return [words for words in found if words[: len(first)] == list(first)]


def test_a_topic_is_made_seen_and_deleted(java_5: RealClient) -> None:
    topic = fresh("tooled")
    java_5.mqadmin("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "4", "-w", "4")
    assert topic in java_5.mqadmin("topicList").split()
    assert '"writeQueueNums":4' in java_5.mqadmin("topicRoute", "-t", topic)
    java_5.send(topic, "count", count=8)
    printed = java_5.mqadmin("topicStatus", "-t", topic)
    queues = [line.split() for line in printed.splitlines() if len(line.split()) >= 4 and line.split()[1].isdigit()]
    assert len(queues) == 4
    assert sum(int(words[3]) - int(words[2]) for words in queues) == 8
    java_5.mqadmin("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert topic not in java_5.mqadmin("topicList").split()


def test_a_message_is_found_by_key_id_and_place(java_5: RealClient) -> None:
    topic = fresh("found")
    sent = java_5.send(topic, "find", count=3)[1]
    assert sent["id"] in java_5.mqadmin("queryMsgByKey", "-t", topic, "-k", "find-1")
    for words in (
        ("queryMsgByUniqueKey", "-t", topic, "-i", sent["id"]),
        ("queryMsgById", "-t", topic, "-i", sent["offset_id"]),
    ):
        assert "find-1" in java_5.mqadmin(*words)


def test_a_group_is_seen_with_its_lag_and_its_members_and_goes_back_to_a_time(java_5: RealClient) -> None:
    topic, group = fresh("progress"), fresh("group")
    java_5.send(topic, "go", count=6)
    with java_5.consumer(topic, group) as wait:
        wait(6, BEGIN_MS)
        connection = java_5.mqadmin("consumerConnection", "-g", group)
        assert rows(connection, topic)
        assert "CLUSTERING" in connection
        java_5.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        assert len(wait(12, 60_000)) >= 12
    printed = java_5.mqadmin("consumerProgress", "-g", group)
    offsets = [(int(words[3]), int(words[4])) for words in rows(printed, topic)]
    assert sum(end for end, _ in offsets) == 6
    assert all(committed <= end for end, committed in offsets)


@pytest.mark.parametrize("words", [("clusterList",), ("statsAll",), ("topicList", "-c")])
def test_what_it_shows_of_everything_comes_without_an_error(java_5: RealClient, words: tuple[str, ...]) -> None:
    java_5.send(fresh("shown"), "some")
    printed = java_5.mqadmin(*words)
    assert "Exception" not in printed
    assert len(printed.splitlines()) >= 2


def test_a_look_up_goes_on_behind_the_last_row_that_was_printed(java_5: RealClient) -> None:
    topic = fresh("paged")
    sent = [java_5.send(topic, "same", count=1)[0]["id"] for _ in range(5)]
    found: list[str] = []
    last: tuple[str, ...] = ()
    while True:
        printed = java_5.mqadmin("queryMsgByKey", "-t", topic, "-k", "same-0", "-p", "K", "-m", "2", *last)
        page = [line.split() for line in printed.splitlines() if line.startswith(tuple(sent))]
        if not page:
            break
        found += [words[0] for words in page]
        last = "-l", page[-1][3]
    assert found == sent[::-1]
