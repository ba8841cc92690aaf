"""The files of a broker beside its log: consume queues, topics, groups, and how far each group has read.

========================== ============================ ===========================================================
file in ``config/``        its table                    an entry
========================== ============================ ===========================================================
``topics.json``            ``topicConfigTable``         topic: {readQueueNums, writeQueueNums, perm, …}
``subscriptionGroup.json`` ``subscriptionGroupTable``   group: {retryMaxTimes, …}
``consumerOffset.json``    ``offsetTable``              "topic@group": {queue id: next offset}
``delayOffset.json``       ``offsetTable``              level of delay: next offset of its queue
========================== ============================ ===========================================================

A broker replaces a file by renaming it to ``….bak`` first; as it does, a missing, empty or broken file is passed over
for that copy. A master answers its slaves with the same tables.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError, NotFoundError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths, base_offset_name, parse_base_offset
from tierlog.tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE, is_prefill
from tierlog.tiering.hot.consume_queue import MOST_QUEUES
from tierlog.tiering.hot.topics import validate_foreign_topic
from tierlog.tiering.kernels.queue_places import UnitArray
from tierlog.tiering.rocketmq.fastjson import JsonValue, parse_json

#: (topic, group)
Subscription = tuple[str, str]
_QUEUE_ID = re.compile("0|[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """A topic of a broker; ``config`` is all that the broker keeps of it, under its names."""

    name: str
    read_queues: int
    write_queues: int
    #: 4 = may be read, 2 = may be written.
    perm: int
    config: Mapping[str, JsonValue]

    @property
    def queue_count(self) -> int:
        """Queues that may have messages."""
        return max(self.read_queues, self.write_queues)


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """A consumer group of a broker; ``config`` is all that the broker keeps of it, under its names."""

    name: str
    retry_max_times: int
    config: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What a broker knows beside its log, each part in the order of names."""

    topics: tuple[BrokerTopic, ...]
    groups: tuple[BrokerGroup, ...]
    #: For each topic and group the next offset of each queue.
    consumer_offsets: Mapping[Subscription, Mapping[int, int]]
    #: For each level of delay the next offset of its queue.
    delay_offsets: Mapping[int, int]


Table = Mapping[str, JsonValue]


def state_of(*, topics: Table, groups: Table, consumer_offsets: Table, delay_offsets: Table) -> BrokerState:
    """Returns what a broker's tables say; what is no entry in them is left out."""
    return BrokerState(
        topics=tuple(_topic(name, config) for name, config in sorted(topics.items()) if isinstance(config, dict)),
        groups=tuple(
            BrokerGroup(name, _int_in(config, "retryMaxTimes", 16), config)
            for name, config in sorted(groups.items())
            if isinstance(config, dict)
        ),
        consumer_offsets=_consumer_offsets(consumer_offsets),
        delay_offsets=_offsets(delay_offsets),
    )


def read_state(fs: FileSystem, paths: StorePaths) -> BrokerState:
    """Returns what the files of a broker say, which may be running; raises as :func:`read_topics`."""
    return state_of(
        topics=_table(fs, paths, "topics.json", "topicConfigTable"),
        groups=_table(fs, paths, "subscriptionGroup.json", "subscriptionGroupTable"),
        consumer_offsets=_table(fs, paths, "consumerOffset.json", "offsetTable"),
        delay_offsets=_table(fs, paths, "delayOffset.json", "offsetTable"),
    )


def _topic(name: str, config: dict[str, JsonValue]) -> BrokerTopic:
    counts = [min(max(1, _int_in(config, field, 1)), MOST_QUEUES) for field in ("readQueueNums", "writeQueueNums")]
    return BrokerTopic(name, counts[0], counts[1], _int_in(config, "perm", 6), config)


def _int_in(config: Table, name: str, default: int) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def read_topics(fs: FileSystem, paths: StorePaths) -> dict[str, int]:
    """Topics that the broker knows and how many queues each has, 65,536 at most; none where there is no such file.

    Raises :class:`CorruptionError` if neither the file nor its copy can be read.
    """
    table = _table(fs, paths, "topics.json", "topicConfigTable")
    return {name: _topic(name, config).queue_count for name, config in table.items() if isinstance(config, dict)}


def read_consumer_offsets(fs: FileSystem, paths: StorePaths) -> dict[Subscription, dict[int, int]]:
    """Returns for each topic and group the next offset of each queue; raises as :func:`read_topics`."""
    return _consumer_offsets(_table(fs, paths, "consumerOffset.json", "offsetTable"))


def _consumer_offsets(table: Table) -> dict[Subscription, dict[int, int]]:
    found: dict[Subscription, dict[int, int]] = {}
    for name, queues in sorted(table.items()):
        topic, separator, group = name.rpartition("@")
        if separator and isinstance(queues, dict):
            found[topic, group] = _offsets(queues)
    return found


def _offsets(table: Table) -> dict[int, int]:
    return {
        int(number): offset
        for number, offset in table.items()
        if _QUEUE_ID.fullmatch(number) and isinstance(offset, int) and not isinstance(offset, bool)
    }


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
