"""Runs plain functions on the executors, a Spark task for each argument."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tiering.errors import ObjectNotFoundError, StoreError

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """In place of a result: what trying again would not change."""

    text: str
    is_gone: bool
    """Whether an object is not there: somebody may have removed it since the task was planned."""


def run_tasks(spark: SparkSession, function: Callable[[A], R], arguments: Sequence[A]) -> list[R | TaskFailure]:
    """What ``function``, which travels with its arguments, makes of each of them, in their order.

    A :class:`StoreError` that is not retryable is a :class:`TaskFailure`. Others fail the task, which Spark tries again
    as often as it is told to; raises :class:`StoreError` if it gives up.
    """
    if not arguments:
        return []
    tasks = spark.sparkContext.parallelize(arguments, len(arguments))
    try:
        return tasks.map(_Caught(function)).collect()
    except Py4JJavaError as error:
        raise StoreError(
            f"a task failed for good: {_reason(error)}", hint="the log of its executor tells more"
        ) from error


def scratch_folder(job: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for a task on the disks that Spark gives its executor, gone when the task leaves it."""
    disks = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return tempfile.TemporaryDirectory(prefix=f"tierlog-{job}-", dir=disks[0] or None)


class _Caught(Generic[A, R]):
    def __init__(self, function: Callable[[A], R]) -> None:
        self._function = function

    def __call__(self, argument: A) -> R | TaskFailure:
        try:
            return self._function(argument)
        except StoreError as error:
            if error.retryable:
                raise
            return TaskFailure(" ".join(str(error).split("\n")), isinstance(error, ObjectNotFoundError))


def _reason(error: Py4JJavaError) -> str:
    """The last line of the Python traceback inside a Java stack trace, if there is one."""
    lines = [line for line in str(error.java_exception.getMessage()).splitlines() if line.strip()]
    python = [line for line in lines if line[:1].isalpha() and ": " in line and "Error" in line.split(": ")[0]]
    return (python or lines or [str(error)])[-1].strip()
