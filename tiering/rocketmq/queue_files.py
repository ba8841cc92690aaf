"""The consume queues that a broker keeps on its disk."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiering.errors import InvalidRequestError, NotFoundError
from tiering.format.queue_unit import UNIT_BYTES, UNIT_DTYPE, is_prefill
from tiering.fs import FileSystem
from tiering.hot.consume_queue import MOST_QUEUES, UnitArray
from tiering.hot.topics import validate_foreign_topic
from tiering.paths import StorePaths, base_offset_name, parse_base_offset

_QUEUE_ID = re.compile("0|[1-9][0-9]{0,4}")


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
    """How many units at the start only fill the place of messages that were never in this file."""
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
    """Every queue with a folder, in the order of topic names and queue ids."""
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
