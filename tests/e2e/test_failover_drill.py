"""The failover drill with processes: a store is killed, replaced on its volume, replaced from the bucket, and salvaged.

docs/disaster.md tells an operator to do the same by hand. The counts are printed, and kept as properties of the test.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.objects.s3_server import S3Server
from tests.support.processes.drill import Consumer, Ledger, Load, queried
from tests.support.processes.nodes import NO_ANSWER, Json, Node, Querier, RefusedError, ask, pulled, tierlog

pytestmark = pytest.mark.slow

TOPICS = ("orders", "pays")
_SIZES = ("--segment-bytes", "262144", "--queue-file-units", "600", "--index-slots", "1000", "--index-items", "4000")
_LIMIT_S = 60.0
_JUMP = 1 << 32


def until(true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _LIMIT_S
    while not true():
        assert time.monotonic() < deadline_s, f"not within {_LIMIT_S} s: {what}"
        time.sleep(0.1)


def is_ready(node: Node) -> bool:
    try:
        ask(node.url, "/readyz", timeout_s=10)
    except (RefusedError, *NO_ANSWER):
        return False
    return True


def readable(node: Node) -> dict[str, Json]:
    """Every message by body; none is there twice."""
    found = [message for topic in TOPICS for message in pulled(node.url, topic)]
    bodies = Counter(message["body"] for message in found)
    assert max(bodies.values(), default=1) == 1, bodies.most_common(3)
    return {message["body"]: message for message in found}


def url_in_table(node: Node, store_id: str) -> str:
    """Where a node says that a store answers."""
    return next(
        (str(each["url"]) for each in ask(node.url, "/v1/cluster")["stores"] if each["store_id"] == store_id), ""
    )


def test_a_store_is_killed_replaced_from_the_bucket_and_salvaged(
    own_server: S3Server, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cold = f"s3://{own_server.new_bucket()}/logs"
    ledger, consumer = Ledger(), Consumer()
    counts: dict[str, int] = {}
    nodes = [
        Node(tmp_path / "old", cold, own_server.endpoint_url, ("--store-id", "store", *_SIZES)),
        Node(tmp_path / "new", cold, own_server.endpoint_url, ("--store-id", "store", "--restore")),
        Node(tmp_path / "other", cold, own_server.endpoint_url, ("--store-id", "other", *_SIZES)),
    ]
    old, new, other = nodes
    querier = Querier(tmp_path / "querier", cold, own_server.endpoint_url)
    try:
        killed_under_load(old, ledger, consumer, counts)
        before = readable(old)
        load = Load(ledger, old.url, TOPICS, "second")
        until(lambda: ledger.count() >= counts["acknowledged before the kill"] + 200, "messages on the second process")
        old.stop()  # with requests on their way: it will think that no time has passed
        taken_over(new, ledger, before, counts)
        old.go_on()
        load.wait()
        until(lambda: not is_ready(old), "the old process learns that it was taken over")
        promised = ledger.told["archived"]
        for level in ("flushed", "archived"):
            assert not ledger.produce(old.url, "orders", level, f"late-{level}", 0, 1), "read-only, and acknowledged"
        other.start()
        until(lambda: url_in_table(other, "store").rstrip("/") == new.url, "the store has its new address")
        restart_is_refused(old)
        assert url_in_table(other, "store").rstrip("/") == new.url, "the old volume took the entry back"

        on_new = readable(new)
        assert promised <= on_new.keys(), "acknowledged as archived, and lost"
        counts |= {f"acknowledged {level}": len(told) for level, told in ledger.told.items()}
        counts["found after the takeover"] = len(on_new)
        querier.start()
        counts["found by a querier"] = found_by(querier, {"store": new.url, "other": other.url}, on_new)
        consumed_through_the_gap(new, consumer, on_new, counts)
        salvaged(old, new, ledger, on_new, counts)
        counts["messages that a queue jumped over"] = _JUMP
        findings = ask(new.url, "/v1/admin/check", {"deep": True}, timeout_s=120)["findings"]
        assert findings == []
    except BaseException as error:
        for node in (querier, *nodes):
            error.add_note(f"{node.root.name}: {node.said()}")
        raise
    finally:
        for node in (querier, *nodes):
            node.kill()
    for what, count in counts.items():
        record_property(what, count)
    print("\n" + json.dumps(counts, indent=1))


def killed_under_load(old: Node, ledger: Ledger, consumer: Consumer, counts: dict[str, int]) -> None:
    """A process dies in the middle of requests; the next one on its volume has all that was acknowledged."""
    old.start()
    for topic in TOPICS:
        ask(old.url, f"/v1/topics/{topic}", {"queues": 2}, "PUT")
        until(lambda topic=topic: route(old, topic), "the store is in the table")  # type: ignore[misc]  # bound now
    load = Load(ledger, old.url, TOPICS, "first")
    until(lambda: ledger.count() >= 300, "300 messages")
    ask(old.url, "/v1/admin/archive", {"all": True})
    consumer.consume(old.url, TOPICS, most_pages=2)
    until(lambda: ledger.count() >= 500, "500 messages")
    old.kill()
    load.wait()
    old.start()
    found = readable(old)
    assert ledger.acknowledged <= found.keys(), "acknowledged, and gone after a kill"
    counts["acknowledged before the kill"] = ledger.count()
    counts["found on the same volume"] = len(found)
    consumer.consume(old.url, TOPICS, most_pages=3)
    ask(old.url, "/v1/admin/archive", {})  # tells the bucket of the group


def route(node: Node, topic: str) -> bool:
    try:
        ask(node.url, f"/v1/cluster/topics/{topic}", {"store_id": "store"}, "PUT")
    except RefusedError:
        return False
    return True


def taken_over(new: Node, ledger: Ledger, before: dict[str, Json], counts: dict[str, int]) -> None:
    """A process on an empty volume has what the bucket has, byte for byte, and begins behind a declared gap."""
    promised = set(ledger.told["archived"])
    new.start()
    found = readable(new)
    assert promised <= found.keys(), "acknowledged as archived, and not in the bucket"
    assert ledger.acknowledged & before.keys() & promised <= found.keys()
    both = before.keys() & found.keys()
    assert all({**before[body], "tier": None} == {**found[body], "tier": None} for body in both)
    counts["the same in both volumes"] = len(both)
    counts["acknowledged as flushed, not in the bucket"] = len(ledger.acknowledged - found.keys())
    for topic in TOPICS:
        for queue in ask(new.url, f"/v1/topics/{topic}")["offsets"]:
            inside = queue["max_offset"] - 1
            page = ask(new.url, f"/v1/topics/{topic}/queues/{queue['queue_id']}/messages?offset={inside}")
            assert (page["status"], page["next_offset"]) == ("NO_MATCHED_MESSAGE", queue["max_offset"])
            assert queue["max_offset"] >= _JUMP
    seen = {(one["topic"], one["queue_id"], one["queue_offset"]) for one in before.values()}
    assert ledger.produce(new.url, "orders", "archived", "third", 0, 20)
    fresh = [one for body, one in readable(new).items() if body.startswith("third ")]
    assert len(fresh) == 20
    assert all(one["queue_offset"] >= _JUMP for one in fresh)
    assert not seen & {(one["topic"], one["queue_id"], one["queue_offset"]) for one in fresh}


def found_by(querier: Querier, addresses: dict[str, str], readable: dict[str, Json]) -> int:
    """A querier asks where the table says that the stores are now, and finds each message once; how many it found."""
    services = {one["store_id"]: one["url"] for one in ask(querier.url, "/v1/stats")["services"]}
    assert services == addresses
    found = [message for topic in TOPICS for message in queried(querier.url, topic)]
    assert sorted(message["body"] for message in found) == sorted(readable)
    assert all({**message, "tier": None} == {**readable[message["body"]], "tier": None} for message in found)
    return len(found)


def restart_is_refused(old: Node) -> None:
    """A process on the old volume, begun again, does not serve."""
    old.kill()
    old.begin()
    assert old.ended() != 0
    assert "salvage" in old.said()


def consumed_through_the_gap(new: Node, consumer: Consumer, on_new: dict[str, Json], counts: dict[str, int]) -> None:
    """From the committed offsets on: nothing readable is missed, and twice comes only what was not committed."""
    begins, earlier = consumer.committed(new.url), {one[0] for one in consumer.given}
    assert begins, "the group's offsets are in the bucket"
    already = len(consumer.given)
    counts["queues whose jump the consumer followed"] = consumer.consume(new.url, TOPICS)
    later = consumer.given[already:]
    assert on_new.keys() <= {one[0] for one in consumer.given}
    twice = [one for one in later if one[0] in earlier]
    assert all(offset >= begins.get((topic, queue_id), 0) for _, topic, queue_id, offset in twice)
    assert max(Counter(one[0] for one in later).values()) == 1
    counts |= {"consumed before": already, "consumed after": len(later), "consumed twice": len(twice)}


def salvaged(old: Node, new: Node, ledger: Ledger, on_new: dict[str, Json], counts: dict[str, int]) -> None:
    """What only the old volume had is appended once, however often it is asked for."""
    old.kill()
    reports = []
    for _ in range(2):
        done = tierlog("salvage", str(old.root), "--url", new.url, endpoint_url=old.endpoint_url)
        assert done.returncode == 0, done.stderr
        reports.append(json.loads(done.stdout))
    after = readable(new)
    assert ledger.acknowledged <= after.keys()
    assert reports[0]["appended"] == len(after) - len(on_new)
    assert reports[1]["appended"] == 0
    assert after.keys() - on_new.keys() <= ledger.sent
    counts |= {"salvaged": reports[0]["appended"], "salvaged by a second run": reports[1]["appended"]}
    counts |= {"found in the end": len(after), "acknowledged in all": len(ledger.acknowledged)}
