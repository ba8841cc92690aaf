"""Go's remoting client works unchanged; it sends with code 10, and wants routes as Java does not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.rocketmq.real_clients import BEGIN_MS, RealClient, body_of, fresh, keys, names

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch"])
def test_what_is_sent_in_any_way_is_delivered_as_it_was_sent(go: RealClient, how: str) -> None:
    topic = fresh("go-sent")
    go.send(topic, "first", tag="yes")
    go.do("send", topic=topic, prefix=how, how=how, count=20, tag="yes")
    got = go.consumed(topic, fresh("go-group"), 21)
    assert keys(got) == sorted([*names(how, 20), "first-0"])
    assert {(message["body"], message["tag"]) for message in got} == {(body_of(key), "yes") for key in keys(got)}


def test_an_orderly_consumer_gets_each_queue_in_order_and_waits_for_what_failed(go: RealClient) -> None:
    topic = fresh("go-orderly")
    sent = go.send(topic, "step", count=12)
    got = go.consumed(topic, fresh("go-group"), 12, kind="orderly", fail=1, failing="-7")
    places = [(message["queue"], message["offset"]) for message in got]
    for queue in {message["queue"] for message in sent}:
        offsets = [offset for number, offset in places if number == queue]
        assert offsets == sorted(offsets)
    assert Counter(keys(got)) == Counter([*names("step", 12), "step-7"])


def test_what_failed_is_delivered_again_and_says_how_often(go: RealClient) -> None:
    topic = fresh("go-failing")
    go.send(topic, "work", count=3)
    got = go.consumed(topic, fresh("go-group"), 3, fail=2, failing="-1", level=1, max_attempts=5, limit_ms=BEGIN_MS)
    assert [message["attempts_before"] for message in got if message["key"] == "work-1"] == [0, 1, 2]


def test_with_broadcasting_every_member_gets_everything(go: RealClient) -> None:
    topic, group = fresh("go-broadcast"), fresh("go-group")
    go.send(topic, "all", count=8)
    with (
        go.consumer(topic, group, kind="broadcast") as first,
        go.consumer(topic, group, kind="broadcast") as second,
    ):
        assert keys(first(8, BEGIN_MS)) == keys(second(8, BEGIN_MS)) == names("all", 8)
