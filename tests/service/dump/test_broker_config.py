"""The config of a broker that takes a store over says what the store knows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.stores.engines import small_settings, tiny_settings
from tests.support.stores.followed import SEGMENT_BYTES
from tests.support.stores.irregular import IrregularLog, compare, followed_archive, irregular_log, sent
from tierlog.service.delivery.timers import LEVELS_MS
from tierlog.service.dump.broker_config import export_config
from tierlog.service.engine.followed.store import CopiedTopic
from tierlog.service.engine.store import Store
from tierlog.service.main import main
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.queue_unit import UNIT_DTYPE
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


def made_again(root: Path) -> tuple[IrregularLog, Path]:
    """A store that follows a broker, stopped, with a topic that was made three times and one that was made once."""
    log = irregular_log(
        [
            *sent("orders", 0, range(30)), *sent("pays", 0, range(5), 30), *sent("orders", 1, range(10), 35),
            *sent("orders", 0, range(3), 45), *sent("orders", 0, range(20), 48), *sent("orders", 1, range(4), 68),
        ]
    )  # fmt: skip
    with followed_archive(root, log) as store:
        store._hot.dispatch()
        store.copy_topics([CopiedTopic("orders", 4)])
        store.store.groups.copy({"shop": {("orders", 0): 7}})
    return log, root / "s"


def opened(root: Path) -> Store:
    return Store.open(root, read_only=True, settings=small_settings().with_segments_of(SEGMENT_BYTES))


def test_a_broker_finds_the_current_generation_in_the_folder_of_its_topic(tmp_path: Path) -> None:
    log, root = made_again(tmp_path)
    export_config(root, root / "config")
    state = read_state(LocalFileSystem(), StorePaths(root))
    assert {one.name: one.read_queues for one in state.topics} == {"orders": 4, "pays": 1}
    assert state.consumer_offsets == {("orders", "shop"): {0: 7}}
    assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["orders", "pays"]
    for queue_id, count, first in ((0, 20, 48), (1, 4, 68)):
        (file,) = (root / "consumequeue" / "orders" / str(queue_id)).iterdir()
        units = np.frombuffer(file.read_bytes(), UNIT_DTYPE)
        assert units["physical_offset"][:count].tolist() == [one.at for one in log.records[first : first + count]]
        assert not units["size"][count:].any()


@pytest.mark.parametrize("a_broker_ran", [False, True])
def test_a_store_that_was_made_ready_for_a_broker_is_still_ours(tmp_path: Path, a_broker_ran: bool) -> None:
    log, root = made_again(tmp_path)
    export_config(root, root / "config")
    if a_broker_ran:  # and promises all that it found
        checkpoint = replace(Checkpoint.decode((root / "checkpoint").read_bytes()), confirm_offset=log.log.end)
        (root / "checkpoint").write_bytes(checkpoint.encode())
    with opened(root) as store:
        compare(store, log)
        assert store.check() == []


def test_killed_while_queues_are_handed_over_nothing_is_lost_and_it_can_be_done_again(tmp_path: Path) -> None:
    log, root = made_again(tmp_path)
    for name in ("orders", f"orders@{log.records[45].at}"):
        shutil.rmtree(root / "consumequeue" / name)
    checkpoint = replace(Checkpoint.decode((root / "checkpoint").read_bytes()), confirm_offset=0)
    (root / "checkpoint").write_bytes(checkpoint.encode())
    with opened(root) as store:
        compare(store, log)
    export_config(root, root / "config")
    assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["orders", "pays"]
    with opened(root) as store:
        compare(store, log)


def test_a_store_that_was_not_stopped_is_not_handed_over(tmp_path: Path) -> None:
    _, root = made_again(tmp_path)
    (root / "abort").touch()
    with pytest.raises(ConflictError, match="not stopped cleanly"):
        export_config(root, root / "config")
    assert not (root / "config").exists()
    export_config(root, tmp_path / "config")
    assert (root / "consumequeue" / "orders").is_dir()
