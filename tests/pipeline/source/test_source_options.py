"""Every option of the data source is understood or refused."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.read.views import by_key, message_batch, projected
from tierlog.pipeline.source import TierlogDataSource
from tierlog.pipeline.source.options import SourceOptions, SourceUse, View, option_names
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError

#: What Spark 4.3 hands over for CREATE TABLE … USING tierlog; reading such a table it hands over nothing.
TABLE = "a table of the catalogue cannot be read: Spark gives a source in Python none of its options; use CREATE TEMP"
DOCS = Path(__file__).parents[3] / "docs" / "pipeline.md"


def parse(**given: str) -> SourceOptions:
    return SourceOptions.parse(given, SourceUse.READ)


def test_names_count_without_their_case_and_those_of_spark_are_passed_over() -> None:
    found = parse(COLD="file:///a/../b/", viEw="KEYS", Partition_Bytes="1000", checkpointLocation="x", queryName="q")
    assert found == SourceOptions(cold="file:///b", view=View.KEYS, partition_bytes=1000)


def test_a_path_is_the_archive() -> None:
    assert parse(path="s3://bucket/prefix/") == SourceOptions(cold="s3://bucket/prefix")
    assert parse(path="s3://bucket/prefix/", cold="s3://bucket/prefix").cold == "s3://bucket/prefix"
    with pytest.raises(InvalidRequestError, match="name different archives"):
        parse(path="s3://bucket/other", cold="s3://bucket/prefix")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cold": "http://x"}, "option 'cold': 'http://x' is not the URL of an object store"),
        ({"path": "tmp/x"}, "option 'cold': 'tmp/x' is not the URL of an object store"),
        ({"url": "ftp://x"}, "option 'url': "),
        ({"url": "http://user:secret@host"}, "option 'url': "),
        ({"cold": "file:///x", "partition_bytes": "0"}, "option 'partition_bytes': '0' is not a positive number"),
        ({"cold": "file:///x", "partition_bytes": "64m"}, "option 'partition_bytes': '64m' is not a positive number"),
        ({"cold": "file:///x", "store": ""}, "option 'store': "),
        ({"cold": "file:///x", "veiw": "keys"}, "there is no option 'veiw'; do you mean 'view'"),
        ({"cold": "file:///x", "start": "latest"}, "option 'start' has no meaning here"),
        ({"store": "a"}, "neither an archive nor a service is named"),
        ({"owner": "root", "cold": "file:///x"}, "there is no option 'owner'"),
        ({"owner": "root", "provider": "tierlog", "cold": "file:///x", "option.cold": "file:///x"}, TABLE),
        ({}, "instead of a table CREATE TEMPORARY VIEW name USING tierlog OPTIONS"),
        ({"cold": "file:///x", "key": ""}, "option 'key': "),
        ({"cold": "file:///x", "key": "[1]"}, "option 'key': '[1]' begins as a list"),
        ({"cold": "file:///x", "tag": "[]"}, "option 'tag': '[]' begins as a list"),
        ({"cold": "file:///x", "from": "yesterday"}, "option 'from': cannot read the time 'yesterday'"),
        ({"cold": "file:///x", "from": "2000", "to": "2000"}, "nothing lies between 2000 and 2000"),
        (
            {"cold": "file:///x", "from": "2026-01-02", "to": "2026-01-01"},
            "nothing lies between 2026-01-02 and 2026-01-01",
        ),
        ({"cold": "file:///x", "columns": "body,body"}, "option 'columns': a name is there twice"),
    ],
)
def test_a_wrong_value_is_named_with_its_option(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        SourceOptions.parse(given, SourceUse.READ)
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)


def test_what_is_asked_for_is_one_value_or_a_list() -> None:
    found = parse(cold="file:///b", topic="a, b", key="k,1", tag='["x", "y"]', to="2026-03-01", columns="key ,topic")
    assert found.topics == {"a", "b"}
    assert (found.keys, found.tags) == (frozenset({"k,1"}), frozenset({"x", "y"}))
    assert found.columns == ("key", "topic")
    assert (found.from_ms, found.to_ms) == (None, 1_772_323_200_000)


PARTS = [
    StructType().add("body", BinaryType()).add("topic", StringType()),
    StructType().add("keys", ArrayType(StringType(), True)).add("store_time", TimestampType(), False),
    StructType().add("properties", MapType(StringType(), StringType(), True)),
]


@pytest.mark.parametrize("schema", PARTS)
@pytest.mark.parametrize("make", ["reader", "streamReader"])
def test_a_schema_may_be_a_part_of_the_views(schema: StructType, make: str, tmp_path: Path) -> None:
    cold = f"file://{tmp_path}/cold"
    with contextlib.closing(Store.open(tmp_path / "s", settings=tiny_settings(), cold_url=cold)) as engine:
        engine.archive()
    getattr(TierlogDataSource({"cold": cold}), make)(schema)
    batch = by_key(message_batch([]))
    (found,) = projected(iter([batch]), schema)
    assert found.schema == to_arrow_schema(schema, timezone="UTC")


@pytest.mark.parametrize(
    "schema",
    [
        StructType().add("topic", LongType()),
        StructType().add("topics", StringType()),
        StructType().add("topic", StringType()).add("topic", StringType()),
        StructType().add("key", StringType()),
    ],
)
def test_columns_are_not_made_up(schema: StructType) -> None:
    source = TierlogDataSource({"cold": "file:///x"})
    with pytest.raises(InvalidRequestError, match="view messages has other columns"):
        source.reader(schema)
    with pytest.raises(InvalidRequestError, match="view messages has no column 'key'"):
        TierlogDataSource({"cold": "file:///x", "columns": "topic,key"}).schema()


def test_the_documentation_has_every_option_of_a_batch_read() -> None:
    section = DOCS.read_text().split("## Reading")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(option_names(SourceUse.READ))
