"""The table that an export makes: its plan, columns out of JSON bodies, and its Parquet files.

Files lie below one folder, partitioned by topic and day as Hive names its folders:
``topic=NAME/day=YYYY-MM-DD/part-<task>-<number>.parquet``. Spark, DuckDB and pyarrow read both columns out of the
names, in which every character but letters, digits, ``.``, ``_`` and ``-`` is percent-encoded. The day is that of the
store time in UTC.

What an export is to hold is fixed in its plan before anything of it is written, so that running it again gives the
same. Bodies that are JSON objects can be read into one column of a struct. A body fits if pyarrow's JSON reader takes
it for the schema: fields that the schema does not name are passed over, those that are missing are null, and a value of
another kind, a number out of its range, or anything that is not one object, or is not UTF-8, makes all of the row
null.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore
from tierlog.pipeline.read.partitions import of_topics
from tierlog.pipeline.read.predicate import Predicate, ValueRange
from tierlog.pipeline.read.views import MESSAGES
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.objects.object_store import ObjectStore

COLUMNS = pa.schema([field for field in MESSAGES if field.name not in ("topic", "tier")])
_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_NAME_BYTES = 200
_HELD_BYTES = 256 << 20
"""Rows of one task in memory; beyond it the largest partition becomes a file."""
_GROUP_ROWS = 131_072
_WITH_DICTIONARY = ["tag", "store_id", "properties.key_value.key"]
_HINT = 'name each field and its type, for example "id long, name string"'


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The arguments that decide what is exported; JSON names are those of the fields."""

    cold: str
    stores: tuple[str, ...]
    topics: tuple[str, ...]
    from_ms: int | None
    to_ms: int | None
    json_schema: str | None
    task_bytes: int

    def predicate_of(self, store: PinnedStore) -> Predicate:
        """Returns the messages that are requested of a store."""
        return of_topics(Predicate(stored=ValueRange(self.from_ms, self.to_ms)), store, self.topics)

    def to_json(self) -> dict[str, object]:
        """Returns the JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """A request, the heads that all its tasks read by, and the folder of its table."""

    request: ExportRequest
    table: str
    heads: Mapping[str, bytes]

    @classmethod
    def make(cls, request: ExportRequest, snapshot: ArchiveSnapshot, nonce: str) -> ExportPlan:
        """Returns a plan for what an archive holds now; ``nonce`` makes the table's name one that nobody knows yet."""
        heads = {store_id: store.encoded_head for store_id, store in snapshot.stores.items()}
        return cls(request, f"table-{nonce}", heads)

    @property
    def stores(self) -> dict[str, PinnedStore]:
        """The stores in the order of their ids, each at its head."""
        heads = sorted(self.heads.items())
        return {store_id: PinnedStore(self.request.cold, store_id, head) for store_id, head in heads}

    def encode(self) -> bytes:
        """Returns the plan's object."""
        heads = {store_id: base64.b64encode(head).decode() for store_id, head in self.heads.items()}
        return json.dumps({"request": self.request.to_json(), "table": self.table, "heads": heads}).encode()

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> ExportPlan:
        """Inverse of :meth:`encode`; :class:`CorruptionError` for anything else."""
        try:
            value = json.loads(data)
            request = dict(value["request"])
            for name in ("stores", "topics"):
                request[name] = tuple(request[name])
            heads = {store_id: base64.b64decode(head) for store_id, head in value["heads"].items()}
            return cls(ExportRequest(**request), value["table"], heads)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptionError("this is not the plan of an export", path=path) from error


def schema_of(ddl: str) -> pa.Schema:
    """Returns the Arrow schema of a DDL text, such as ``id long, name string``; needs a running session.

    Raises :class:`InvalidRequestError` for what is none, or has a type that JSON is not read into.
    """
    try:
        fields = StructType.fromDDL(ddl)
    except (PySparkException, ValueError) as error:
        raise InvalidRequestError(f"{ddl[:100]!r} is not a schema", hint=_HINT) from error
    if not isinstance(fields, StructType):
        raise InvalidRequestError(f"{ddl[:100]!r} is one type, not a schema", hint=_HINT)
    schema = to_arrow_schema(fields, timezone="UTC")
    try:
        _read(schema, b"{}\n")
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidRequestError(f"{ddl[:100]!r} has a type that JSON is not read into: {error}") from error
    return schema


def parse_bodies(bodies: pa.Array, schema: pa.Schema) -> pa.Array:
    """Returns a struct for each body, null where it does not fit."""
    lines = [body.replace(b"\n", b" ").replace(b"\r", b" ").strip() for body in bodies.to_pylist()]
    likely = np.array([number for number, line in enumerate(lines) if _is_likely(line)], np.int64)
    found: list[tuple[NDArray[np.int64], pa.Array]] = []
    _parse(lines, likely, schema, found)
    kind = pa.struct(list(schema))
    rows = np.concatenate([rows for rows, _ in found]) if found else np.empty(0, np.int64)
    structs = pa.concat_arrays([part for _, part in found]) if found else pa.array([], kind)
    places = np.full(len(lines), -1, np.int64)
    places[rows] = np.arange(len(rows))
    return structs.take(pa.array(places, mask=places < 0))


def _is_likely(line: bytes) -> bool:
    """Whether the reader may try a line: it takes any bytes for text, at which readers of the table would break off."""
    if line[:1] != b"{" or line[-1:] != b"}":
        return False
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse(
    lines: list[bytes], rows: NDArray[np.int64], schema: pa.Schema, found: list[tuple[NDArray[np.int64], pa.Array]]
) -> None:
    """Adds what the reader takes of some lines; where it refuses, the halves are tried by themselves."""
    if not len(rows):
        return
    try:
        table = _read(schema, b"\n".join(lines[row] for row in rows.tolist()) + b"\n")
    except (pa.ArrowException, NotImplementedError):
        table = None
    if table is not None and table.num_rows == len(rows):  # each line is an object at least, so none is two
        struct = table.to_struct_array()
        found.append((rows, pa.concat_arrays(struct.chunks) if struct.num_chunks else struct))
    elif len(rows) > 1:
        for half in np.array_split(rows, 2):
            _parse(lines, half, schema, found)


def _read(schema: pa.Schema, data: bytes) -> pa.Table:
    return pyarrow.json.read_json(
        io.BytesIO(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


#: Columns of the files: what the view ``messages`` has, but for the topic, which the folder says, and the tier.
@dataclass(frozen=True, slots=True)
class TableFile:
    """A finished file of a table."""

    key: str
    rows: int
    bytes: int


def topic_folder(topic: str) -> str:
    """Returns the folder of a topic; one whose name would be too long for a file system ends in a digest."""
    name = quote(topic, safe="").replace("~", "%7E")
    if len(name) > _MOST_NAME_BYTES:
        name = name[: _MOST_NAME_BYTES - 40] + "~" + hashlib.blake2b(topic.encode(), digest_size=16).hexdigest()
    return f"topic={name}"


def day_folder(day: int) -> str:
    """Returns the folder of a day, counted from 1970-01-01 UTC."""
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
        """Takes rows of the view ``messages``, and columns that stand beside them."""
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
        """Writes what is left; returns all files of the task."""
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
    """Yields the partitions that rows belong to, and which rows of each, None meaning all."""
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
