"""The config of a broker that takes a store over says what the store knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.delivery.timers import LEVELS_MS
from tierlog.service.dump.broker_config import export_config
from tierlog.service.engine.store import Store
from tierlog.service.main import main
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC
from tierlog.tiering.rocketmq.broker_files import read_state


def written(root: Path) -> Path:
    """A store with topics, groups and delayed messages of a broker."""
    clock = ManualClock()
    with Store.open(root, settings=tiny_settings(), clock=clock, store_id="broker-a") as store:
        store.create_topic("orders", 2)
        store.create_topic("%RETRY%only-retries", 1)
        store.append([Message("orders", b"x", queue_id=number % 2) for number in range(8)])
        store.create_topic(SCHEDULE_TOPIC, 2)
        for _ in range(6):
            store.append([Message(SCHEDULE_TOPIC, b"later", queue_id=level) for level in range(2)])
            clock.advance(LEVELS_MS[1] // 2)
        store.append([Message("orders", b"last", queue_id=0)])
        store.flush()
        store.groups.copy({"shop": {("orders", 0): 3, ("orders", 1): 2}})
        store.groups.copy({"archive%shop": {("orders", 0): 1}})
    return root


def test_it_is_read_back_as_a_brokers_is(tmp_path: Path) -> None:
    root = written(tmp_path / "store")
    export_config(root, root / "config")
    state = read_state(LocalFileSystem(), StorePaths(root))
    topics = {one.name: (one.read_queues, one.write_queues, one.perm) for one in state.topics}
    with Store.open(root, read_only=True, settings=tiny_settings()) as store:
        assert topics == {name: (count, count, 6) for name, count in store.queue_counts().items()}
    assert [one.name for one in state.groups] == ["only-retries", "shop"]
    assert state.consumer_offsets == {("orders", "shop"): {0: 3, 1: 2}}


def test_a_delayed_message_that_was_not_due_yet_is_left_to_the_broker(tmp_path: Path) -> None:
    root = written(tmp_path / "store")
    export_config(root, root / "config")
    with Store.open(root, read_only=True, settings=tiny_settings()) as store:
        for level, offset in read_state(LocalFileSystem(), StorePaths(root)).delay_offsets.items():
            due_ms = store.last_store_ms - LEVELS_MS[level - 1]
            stored = [one.record.store_ms for one in store.pull(SCHEDULE_TOPIC, level - 1, 0, 32).messages]
            assert [time < due_ms for time in stored] == [number < offset for number in range(len(stored))]
            assert 0 < offset <= len(stored)


def test_offsets_of_delays_are_those_that_were_copied_from_the_broker(tmp_path: Path) -> None:
    root = written(tmp_path / "store")
    with Store.open(root, settings=tiny_settings()) as store:
        store.groups.copy({}, {2: 1, 1: 4})
    export_config(root, root / "config")
    assert read_state(LocalFileSystem(), StorePaths(root)).delay_offsets == {1: 4, 2: 1}


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    root = written(tmp_path / "store")
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidRequestError, match="the folder exists"):
        export_config(root, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = written(tmp_path / "store")
    assert main(["dump", str(root), "--rocketmq", str(tmp_path / "config"), "--format", "json"]) == 0
    said = capsys.readouterr().out
    assert '"groups": 2' in said or '"groups":2' in said
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == [
        "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "topics.json"
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".tierlog-export")] == []
