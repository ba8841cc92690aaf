"""A million messages for two stores and one S3 server, a store killed and the bucket paused: each is found once.

Every producer sends to both nodes in turn, so that half goes through the wrong one; a querier looks up what came of it.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.objects.s3_server import S3Server
from tests.support.processes.million import Archiving, Producers, archived, count_by_key
from tests.support.processes.nodes import Node, Querier, RefusedError, ask, tierlog

pytestmark = pytest.mark.slow

TOPICS = {"orders": "a", "pays": "a", "events": "b", "logs": "b"}
COUNT = 250_000
KEYS = 250
PAUSE_S = 30.0
_SIZES = ("--segment-bytes", str(16 << 20), "--index-slots", "100000", "--index-items", "400000")


@pytest.mark.timeout(600)
def test_each_of_a_million_messages_is_found_once(
    own_server: S3Server, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(seed)
    cold = f"s3://{own_server.new_bucket()}/logs"
    s3_url = own_server.endpoint_url
    nodes = {name: Node(tmp_path / name, cold, s3_url, ("--store-id", name, *_SIZES)) for name in ("a", "b")}
    producers = Producers({topic: nodes[name] for topic, name in TOPICS.items()}, COUNT, KEYS, limit_s=240)
    querier = Querier(tmp_path / "querier", cold, s3_url)
    times = [("begin", time.monotonic())]
    try:
        for node in nodes.values():
            node.start()
        for topic, name in TOPICS.items():
            routed(nodes.values(), topic, name)
        times.append(("nodes", time.monotonic()))
        with Archiving([*nodes.values()]):
            trouble = threading.Thread(target=make_trouble, args=(nodes, own_server, producers, chance), daemon=True)
            trouble.start()
            producers.run()
            trouble.join(120)
            assert not trouble.is_alive()
        times.append(("producing", time.monotonic()))
        for name, node in nodes.items():
            archived(node, everything=name == "a")  # of the other, the newest messages stay hot
        times.append(("archiving", time.monotonic()))
        querier.start()
        assert {one["url"] for one in ask(querier.url, "/v1/stats")["services"]} == {one.url for one in nodes.values()}
        times.append(("querier", time.monotonic()))
        found = count_by_key(querier.url, TOPICS, COUNT, KEYS, chance)
        assert found.total() == producers.acknowledged == COUNT * len(TOPICS)
        assert found["cold"] > found.total() * 3 // 4, found
        assert producers.sent_on > COUNT, "a part went through the wrong node"
        times.append(("looking up", time.monotonic()))
        for node in (querier, *nodes.values()):
            node.kill()
        with ThreadPoolExecutor(len(nodes)) as pool:
            for checked in pool.map(lambda node: check(node, s3_url), nodes.values()):
                assert checked.returncode == 0, checked.stdout + checked.stderr
        times.append(("checking", time.monotonic()))
    except BaseException as error:
        for node in (querier, *nodes.values()):
            error.add_note(f"{node.root.name}: {node.said()}")
        error.add_note(f"seed {seed}, {producers.acknowledged} acknowledged")
        raise
    finally:
        for node in (querier, *nodes.values()):
            node.kill()
    lasted = {what: round(end - begin, 1) for (_, begin), (what, end) in itertools.pairwise(times)}
    counts = {
        "found once each": found.total(), **found, "acknowledged by the wrong node": producers.sent_on,
        "requests repeated": producers.repeated, "of these refused": producers.refused,
    }  # fmt: skip
    for what, value in {**counts, "seconds": lasted}.items():
        record_property(what, value)
    print(f"\n{counts}, seconds: {lasted}")


def check(node: Node, endpoint_url: str) -> subprocess.CompletedProcess[str]:
    return tierlog("check", "--deep", "--root", str(node.root), endpoint_url=endpoint_url)


def routed(nodes: Collection[Node], topic: str, store_id: str) -> None:
    """Have a topic's messages go to one store; bounded wait until both are in the table, and every node knows."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            for node in nodes:
                ask(node.url, f"/v1/cluster/topics/{topic}", {"store_id": store_id}, "PUT")
            return
        except RefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def make_trouble(nodes: dict[str, Node], s3: S3Server, producers: Producers, chance: random.Random) -> None:
    """Kill a store in the middle of its requests and begin it again; then pause the bucket."""
    total = COUNT * len(TOPICS)
    reached(producers, total // 5)
    victim = nodes[chance.choice("ab")]
    victim.kill()
    victim.start()
    reached(producers, total * 2 // 5)
    assert s3.process_id is not None
    os.kill(s3.process_id, signal.SIGSTOP)
    try:
        time.sleep(PAUSE_S)
    finally:
        os.kill(s3.process_id, signal.SIGCONT)


def reached(producers: Producers, count: int) -> None:
    deadline_s = time.monotonic() + 120
    while producers.acknowledged < count:
        assert time.monotonic() < deadline_s, f"{producers.acknowledged} of {count} within 120 s"
        time.sleep(0.1)
