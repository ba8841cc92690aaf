"""The process of a follower is killed, again and again, while a producer goes on; nothing is lost and nothing is twice.

``TIERLOG_SEED`` says which moments are met, ``TIERLOG_FOLLOWER_KILLS`` how many.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rocketmq.brokers.conftest import Begin
from tests.support.rocketmq.following import (
    STORE_ID,
    FollowProcess,
    check_messages,
    committed,
    differing,
    pulled_all,
    records_of,
)
from tests.support.rocketmq.real_brokers import RealBroker, until
from tests.support.rocketmq.real_clients import BEGIN_MS, fresh
from tierlog.service.archive.archive import Archive
from tierlog.service.engine.store import Store

SEED = int(os.environ.get("TIERLOG_SEED") or 24)
KILLS = int(os.environ.get("TIERLOG_FOLLOWER_KILLS") or 2)
#: What a kill waits for: the next object of a kind in the archive, a file here, or only some time.
STEPS = ("log", "index", "tail", "manifest", "hot", "", "")
_STEP_LIMIT_S = 4.0
_LONGEST_S = 3.0


@contextmanager
def killed_in_the_end(follower: FollowProcess) -> Iterator[FollowProcess]:
    try:
        yield follower
    finally:
        follower.kill()


def wait_for_step(follower: FollowProcess, step: str, chance: random.Random) -> None:
    """Until something new is where this step of the follower writes; some time at most, as a step may not come."""
    folder = follower.root / STORE_ID / "commitlog" if step == "hot" else follower.cold / STORE_ID / step
    before = set(folder.glob("**/*")) if step else set()
    deadline_s = time.monotonic() + (_STEP_LIMIT_S if step else chance.uniform(0.05, _LONGEST_S))
    while time.monotonic() < deadline_s:
        if step and set(folder.glob("**/*")) - before:
            time.sleep(chance.uniform(0, 0.02))  # between this step and the next ones
            return
        time.sleep(0.005)


def check_archive(follower: FollowProcess, broker: RealBroker, folder: Path) -> int:
    """Every archived segment is the broker's, and every record of ours there is found once; where it ends."""
    with Archive.open(f"file://{follower.cold}", store_id=STORE_ID) as archive:
        assert archive.check(deep=True) == []
        end = follower.archived_to()
        for base, path in broker.segments.items():
            if base < end:
                out = folder / f"restored-{base}"
                told = archive.restore_segment(base, out, overwrite=True)
                if not told["fillers"]:  # what is not archived of system topics
                    assert out.read_bytes() == path.read_bytes(), base
                out.unlink()
        there = [place for place in records_of(broker) if place[3] < end]
        assert sorted(pulled_all(archive, there)) == sorted(there)
    return end


@pytest.mark.parametrize("source", ["network", "directory"])
def test_a_follower_that_is_killed_again_and_again_has_the_log_of_the_broker_once(
    source: str, begin: Begin, tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {source}")
    cluster = begin()
    broker, client, topic = cluster.broker, cluster.client, cluster.topics[0]
    client.send(topic, "first")
    follower = FollowProcess(tmp_path, broker)
    if source == "directory":
        follower = FollowProcess(tmp_path, broker, store=broker.store, hold=True)
    with killed_in_the_end(follower):
        follower.start()
        flood = cluster.flood(bytes=2000, window=2)  # all of it is read again in the end
        for number in range(KILLS):
            wait_for_step(follower, chance.choice(STEPS), chance)
            follower.kill()
            if number % 2:
                follower.begin()  # the next kill may meet it while it opens its store
            else:
                follower.start()
        group = fresh("group")
        client.consumed(topic, group, 50, limit_ms=BEGIN_MS)
        sent = flood.end(now=True)
        assert len(sent) > 500, flood.told
        follower.wait()
        end = broker.bounds().max_offset
        follower.reach(end)
        until(
            lambda: bool(wanted := committed(broker, group)) and follower.committed(group) == wanted,
            lambda: f"offsets of {group}: {follower.committed(group)}, the broker's {committed(broker, group)}",
        )
        assert differing(follower.root / STORE_ID, broker) == []
        last = end - end % broker.segment_bytes
        until(lambda: follower.archived_to() >= last, lambda: f"{last} is archived: {follower.said()}")
        follower.kill()
        assert check_archive(follower, broker, tmp_path) >= last
        with Store.open(follower.root / STORE_ID, read_only=True) as store:
            check_messages(store, sent, seed=SEED)
            assert store.check(deep=True) == []
            there = records_of(broker)
            assert sorted(pulled_all(store, there)) == sorted(there)
        assert {(each.topic, each.queue, each.offset, each.physical_offset) for each in sent} <= set(there)
