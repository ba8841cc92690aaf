"""The views as Arrow and as Spark know them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.support.stores.hot_stores import record
from tierlog.pipeline.read.views import (
    KEYED,
    KEYED_SPARK,
    LAST_SHOWN_MS,
    MESSAGES,
    MESSAGES_SPARK,
    by_key,
    message_batch,
)
from tierlog.tiering.base.types import Tier
from tierlog.tiering.message.stored_message import StoredMessage


def batch_of(*texts: bytes) -> pa.RecordBatch:
    records = [record(properties_text=text, queue_offset=number) for number, text in enumerate(texts)]
    return message_batch([StoredMessage(each, "store", Tier.COLD) for each in records])


@pytest.mark.parametrize(("arrow", "spark"), [(MESSAGES, MESSAGES_SPARK), (KEYED, KEYED_SPARK)])
def test_batches_have_the_schema_that_spark_expects_of_a_data_source(arrow: pa.Schema, spark: StructType) -> None:
    assert arrow.equals(to_arrow_schema(spark, timezone="UTC"))


def test_the_view_keys_has_a_row_for_whatever_a_message_is_found_by() -> None:
    batch = batch_of(
        b"KEYS\x01a b a\x02", b"", b"UNIQ_KEY\x01u v\x02KEYS\x01c\x02", b"UNIQ_KEY\x01d\x02KEYS\x01e d\x02x\x01y",
        b"UNIQ_KEY\x01f\x02",
    )  # fmt: skip
    rows = by_key(batch)
    assert rows.schema.equals(KEYED)
    found = list(zip(rows.column("queue_offset").to_pylist(), rows.column("key").to_pylist(), strict=True))
    assert found == [(0, "a"), (0, "b"), (2, "u v"), (2, "c"), (3, "d"), (3, "e"), (4, "f")]
    assert rows.column("keys").to_pylist()[0] == ["a", "b"]
    assert dict(rows.column("properties").to_pylist()[4]) == {"UNIQ_KEY": "d", "x": "y"}


def test_messages_without_keys_have_no_row_in_the_view_keys() -> None:
    assert by_key(batch_of(b"", b"TAGS\x01t\x02")).num_rows == 0
    assert by_key(batch_of()).num_rows == 0


def test_a_clock_beyond_all_calendars_is_shown_as_the_last_instant() -> None:
    made = message_batch([StoredMessage(record(born_ms=1 << 62), "store", Tier.COLD)])
    assert made.column("born_time").cast(pa.int64()).to_pylist() == [1000 * LAST_SHOWN_MS]
