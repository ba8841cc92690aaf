"""The batch read of the data source: rows, filters and errors in a real session."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.source import TierlogDataSource
from service.engine import Engine
from tests.support.engines import tiny_settings
from tiering.batch import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_archived_message_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    cold = f"file://{tmp_path}/cold"
    with contextlib.closing(
        Engine.open(tmp_path / "store", cold_url=cold, store_id="s", settings=tiny_settings())
    ) as engine:
        engine.append([Message("orders", b"%d" % number, [f"k{number % 7}", "all"]) for number in range(300)])
        engine.archive(everything=True)
    spark.dataSource.register(TierlogDataSource)
    rows = spark.read.format("tierlog").option("cold", cold).load().collect()
    assert sorted(int(row.body) for row in rows) == [*range(300)]
    keys = spark.read.format("tierlog").option("view", "keys").load(cold)
    assert keys.where("key = 'k3'").count() == len(range(3, 300, 7))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colt": "file:///x"}, "there is no option 'colt'; do you mean 'cold'?"),
        ({}, "neither an archive nor a service is named"),
        ({"cold": "file:///x", "view": "rows"}, "option 'view': 'rows' is no view"),
        ({"cold": "file://{tmp}"}, "no archive of any store here"),
    ],
)
def test_a_wrong_option_is_one_error_on_the_driver(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    from pyspark.errors import AnalysisException

    spark.dataSource.register(TierlogDataSource)
    options = {name: text.format(tmp=tmp_path) for name, text in options.items()}
    with pytest.raises(AnalysisException) as raised:
        spark.read.format("tierlog").options(**options).load().collect()
    assert words in str(raised.value)
