"""Runs the tasks of an erasure or expiry on Spark, and the arguments that both jobs take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from pipeline.grace import add_grace_argument
from pipeline.removal.tasks import FanOut
from pipeline.tasks import TaskFailure, run_tasks
from tiering.errors import StoreError

_TASKS_A_CORE = 8
A = TypeVar("A")
R = TypeVar("R")


def add_archive_arguments(parser: argparse.ArgumentParser) -> None:
    """Which archive."""
    parser.add_argument("--cold", metavar="URL", required=True, help="the archive: file:///dir, s3://bucket/prefix")
    parser.add_argument("--store", metavar="ID", help="the store, if several lie there")
    parser.add_argument(
        "--no-volume", action="store_true", help="no volume of the store exists: it was written in bulk, or is lost"
    )
    add_grace_argument(parser)


def most_at_once(spark: SparkSession) -> int:
    """How many segments go into one commit: enough for every core to be busy, few enough to be done again."""
    return _TASKS_A_CORE * max(1, spark.sparkContext.defaultParallelism)


def on_executors(spark: SparkSession) -> FanOut:
    """Runs each argument as a task; :class:`StoreError` if one fails for good."""

    def run(function: Callable[[A], R], arguments: Sequence[A]) -> list[R]:
        results: list[R] = []
        for result in run_tasks(spark, function, arguments):
            if isinstance(result, TaskFailure):
                raise StoreError(f"a task failed: {result.text}")
            results.append(result)
        return results

    return run
