"""A RocketMQ broker's store directory, made readable as one of ours, in memory only.

What tierlog needs beside the commit log is put into the overlay: an identity with the sizes of the broker's files, the
topics, and a checkpoint that promises nothing, because RocketMQ's ``confirm offset`` is no point below which queues are
durable (docs/decisions/0002). Its queue files are hidden, so that the dispatcher derives every unit from the log: they
may be behind the log or ahead of it, and nothing in them proves which. What only they tell, where a queue goes on whose
messages are all gone, becomes the queue's floor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.base.fs import FileSystem, replace_file
from tierlog.tiering.base.paths import StorePaths, parse_base_offset
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.queue_unit import UNIT_BYTES
from tierlog.tiering.hot.identity import (
    DEFAULT_QUEUE_FILE_UNITS,
    DEFAULT_SEGMENT_BYTES,
    StoreIdentity,
    validate_store_id,
)
from tierlog.tiering.hot.topics import TOPICS_FILE, KnownTopics, Topic, validate_foreign_topic
from tierlog.tiering.rocketmq.broker_files import BrokerQueue, broker_queues, read_topics

#: What a broker's messages are said to be of unless the opener names the store.
DEFAULT_STORE_ID = "rocketmq"


def is_broker_store(fs: FileSystem, paths: StorePaths) -> bool:
    """Whether a directory is a broker's: a commit log, and nothing of ours beside it."""
    if fs.exists(paths.tierlog) or not fs.is_dir(paths.commitlog):
        return False
    has_segments = any(parse_base_offset(name) is not None for name in fs.list_dir(paths.commitlog))
    return has_segments or fs.exists(paths.checkpoint)


def refuse_writing(fs: FileSystem, paths: StorePaths) -> None:
    """Raises :class:`InvalidRequestError` for a broker's directory, into which tierlog never writes."""
    if is_broker_store(fs, paths):
        raise InvalidRequestError(
            "this is the store directory of a RocketMQ broker, into which tierlog never writes",
            path=str(paths.root),
            hint="`tierlog query`, `tail` and others that only read take it with --read-only (docs/rocketmq.md)",
        )


def segment_bytes_of(fs: FileSystem, paths: StorePaths) -> int | None:
    """Returns the size of the broker's segments, None while it has none that is whole."""
    for name in fs.list_dir(paths.commitlog):
        if parse_base_offset(name) is not None and (size := fs.size(paths.commitlog / name)):
            return size
    return None


def adopt(
    fs: OverlayFileSystem,
    paths: StorePaths,
    *,
    store_id: str | None,
    segment_bytes: int | None,
    queue_file_units: int | None,
) -> None:
    """Adds to the overlay what makes the directory a store of ours; sizes given hold where no file tells them."""
    queues = list(broker_queues(fs, paths))
    found_bytes = segment_bytes_of(fs, paths)
    begin = _drop_empty_segments(fs, paths)
    found_units = next((size // UNIT_BYTES for queue in queues for size in queue.sizes.values() if size), None)
    identity = StoreIdentity(
        store_id=validate_store_id(store_id) or DEFAULT_STORE_ID, volume_id="", open_id="", head_open_ids=(),
        cold_url=None, segment_bytes=found_bytes or segment_bytes or DEFAULT_SEGMENT_BYTES,
        queue_file_units=queue_file_units or found_units or DEFAULT_QUEUE_FILE_UNITS,
    )  # fmt: skip
    for folder in (paths.tmp, paths.tierlog):
        fs.make_dirs(folder)
    identity.save(fs, paths)
    topics = list(_topics(fs, paths, queues, begin))
    TOPICS_FILE.replace(fs, paths.topics_json, KnownTopics(topics, len(topics) + 1), paths.tmp)
    replace_file(fs, paths.checkpoint, Checkpoint().encode(), paths.tmp)
    for queue in queues:
        for name in queue.names:
            fs.unlink(queue.folder / name)


def _drop_empty_segments(fs: OverlayFileSystem, paths: StorePaths) -> int:
    """Hides files that the broker has just created; returns where the log begins."""
    begin = None
    for name in fs.list_dir(paths.commitlog):
        base = parse_base_offset(name)
        if base is None:
            continue
        if fs.size(paths.commitlog / name) == 0:
            fs.unlink(paths.commitlog / name)
        elif begin is None:
            begin = base
    return begin or 0


def _topics(fs: FileSystem, paths: StorePaths, queues: list[BrokerQueue], begin: int) -> Iterator[Topic]:
    """Every topic that has a folder or a configuration; those found in the log only come on top when it is read."""
    counts: dict[str, int] = {}
    with contextlib.suppress(CorruptionError):  # the log and the folders tell enough; `check` names the file
        counts = read_topics(fs, paths)
    floors: dict[str, dict[int, int]] = {}
    for queue in queues:
        counts[queue.topic] = max(counts.get(queue.topic, 1), queue.queue_id + 1)
        if begin and (floor := _floor(fs, queue, begin)):
            floors.setdefault(queue.topic, {})[queue.queue_id] = floor
    for number, (name, count) in enumerate(sorted(counts.items()), 1):
        with contextlib.suppress(InvalidRequestError):
            yield Topic(number, validate_foreign_topic(name), count, floors.get(name, {}))


def _floor(fs: FileSystem, queue: BrokerQueue, begin: int) -> int:
    """Returns the offset after the queue's last unit of a message that the log no longer has."""
    floor = 0
    for first, units in queue.files(fs):
        gone = (units["size"] > 0) & (units["physical_offset"] < begin)
        if not gone.all():
            count = int(np.argmin(gone))
            return first + count if count else floor
        floor = first + len(units)
    return floor
