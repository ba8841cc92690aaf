"""What a broker keeps in ``config/*.json``: its topics, and how far each consumer group has read.

``topics.json`` has ``topicConfigTable`` {topic: {readQueueNums, writeQueueNums, …}}, ``consumerOffset.json`` has
``offsetTable`` {"topic@group": {queue id: next offset}}. A broker replaces a file by renaming it to ``….bak`` first; as
it does, a missing, empty or broken file is passed over for that copy.
"""

from __future__ import annotations

from pathlib import Path

from tiering.errors import CorruptionError, NotFoundError
from tiering.fs import FileSystem
from tiering.hot.consume_queue import MOST_QUEUES
from tiering.paths import StorePaths
from tiering.rocketmq.json_text import JsonValue, parse_json

#: (topic, group)
Subscription = tuple[str, str]


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
    """For each topic and consumer group the next offset of each queue; errors as :func:`read_topics`."""
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
