"""Java's remoting clients work unchanged: each way to send, each way to consume, and what becomes of failures."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from tests.support.rocketmq.real_clients import BEGIN_MS, Doors, RealClient, body_of, fresh, keys, names, wait_for_topic

pytestmark = pytest.mark.timeout(400)  # a fresh machine loads the jars first


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch", "ordered"])
def test_what_is_sent_in_any_way_is_delivered_as_it_was_sent(client: RealClient, how: str) -> None:
    topic = fresh("sent")
    client.send(topic, "first", tag="yes")  # makes the topic, as a message sent one way into nothing may be lost
    if how == "batch":
        answer = client.do("send", topic=topic, prefix=how, how=how, count=20, tag="yes")
        assert answer["status"] == "SEND_OK"
        assert len(set(answer["id"].split(","))) == 20
    else:
        sent = client.send(topic, how, how=how, count=20, tag="yes")
        assert [message["status"] for message in sent] == ([] if how == "oneway" else ["SEND_OK"] * 20)
    got = client.consumed(topic, fresh("group"), 21)
    assert keys(got) == sorted([*names(how, 20), "first-0"])
    assert {message["body"] for message in got} == {body_of(message["key"]) for message in got}
    assert {(message["topic"], message["tag"], message["attempts_before"]) for message in got} == {(topic, "yes", 0)}


def test_places_that_are_acknowledged_are_where_a_consumer_finds_the_messages(client: RealClient) -> None:
    topic = fresh("places")
    sent = client.send(topic, "place", count=10)
    got = client.consumed(topic, fresh("group"), 10)
    places = {(message["key"], message["id"]): (message["queue"], message["offset"]) for message in got}
    assert places == {(message["key"], message["id"]): (message["queue"], message["offset"]) for message in sent}


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "lite"])
def test_two_members_of_a_group_share_its_messages(client: RealClient, kind: str) -> None:
    topic, group = fresh("shared"), fresh("group")
    client.send(topic, "one", count=12)
    with client.consumer(topic, group, kind=kind) as first, client.consumer(topic, group, kind=kind) as second:
        client.send(topic, "two", count=12)
        for _ in range(40):
            got = first(24, 500) + second(24, 500)
            if len(set(keys(got))) >= 24:  # what was not committed when a queue changed hands comes twice
                break
    assert sorted(set(keys(got))) == sorted(names("one", 12) + names("two", 12))


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "lite"])
def test_the_next_consumer_of_a_group_goes_on_where_the_last_stopped(client: RealClient, kind: str) -> None:
    topic, group = fresh("next"), fresh("group")
    client.send(topic, "one", count=8)
    assert keys(client.consumed(topic, group, 8, kind=kind)) == names("one", 8)
    client.send(topic, "two", count=8)
    assert keys(client.consumed(topic, group, 8, kind=kind)) == names("two", 8)


def test_an_orderly_consumer_gets_each_queue_in_order_and_waits_for_what_failed(client: RealClient) -> None:
    topic = fresh("orderly")
    client.send(topic, "step", count=24, how="ordered", shards=3)
    got = client.consumed(topic, fresh("group"), 24, kind="orderly", fail=1, failing="-7")
    order: dict[int, list[int]] = defaultdict(list)
    for message in got:
        order[message["queue"]].append(int(message["key"].rpartition("-")[2]))
    assert sum(map(len, order.values())) == 25
    assert all(steps == sorted(steps) for steps in order.values())
    assert Counter(message["key"] for message in got)["step-7"] == 2


def test_a_consumer_gets_only_the_tags_that_it_asks_for(client: RealClient) -> None:
    topic = fresh("tags")
    for tag in ("a", "b", "c"):
        client.send(topic, tag, tag=tag, count=4)
    with client.consumer(topic, fresh("group"), tags="a || c") as wait:
        wait(8, BEGIN_MS)
        assert keys(wait(9, 1_000)) == sorted(names("a", 4) + names("c", 4))


def test_with_broadcasting_every_member_gets_everything(client: RealClient) -> None:
    topic, group = fresh("broadcast"), fresh("group")
    client.send(topic, "all", count=8)
    with (
        client.consumer(topic, group, kind="broadcast") as first,
        client.consumer(topic, group, kind="broadcast") as second,
    ):
        assert keys(first(8, BEGIN_MS)) == keys(second(8, BEGIN_MS)) == names("all", 8)


def test_what_failed_is_delivered_again_and_says_how_often(client: RealClient) -> None:
    topic = fresh("failing")
    client.send(topic, "work", count=3)
    got = client.consumed(topic, fresh("group"), 3, fail=2, failing="-1", level=1, max_attempts=5)
    assert [message["attempts_before"] for message in got if message["key"] == "work-1"] == [0, 1, 2]
    assert len({message["id"] for message in got}) == 3
    assert {message["topic"] for message in got} == {topic}


def test_what_never_succeeds_goes_to_the_dead_letters(client: RealClient, doors: Doors) -> None:
    topic, group = fresh("dead"), fresh("group")
    sent = client.send(topic, "work", count=2)
    with client.consumer(topic, group, fail=100, failing="-1", level=1, max_attempts=1) as wait:
        wait_for_topic(doors, f"%DLQ%{group}")
        dead = client.consumed(f"%DLQ%{group}", fresh("undertaker"), 1, limit_ms=60_000)
        got = wait(1, 0)
    assert [(letter["key"], letter["id"]) for letter in dead] == [("work-1", sent[1]["id"])]
    assert dead[0]["body"] == body_of("work-1")
    assert dead[0]["properties"]["RETRY_TOPIC"] == topic
    assert [message["attempts_before"] for message in got if message["key"] == "work-1"] == [0, 1]


def test_a_message_with_a_delay_level_comes_after_its_time_and_once(client: RealClient) -> None:
    topic = fresh("delayed")
    client.send(topic, "now")
    client.do("send", topic=topic, prefix="late", **{"property.DELAY": 1})
    with client.consumer(topic, fresh("group")) as wait:
        wait(2, BEGIN_MS)
        got = wait(3, 1_500)
    late = {message["key"]: message["stored_ms"] - message["born_ms"] for message in got}
    assert sorted(late) == ["late-0", "now-0"]
    assert late["late-0"] >= 1_000 > late["now-0"]


def test_a_transaction_is_delivered_only_when_it_is_committed(client: RealClient) -> None:
    topic = fresh("transactions")
    tell = {"yes": ("COMMIT_MESSAGE", "UNKNOW"), "no": ("ROLLBACK_MESSAGE", "UNKNOW")}
    asked = {"later-yes": ("UNKNOW", "COMMIT_MESSAGE"), "later-no": ("UNKNOW", "ROLLBACK_MESSAGE")}
    prefixes = {name: fresh(name) for name in (*tell, *asked)}
    for name, (now, later) in {**tell, **asked}.items():
        client.do("transaction", topic=topic, prefix=prefixes[name], now=now, later=later)
    with client.consumer(topic, fresh("group")) as wait:
        wait(2, 90_000)
        got = wait(3, 3_000)
    assert sorted(set(keys(got))) == sorted([f"{prefixes['yes']}-0", f"{prefixes['later-yes']}-0"])
    assert f"{prefixes['later-yes']}-0" in client.do("asked")


def test_a_message_is_found_by_its_key_and_by_both_of_its_ids(client: RealClient) -> None:
    topic = fresh("found")
    sent = client.send(topic, "find", count=3)[1]
    client.consumed(topic, fresh("group"), 3)
    by_key = client.do("query", topic=topic, key="find-1")["messages"]
    by_unique_key = client.do("view", topic=topic, id=sent["id"])["messages"]
    by_offset_id = client.do("view", topic=topic, id=sent["offset_id"])["messages"]
    for found in (by_key, by_unique_key, by_offset_id):
        assert [(message["id"], message["body"]) for message in found] == [(sent["id"], body_of("find-1"))]


# ---- what only version 5 has


def test_a_consumer_that_pops_gets_everything_and_again_what_it_did_not_acknowledge(java_5: RealClient) -> None:
    topic, group = fresh("popped"), fresh("group")
    java_5.send(topic, "pop", count=10)
    java_5.mqadmin("setConsumeMode", "-c", "DefaultCluster", "-t", topic, "-g", group, "-m", "POP", "-q", "0")
    with java_5.consumer(topic, group, command="consume-popped", fail=1, failing="-3") as wait:
        got = wait(10, 60_000)
    assert sorted(set(keys(got))) == names("pop", 10)
    assert [message["attempts_before"] for message in got if message["key"] == "pop-3"] == [0, 1]
    assert all("POP_CK" in message["properties"] for message in got)


@pytest.mark.parametrize("setting", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
def test_a_message_with_a_time_comes_after_it_and_once(java_5: RealClient, setting: str) -> None:
    topic = fresh("timer")
    java_5.send(topic, "now")
    with java_5.consumer(topic, fresh("group")) as wait:
        born_ms = wait(1, BEGIN_MS)[0]["born_ms"]
        value = {"TIMER_DELAY_MS": 2_000, "TIMER_DELAY_SEC": 2, "TIMER_DELIVER_MS": born_ms + 4_000}[setting]
        java_5.do("send", topic=topic, prefix="late", **{f"property.{setting}": value})
        wait(2, BEGIN_MS)
        got = wait(3, 1_500)
    late = {message["key"]: message["stored_ms"] for message in got}
    assert sorted(late) == ["late-0", "now-0"]
    # the real server's clock of timers has ticks of a second
    assert late["late-0"] >= born_ms + 1_000


def test_a_recalled_message_is_not_delivered(java_5: RealClient) -> None:
    topic = fresh("recalled")
    java_5.send(topic, "now")
    with java_5.consumer(topic, fresh("group")) as wait:
        wait(1, BEGIN_MS)
        told = java_5.do("recall", topic=topic, prefix="late", **{"property.TIMER_DELAY_MS": 5_000})
        assert told["recalled"] == told["sent"]
        assert keys(wait(2, 7_000)) == ["now-0"]
