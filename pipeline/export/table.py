"""A table of Parquet files below one folder, partitioned by topic and day as Hive names its folders.

``topic=NAME/day=YYYY-MM-DD/part-<task>-<number>.parquet``: Spark, DuckDB and pyarrow read both columns out of the
names, in which every character but letters, digits, ``.``, ``_`` and ``-`` is percent-encoded. The day is that of the
store time in UTC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.rows import MESSAGES
from tiering.cold.object_store import ObjectStore

#: Columns of the files: what the view ``messages`` has, but for the topic, which the folder says, and the tier.
COLUMNS = pa.schema([field for field in MESSAGES if field.name not in ("topic", "tier")])
_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_NAME_BYTES = 200
_HELD_BYTES = 256 << 20
"""Rows of one task in memory; beyond it the largest partition becomes a file."""
_GROUP_ROWS = 131_072
_WITH_DICTIONARY = ["tag", "store_id", "properties.key_value.key"]


@dataclass(frozen=True, slots=True)
class TableFile:
    """A finished file of a table."""

    key: str
    rows: int
    bytes: int


def topic_folder(topic: str) -> str:
    """The folder of a topic; one whose name would be too long for a file system ends in a digest."""
    name = quote(topic, safe="").replace("~", "%7E")
    if len(name) > _MOST_NAME_BYTES:
        name = name[: _MOST_NAME_BYTES - 40] + "~" + hashlib.blake2b(topic.encode(), digest_size=16).hexdigest()
    return f"topic={name}"


def day_folder(day: int) -> str:
    """The folder of a day, counted from 1970-01-01 UTC."""
    return f"day={(_EPOCH + timedelta(days=day)).date().isoformat()}"


class TableWriter:
    """Writes the rows of one task; the names of its files depend on the task and its rows alone."""

    def __init__(self, objects: ObjectStore, folder: str, task: int, held_bytes: int = _HELD_BYTES) -> None:
        """``folder``: of the table, a key below which its files lie."""
        self._objects = objects
        self._folder = folder
        self._task = task
        self._held_bytes = held_bytes
        self._held: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._files: list[TableFile] = []

    def add(self, batch: pa.RecordBatch, extra: pa.RecordBatch | None = None) -> None:
        """Take rows of the view ``messages``, and columns that stand beside them."""
        columns = {field.name: batch.column(field.name) for field in COLUMNS}
        if extra is not None:
            columns |= dict(zip(extra.schema.names, extra.columns, strict=True))
        rows = pa.RecordBatch.from_pydict(columns)
        for place, chosen in _by_partition(batch):
            part = rows if chosen is None else rows.filter(chosen)
            self._held.setdefault(place, []).append(part)
            self._sizes[place] = self._sizes.get(place, 0) + part.nbytes
        while sum(self._sizes.values()) > self._held_bytes:
            self._write(max(self._sizes, key=lambda place: (self._sizes[place], place)))

    def finish(self) -> list[TableFile]:
        """Write what is left; all files of the task."""
        for place in sorted(self._held):
            self._write(place)
        return self._files

    def _write(self, place: tuple[str, int]) -> None:
        table = pa.Table.from_batches(self._held.pop(place))
        del self._sizes[place]
        topic, day = place
        number = sum(1 for file in self._files if file.key.startswith(f"{self._partition(topic, day)}/"))
        key = f"{self._partition(topic, day)}/part-{self._task:06d}-{number}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(
            table, sink, compression="zstd", row_group_size=_GROUP_ROWS, use_dictionary=_WITH_DICTIONARY
        )  # fmt: skip
        data = sink.getvalue()
        self._objects.upload(key, _pieces(data))
        self._files.append(TableFile(key, table.num_rows, data.size))

    def _partition(self, topic: str, day: int) -> str:
        return f"{self._folder}/{topic_folder(topic)}/{day_folder(day)}"


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.Array | None]]:
    """The partitions that rows belong to, and which rows of each, None meaning all."""
    topics = batch.column("topic").dictionary_encode()
    days = batch.column("store_time").cast(pa.int64()).to_numpy() // _DAY_US
    first_day = int(days.min())
    codes = topics.indices.to_numpy().astype(np.int64) * (int(days.max()) - first_day + 1) + days - first_day
    for code in np.unique(codes).tolist():
        chosen = codes == code
        row = int(chosen.argmax())
        place = topics[row].as_py(), int(days[row])
        yield place, None if chosen.all() else pa.array(chosen)


def _pieces(data: pa.Buffer) -> Iterable[bytes]:
    for at in range(0, data.size, 8 << 20):
        yield data.slice(at, min(8 << 20, data.size - at)).to_pybytes()
