"""The files of a broker beside its log: consume queues, topics, and how far each consumer group has read.

``config/topics.json`` has ``topicConfigTable`` {topic: {readQueueNums, writeQueueNums, …}},
``config/consumerOffset.json`` has ``offsetTable`` {"topic@group": {queue id: next offset}}. A broker replaces a file by
renaming it to ``….bak`` first; as it does, a missing, empty or broken file is passed over for that copy.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, NotFoundError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths, base_offset_name, parse_base_offset
from tierlog.tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE, is_prefill
from tierlog.tiering.hot.consume_queue import MOST_QUEUES, UnitArray
from tierlog.tiering.hot.topics import validate_foreign_topic
from tierlog.tiering.rocketmq.fastjson import JsonValue, parse_json

#: (topic, group)
Subscription = tuple[str, str]
_QUEUE_ID = re.compile("0|[1-9][0-9]{0,4}")


def read_topics(fs: FileSystem, paths: StorePaths) -> dict[str, int]:
    """Topics that the broker knows and how many queues each has, 65,536 at most; none where there is no such file.

    Raises :class:`CorruptionError` if neither the file nor its copy can be read.
    """
    found = {}
    for name, config in _table(fs, paths, "topics.json", "topicConfigTable").items():
        if isinstance(config, dict):
            queues = [config.get(field) for field in ("readQueueNums", "writeQueueNums")]
            found[name] = min(max([1, *(number for number in queues if isinstance(number, int))]), MOST_QUEUES)
    return found


def read_consumer_offsets(fs: FileSystem, paths: StorePaths) -> dict[Subscription, dict[int, int]]:
    """Returns for each topic and group the next offset of each queue; raises as :func:`read_topics`."""
    found: dict[Subscription, dict[int, int]] = {}
    for name, queues in _table(fs, paths, "consumerOffset.json", "offsetTable").items():
        topic, separator, group = name.rpartition("@")
        if separator and isinstance(queues, dict):
            found[topic, group] = {
                int(queue): offset for queue, offset in queues.items() if queue.isdigit() and isinstance(offset, int)
            }
    return found


def _table(fs: FileSystem, paths: StorePaths, name: str, field: str) -> dict[str, JsonValue]:
    broken: CorruptionError | None = None
    for path in (paths.config / name, paths.config / f"{name}.bak"):
        try:
            data = fs.read(path)
        except NotFoundError:
            continue
        if not data.strip():
            continue
        try:
            return _field(parse_json(data, path=str(path)), field, path)
        except CorruptionError as error:
            broken = broken or error
    if broken is not None:
        raise broken
    return {}


def _field(document: JsonValue, field: str, path: Path) -> dict[str, JsonValue]:
    table = document.get(field, {}) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise CorruptionError(f"no {field} in it", path=str(path))
    return table


@dataclass(frozen=True, slots=True)
class BrokerQueue:
    """One queue; ``sizes`` maps the byte offset that names a file to the file's length."""

    topic: str
    queue_id: int
    folder: Path
    sizes: dict[int, int]

    @property
    def names(self) -> list[str]:
        """The names of the files."""
        return [base_offset_name(base) for base in self.sizes]

    def files(self, fs: FileSystem) -> Iterator[tuple[int, UnitArray]]:
        """Queue offset of the first unit and the units of each file, ascending; a file that went away is left out."""
        for base in self.sizes:
            with contextlib.suppress(NotFoundError):
                data = fs.map_read(self.folder / base_offset_name(base))
                yield base // UNIT_BYTES, data[: len(data) - len(data) % UNIT_BYTES].view(UNIT_DTYPE)

    def units(self, fs: FileSystem) -> tuple[int, UnitArray]:
        """The queue offset of the first real unit, and every unit up to the first that is none; copies of both."""
        pieces, first, expected = [], 0, None
        for start, units in self.files(fs):
            if expected not in (None, start):
                break
            good = (units["size"] > 0) & (units["physical_offset"] >= 0)
            count = len(units) if good.all() else int(np.argmin(good))
            if expected is None:
                prefill = _prefilled(units[:count])
                first = start + prefill
                pieces.append(units[prefill:count])
            else:
                pieces.append(units[:count])
            if count < len(units):
                break
            expected = start + count
        return first, np.concatenate(pieces) if pieces else np.empty(0, UNIT_DTYPE)


def _prefilled(units: UnitArray) -> int:
    """Returns how many units at the start only fill the place of messages that were never in this file."""
    fill = is_prefill(units)
    return len(units) if fill.all() else int(np.argmin(fill))


def broker_topics(fs: FileSystem, paths: StorePaths) -> list[str]:
    """Names in the folder of queues that a topic can have, in their order."""
    found = []
    for name in fs.list_dir(paths.consumequeue):
        with contextlib.suppress(InvalidRequestError):
            found.append(validate_foreign_topic(name))
    return found


def broker_queues(fs: FileSystem, paths: StorePaths) -> Iterator[BrokerQueue]:
    """Yields every queue with a folder, in the order of topic names and queue ids."""
    for topic in broker_topics(fs, paths):
        folders = fs.list_dir(paths.consumequeue / topic) if fs.is_dir(paths.consumequeue / topic) else []
        for queue_id in sorted(int(name) for name in folders if _QUEUE_ID.fullmatch(name) and int(name) < MOST_QUEUES):
            folder = paths.queue(topic, queue_id)
            if not fs.is_dir(folder):
                continue
            sizes = {}
            for name in fs.list_dir(folder):
                base = parse_base_offset(name)
                if base is not None:
                    with contextlib.suppress(NotFoundError):
                        sizes[base] = fs.size(folder / name)
            yield BrokerQueue(topic, queue_id, folder, sizes)
