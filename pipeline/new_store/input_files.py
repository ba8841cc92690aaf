"""Files of JSON lines or Parquet as message columns: which of their columns are topic, body, keys, tag and time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tierlog.pipeline.new_store.two_pass import result_of
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.message.batch import MAX_QUEUES, validate_topic

#: Forms of a time that are no pattern of Spark's.
ISO, EPOCH_S, EPOCH_MS = "iso", "epoch_s", "epoch_ms"
_UNITS = {EPOCH_S: 1_000_000, EPOCH_MS: 1_000}
_LINE = "__line"
#: Whatever the session is set to: a file that cannot be read ends the job, and is not left out.
_WHOLE = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
_SORTED = "store_time"


@dataclass(frozen=True, slots=True)
class InputDescription:
    """The meaning of the files' columns."""

    files: tuple[str, ...]
    is_json: bool
    topic: str | None = None
    topic_column: str | None = None
    body_column: str | None = None
    """None: a line of JSON is the body."""
    key_columns: tuple[str, ...] = ()
    tag_column: str | None = None
    property_columns: tuple[str, ...] = ()
    queue_column: str | None = None
    time_column: str | None = None
    """Store and born time, by which rows are ordered; None: one time for all, in the order that Spark reads them in."""
    time_format: str = ISO

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.topic_column is None):
            raise InvalidRequestError("name the topic by --topic or by --topic-column, by exactly one")
        if self.topic is not None:
            validate_topic(self.topic)
        if self.body_column is None and not self.is_json:
            raise InvalidRequestError("the body of a row of Parquet comes from --body-column")

    @property
    def wanted(self) -> list[str]:
        """Columns that the files have to have."""
        single = (self.topic_column, self.body_column, self.tag_column, self.queue_column, self.time_column)
        return list(dict.fromkeys(name for name in (*single, *self.key_columns, *self.property_columns) if name))


@dataclass(frozen=True, slots=True)
class FileList:
    """The files as they lie there."""

    size_bytes: int
    fingerprint: str
    """Equal for equal names, sizes, times of change and descriptions."""

    @classmethod
    def of(cls, spark: SparkSession, description: InputDescription) -> FileList:
        """Lists the files, without reading any; :class:`InvalidRequestError` if there are none."""
        try:
            listing = spark.read.format("binaryFile").load(list(description.files))
            rows = result_of(listing.select("path", "length", "modificationTime").orderBy("path").collect)
        except AnalysisException as error:
            raise InvalidRequestError(f"no such files: {', '.join(description.files)}") from error
        if not rows:
            raise InvalidRequestError(f"no files: {', '.join(description.files)}")
        text = repr([tuple(map(str, row)) for row in rows]) + repr(astuple(description))
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return cls(sum(row[1] for row in rows), f"rows-{digest}")


def message_columns(spark: SparkSession, description: InputDescription, partitions: int) -> DataFrame:
    """Returns the rows with the columns of the view ``messages``, in the order that they will have in the log.

    Raises :class:`InvalidRequestError` for a column that is not there or of a type that cannot be meant.
    """
    frame = _read(spark, description)
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name in description.wanted:
        if name not in types:
            raise InvalidRequestError(f"there is no column {name!r}", hint=f"there are {', '.join(sorted(types))}")
    columns = [_body(description, types)]
    if description.topic_column is not None:
        columns.append(sql.col(description.topic_column).cast("string").alias("topic"))
    if description.key_columns:
        columns.append(_keys(description, types))
    if description.tag_column is not None:
        columns.append(sql.col(description.tag_column).cast("string").alias("tag"))
    if description.property_columns:
        columns.append(_properties(description.property_columns))
    if description.queue_column is not None:
        columns.append(sql.col(description.queue_column).cast("int").alias("queue_id"))
    if description.time_column is None:
        return frame.select(*columns).coalesce(partitions)
    columns.append(_time(description, types[description.time_column]).alias(_SORTED))
    return frame.select(*columns).repartitionByRange(partitions, _SORTED).sortWithinPartitions(_SORTED)


def _read(spark: SparkSession, description: InputDescription) -> DataFrame:
    try:
        reader = spark.read.options(**_WHOLE)
        if not description.is_json:
            return reader.parquet(*description.files)
        lines = reader.text(list(description.files)).where("value <> ''").withColumnRenamed("value", _LINE)
    except AnalysisException as error:
        raise InvalidRequestError(f"these files cannot be read: {str(error).splitlines()[0]}") from error
    if not description.wanted:
        return lines
    fields = StructType([StructField(name, StringType()) for name in description.wanted])
    parsed = sql.from_json(sql.col(_LINE), fields, {"mode": "FAILFAST"})
    return lines.select(_LINE, parsed.alias("parsed")).select(_LINE, "parsed.*")


def _body(description: InputDescription, types: dict[str, DataType]) -> Column:
    name = description.body_column or _LINE
    if not isinstance(types[name], StringType | BinaryType):
        raise InvalidRequestError(f"column {name!r} is {types[name].simpleString()}, a body is text or bytes")
    return sql.col(name).alias("body")


def _keys(description: InputDescription, types: dict[str, DataType]) -> Column:
    """Returns the keys of all columns, those that are empty left out; a JSON array is several."""
    lists = []
    for name in description.key_columns:
        column = sql.col(name)
        if isinstance(types[name], ArrayType):
            lists.append(column.cast("array<string>"))
        elif description.is_json:
            is_list = column.startswith("[")
            several = sql.coalesce(sql.from_json(column, "array<string>"), sql.array(column))  # a key may begin with [
            lists.append(sql.when(is_list, several).otherwise(sql.array(column)))
        else:
            lists.append(sql.array(column.cast("string")))
    nothing = sql.array().cast("array<string>")
    joined = sql.concat(*(sql.coalesce(each, nothing) for each in lists))
    return sql.array_distinct(sql.filter(joined, lambda key: sql.coalesce(sql.length(key), sql.lit(0)) > 0)).alias(
        "keys"
    )


def _properties(names: Sequence[str]) -> Column:
    pairs = [part for name in names for part in (sql.lit(name), sql.col(name).cast("string"))]
    return sql.map_filter(
        sql.create_map(*pairs), lambda _, value: sql.coalesce(sql.length(value), sql.lit(0)) > 0
    ).alias("properties")


def _time(description: InputDescription, kind: DataType) -> Column:
    assert description.time_column is not None
    column, form = sql.col(description.time_column), description.time_format
    if isinstance(kind, TimestampType):
        return column
    if form in _UNITS:
        return sql.timestamp_micros((column.cast("decimal(30,6)") * _UNITS[form]).cast("bigint"))
    if isinstance(kind, NumericType):
        raise InvalidRequestError(
            f"column {description.time_column!r} is {kind.simpleString()}, and nobody says of which unit",
            hint=f"give --time-format {EPOCH_S} or {EPOCH_MS}",
        )
    if not isinstance(kind, StringType):
        return column.cast("timestamp")
    return sql.to_timestamp(column) if form == ISO else sql.to_timestamp(column, form)


def queues_of(given: int) -> int:
    """Returns over how many queues rows without one are spread; :class:`InvalidRequestError` for what no topic has."""
    if not 1 <= given <= MAX_QUEUES:
        raise InvalidRequestError(f"a topic has 1 to {MAX_QUEUES} queues, not {given}")
    return given
