"""A real broker begins on a store of ours, with the config that was exported, and knows all that the store knew."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.rocketmq.pulled import decoded
from tests.support.rocketmq.real_clients import real_server
from tests.support.stores.irregular import compare, followed_archive, irregular_log, sent
from tests.tools.rocketmq_clients import JAVA_5, ClientProgram
from tierlog.service.config.settings import Settings
from tierlog.service.dump.broker_config import export_config
from tierlog.service.engine.followed.store import CopiedTopic
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.message.batch import Message
from tierlog.tiering.rocketmq.codes import PullFlag, RequestCode
from tierlog.tiering.rocketmq.remoting import BrokerClient, copied_state

_SEGMENT_BYTES, _UNITS = 1 << 20, 30_000


@pytest.mark.timeout(300)
def test_topics_offsets_and_progress_are_those_of_the_store(
    folder_of: Callable[[ClientProgram], Path], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    settings = Settings.load(overrides={"hot.segment_bytes": _SEGMENT_BYTES, "hot.queue_file_units": _UNITS})
    with Store.open(root, settings=settings, store_id="broker-a") as store:
        store.create_topic("orders", 3)
        store.create_topic("payments", 1)
        store.create_topic("%RETRY%shop", 1)
        store.append([Message("orders", b"%d" % number, (f"k{number}",)) for number in range(500)])
        store.append([Message("payments", bytes(1_000)) for _ in range(2_000)])
        offsets = {("orders", 0): 20, ("orders", 2): 7, ("payments", 0): 2_000}
        store.groups.copy({"shop": offsets})
        counts = store.queue_counts()
        ends = {(name, at): store.offsets(name, at) for name, count in counts.items() for at in range(count)}
    export_config(root, root / "config")
    with real_server(
        folder_of(JAVA_5), tmp_path, f"mappedFileSizeCommitLog={_SEGMENT_BYTES}",
        f"mappedFileSizeConsumeQueue={20 * _UNITS}",
    ) as doors, closing(BrokerClient(f"127.0.0.1:{doors.broker_port}", clock=SystemClock())) as client:  # fmt: skip
        state = copied_state(client)
        topics = {one.name: (one.read_queues, one.write_queues, one.perm) for one in state.topics}
        assert {name: topics.get(name) for name in counts} == {
            name: (count, count, 6) for name, count in counts.items()
        }
        assert "shop" in {one.name for one in state.groups}
        kept = {place: dict(at) for place, at in state.consumer_offsets.items() if place[1] == "shop"}
        assert kept == {("orders", "shop"): {0: 20, 2: 7}, ("payments", "shop"): {0: 2_000}}
        for (topic, queue_id), (first, end) in ends.items():
            place = {"topic": topic, "queueId": str(queue_id)}
            found = [
                int(client.ask(code, place).fields["offset"])
                for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            ]
            assert found == [first, end], topic


@pytest.mark.timeout(300)
def test_of_a_topic_that_was_made_again_the_broker_has_the_current_generation(
    folder_of: Callable[[ClientProgram], Path], tmp_path: Path
) -> None:
    built = folder_of(JAVA_5)
    settings = Settings.load(overrides={"hot.segment_bytes": _SEGMENT_BYTES, "hot.queue_file_units": _UNITS})
    log = irregular_log(
        [
            *sent("orders", 0, range(400)), *sent("orders", 1, range(90), 400), *sent("pays", 0, range(7), 490),
            *sent("orders", 0, range(50), 497), *sent("orders", 1, range(120), 547),
        ],
        segment_bytes=_SEGMENT_BYTES,
    )  # fmt: skip
    root = tmp_path / "store"
    with followed_archive(tmp_path, log, name="store", settings=settings) as store:
        store._hot.dispatch()
        store.copy_topics([CopiedTopic("orders", 3)])
    export_config(root, root / "config")
    with real_server(
        built, tmp_path, f"mappedFileSizeCommitLog={_SEGMENT_BYTES}", f"mappedFileSizeConsumeQueue={20 * _UNITS}"
    ) as doors, closing(BrokerClient(f"127.0.0.1:{doors.broker_port}", clock=SystemClock())) as client:  # fmt: skip
        for queue_id, numbers in ((0, range(497, 547)), (1, range(547, 667)), (2, range(0))):
            place = {"topic": "orders", "queueId": str(queue_id)}
            ends = [
                int(client.ask(code, place).fields["offset"])
                for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            ]
            assert ends == [0, len(numbers)], queue_id
            if numbers:
                pulled = client.ask(RequestCode.PULL_MESSAGE, {
                    **place, "consumerGroup": "shop", "queueOffset": "0", "maxMsgNums": "16", "commitOffset": "0",
                    "sysFlag": str(int(PullFlag.SUBSCRIPTION)), "subscription": "*", "expressionType": "TAG",
                    "subVersion": "0", "suspendTimeoutMillis": "0",
                })  # fmt: skip
                keys = [one.properties["KEYS"] for one in decoded(pulled.body)]
                assert keys == [f"key-{number}" for number in numbers[:16]]
    with Store.open(root, read_only=True, settings=settings) as ours:
        compare(ours, log)
