"""Every option of the data source is understood or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StructType

from pipeline.source import TierlogDataSource
from pipeline.source.options import SourceOptions, Use, View, option_names
from tiering.errors import InvalidRequestError

DOCS = Path(__file__).parents[2] / "docs" / "pipeline.md"


def parse(**given: str) -> SourceOptions:
    return SourceOptions.parse(given, Use.READ)


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
        ({"path": "/tmp/x"}, "option 'cold': '/tmp/x' is not the URL of an object store"),
        ({"url": "ftp://x"}, "option 'url': "),
        ({"url": "http://user:secret@host"}, "option 'url': "),
        ({"cold": "file:///x", "partition_bytes": "0"}, "option 'partition_bytes': '0' is not a positive number"),
        ({"cold": "file:///x", "partition_bytes": "64m"}, "option 'partition_bytes': '64m' is not a positive number"),
        ({"cold": "file:///x", "store": ""}, "option 'store': "),
        ({"cold": "file:///x", "veiw": "keys"}, "there is no option 'veiw'; do you mean 'view'"),
        ({"cold": "file:///x", "start": "latest"}, "option 'start' has no meaning here"),
        ({"store": "a"}, "neither an archive nor a service is named"),
    ],
)
def test_a_wrong_value_is_named_with_its_option(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        SourceOptions.parse(given, Use.READ)
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)


def test_columns_are_not_made_up() -> None:
    source = TierlogDataSource({"cold": "file:///x"})
    with pytest.raises(InvalidRequestError, match="view messages has other columns"):
        source.reader(StructType().add("topic", LongType()))


def test_the_documentation_has_every_option_of_a_batch_read() -> None:
    section = DOCS.read_text().split("## Reading")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(option_names(Use.READ))
