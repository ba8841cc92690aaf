"""``tierlog dump ROOT --rocketmq OUT``: what a broker that takes a store over keeps beside the log, as its own files.

====================== ===========================================================================================
file                   what it has
====================== ===========================================================================================
topics.json            every topic with its queues; read and written
subscriptionGroup.json every consumer group, with the settings that RocketMQ gives a new one
consumerOffset.json    the next offset to consume of each group, topic and queue
delayOffset.json       of each level of delay, the first message that the followed broker had not sent on; of a store
                       without a copy of that, the first one that was not due when the store got its last one
====================== ===========================================================================================

A broker whose ``storePathRootDir`` is the store looks for them in its folder ``config``. Log, queues and the classic
index are what RocketMQ reads already, but for a topic that was made again: a broker knows its current generation alone,
in the folder of the topic's name. Written to the store's own folder ``config``, the store becomes so
(:func:`hand_over_queues`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from tierlog.service.delivery.group_topics import RETRY_PREFIX
from tierlog.service.delivery.timers import LEVELS_MS
from tierlog.service.dump.result import Dump
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem, replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.generation import generations_of, is_numbered
from tierlog.tiering.hot.topics import TopicRegistry
from tierlog.tiering.message.waiting import SCHEDULE_TOPIC

#: Groups that consume what an archive node replays; no broker knows them.
_REPLAYING = "archive%"
_READ_WRITE = 6
#: RocketMQ's settings of a new group, as far as they are not what a broker takes for those that are missing.
_GROUP: Mapping[str, Any] = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


def export_config(root: Path, target: Path) -> Dump:
    """Writes the folder ``target``, which must not exist, whole or not at all; the store is opened read-only."""
    if target.exists() or target.is_symlink():
        raise InvalidRequestError("the folder exists", path=str(target), hint="name one that does not")
    if not target.parent.is_dir():
        raise InvalidRequestError("no such folder", path=str(target.parent))
    with Store.open(root, read_only=True) as store:
        files = config_files(store)
    fs = LocalFileSystem()
    if target == root / "config":  # before the folder is there, so that it can be done again
        hand_over_queues(fs, StorePaths(root))
    folder = Path(tempfile.mkdtemp(prefix=".tierlog-export-", dir=target.parent))
    try:
        for name, document in files.items():
            replace_file(fs, folder / name, orjson.dumps(document, option=orjson.OPT_INDENT_2), folder)
        folder.chmod(0o755)
        fs.rename(folder, target)
        fs.flush_dir(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = {
        "topics": len(files["topics.json"]["topicConfigTable"]),
        "groups": len(files["subscriptionGroup.json"]["subscriptionGroupTable"]),
        "offsets": sum(map(len, files["consumerOffset.json"]["offsetTable"].values())),
    }
    return Dump("store", {"written": str(target), **told})


def hand_over_queues(fs: FileSystem, paths: StorePaths) -> None:
    """Gives the queues of current generations the folders of their topics; those of older ones go.

    Whoever opens the store as ours derives all queues again: the checkpoint promises none of them any more, and once a
    broker has written its own, the queues whose folder is gone are below their floors. Killed in here: the same; done
    again, it does what is left. Raises :class:`ConflictError` for a store that was not stopped cleanly, as a broker
    would then derive queues from records of older generations.
    """
    with fs.lock(paths.lock):
        topics = TopicRegistry(fs, paths, 1, read_only=True, foreign=True).all()
        made_again = sorted({topic.record_topic for topic in topics if is_numbered(topic.name)})
        if not made_again:
            return
        if fs.exists(paths.abort):
            hint = "open it once, let it stop, and do this again"
            raise ConflictError("the store was not stopped cleanly", path=str(paths.root), hint=hint)
        checkpoint = replace(Checkpoint.decode(fs.read(paths.checkpoint)), confirm_offset=0)
        replace_file(fs, paths.checkpoint, checkpoint.encode(), paths.tmp)
        for name in made_again:
            *older, current = (paths.consumequeue / each.name for each in generations_of(topics, name))
            if fs.is_dir(current):
                for folder in older:
                    _remove_queues(fs, folder)
                fs.rename(current, paths.consumequeue / name)
                fs.flush_dir(paths.consumequeue)


def _remove_queues(fs: FileSystem, topic: Path) -> None:
    if not fs.is_dir(topic):
        return
    for queue in fs.list_dir(topic):
        for file in fs.list_dir(topic / queue):
            fs.unlink(topic / queue / file)
        fs.remove_dir(topic / queue)
    fs.remove_dir(topic)


def config_files(store: Store) -> dict[str, Any]:
    """Returns the documents of the files, by their names."""
    counts = store.queue_counts()
    version = {"counter": 1, "stateVersion": 0, "timestamp": store.last_store_ms}
    topics = {
        name: {
            "attributes": {}, "order": False, "perm": _READ_WRITE, "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0, "writeQueueNums": queues,
        }
        for name, queues in sorted(counts.items())
    }  # fmt: skip
    groups = {name.removeprefix(RETRY_PREFIX) for name in counts if name.startswith(RETRY_PREFIX)}
    offsets: dict[str, dict[str, int]] = {}
    for group, state in sorted(store.groups.all_committed().items()):
        if group.startswith(_REPLAYING):
            continue
        groups.add(group)
        for (topic, store_id, queue_id), offset in sorted(state.offsets.items()):
            if store_id == store.store_id:
                offsets.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    settings = {name: {"groupName": name, **_GROUP} for name in sorted(groups - {""})}
    return {
        "topics.json": {"dataVersion": version, "topicConfigTable": topics},
        "subscriptionGroup.json": {"dataVersion": version, "forbiddenTable": {}, "subscriptionGroupTable": settings},
        "consumerOffset.json": {"dataVersion": version, "offsetTable": offsets},
        "delayOffset.json": {"dataVersion": version, "offsetTable": _delay_offsets(store)},
    }


def _delay_offsets(store: Store) -> dict[str, int]:
    """As they were copied from the broker that is followed.

    Without a copy: what was stored a delay before the last message was due then, and its broker has sent it on.
    """
    queues, copied = min(store.find_queues(SCHEDULE_TOPIC) or 0, len(LEVELS_MS)), store.groups.delay_offsets
    if copied:
        return {str(level): offset for level, offset in sorted(copied.items())}
    return {
        str(queue_id + 1): store.offset_by_time(
            SCHEDULE_TOPIC, queue_id, max(0, store.last_store_ms - LEVELS_MS[queue_id]), Boundary.LOWER
        )
        for queue_id in range(queues)
    }
