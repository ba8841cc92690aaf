"""Runs the data source and every job, one after the other, on the archive of the sample (``make spark-demo``).

``python -m docs.tools.spark_demo FOLDER`` reads ``FOLDER/cold`` and puts what it makes beside it. It may be run again:
every job finds what it has done.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tierlog.pipeline.jobs import erase, expire, export, ingest, merge, rebuild, verify
from tierlog.pipeline.jobs.job import Job
from tierlog.pipeline.source import TierlogDataSource
from tierlog.tiering.objects.urls import canonical_url

TOPIC = "shop"
_STORE = "history"
_FOLDERS = ("cold", "history", "export")
_SMALL = ("--segment-bytes", "262144", "--index-slots", "1000", "--index-items", "4000")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything; returns the exit code of the first job that fails."""
    parser = argparse.ArgumentParser(prog="python -m docs.tools.spark_demo", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(argv).folder
    sample, history, table = (canonical_url(f"file://{(folder / name).absolute()}") for name in _FOLDERS)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the first python3 of the path
    spark = (
        SparkSession.builder.appName("tierlog demo")
        .master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        key = _read(spark, sample)
        return _run_jobs(sample, history, table, key)
    finally:
        spark.stop()


def _read(spark: SparkSession, url: str) -> str:
    """Reads the archive as Spark tables; returns the key that most messages have."""
    spark.dataSource.register(TierlogDataSource)
    source = spark.read.format("tierlog").option("cold", url)
    _title("spark.read.format('tierlog'): messages by queue")
    source.load().groupBy("topic", "queue_id").count().orderBy("topic", "queue_id").show()
    keyed = source.option("view", "keys").load()
    ((key, _),) = keyed.groupBy("key").count().orderBy("count", "key", ascending=False).limit(1).collect()
    _title(f"the first messages of {key}, found through the key index")
    found = source.option("key", key).load().orderBy("store_time", "physical_offset")
    found.selectExpr("store_time", "queue_id", "queue_offset", "decode(body, 'utf-8') as body").show(5, 100)
    return str(key)


def _run_jobs(sample: str, history: str, table: str, key: str) -> int:
    of_sample, of_history = ("--cold", sample), ("--cold", history)
    exported = table.removeprefix("file://")
    steps: tuple[tuple[Job, Sequence[str]], ...] = (
        (verify.JOB, of_sample),
        (export.JOB, (*of_sample, "--topic", TOPIC, "--out", table)),
        (ingest.JOB, (
            *of_history, "--store", _STORE, "--parquet", f"{exported}/table-*", "--topic-column", "topic",
            "--body-column", "body", "--key-column", "keys", "--tag-column", "tag", "--time-column", "born_time",
            *_SMALL,
        )),
        (merge.JOB, of_history),
        (rebuild.JOB, (*of_sample, "--slots", "2000")),
        (erase.JOB, (*of_sample, TOPIC, "--key", key)),
        (expire.JOB, (*of_history, "--older-than", "1d", "--no-volume", "--dry-run")),
        (verify.JOB, of_sample),
        (verify.JOB, of_history),
    )  # fmt: skip
    for job, arguments in steps:
        _title(f"python -m tierlog.pipeline.jobs.{job.name} {' '.join(arguments)}")
        code = job.main(arguments)
        if code:
            return code
    return 0


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
