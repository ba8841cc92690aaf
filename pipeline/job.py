"""What all jobs have in common: a session, progress on a terminal, a JSON summary as the last line, exit codes.

A job runs as ``python -m pipeline.jobs.NAME …``, which makes a local session unless ``--master`` says otherwise, or by
``spark-submit``, whose session it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from tiering.clock import Clock, SystemClock
from tiering.errors import InvalidRequestError, NotFoundError, ObjectNotFoundError, StoreError
from tiering.progress import bar
from tiering.randomness import Randomness, SystemRandomness
from tiering.service_access import TOKEN, TOKEN_FILE

DONE, FINDINGS, WRONG_USE, FAILED = 0, 1, 2, 3
#: Settings of Spark that become environment variables of a driver or of executors.
_SHOWN = ("spark.executorEnv", "spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
Progress = Callable[[int, int], None]
Summary = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job is given beside its arguments. Driver only."""

    spark: SparkSession
    progress: Progress
    clock: Clock
    randomness: Randomness


@dataclass(frozen=True, slots=True)
class Job:
    """A command of ``pipeline/jobs``.

    ``body`` returns the summary; an entry ``"findings"`` above 0 makes the exit code 1. It raises a
    :class:`StoreError` for everything a user can do something about.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    body: Callable[[JobContext, argparse.Namespace], Summary]
    unit: str = " parts"
    """What the progress counts."""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run to the end; the exit code. 0 done, 1 findings or nothing there, 2 wrong use, 3 failed."""
        parser = argparse.ArgumentParser(prog=f"python -m pipeline.jobs.{self.name}", description=self.help)
        self.add_arguments(parser)
        parser.add_argument("--master", metavar="URL", help="Spark master; spark-submit's, else local[*]")
        arguments = parser.parse_args(argv)
        try:
            with _session(f"tierlog {self.name}", arguments.master) as spark, bar(self.unit) as progress:
                _refuse_shown_token(spark)
                summary = self.body(JobContext(spark, progress, SystemClock(), SystemRandomness()), arguments)
        except StoreError as error:
            print(f"{self.name}: " + " ".join(str(error).split("\n")), file=sys.stderr, flush=True)
            return _exit_code(error)
        print(json.dumps(summary), flush=True)
        return FINDINGS if summary.get("findings") else DONE


def _exit_code(error: StoreError) -> int:
    if isinstance(error, InvalidRequestError):
        return WRONG_USE
    if isinstance(error, NotFoundError) and not isinstance(error, ObjectNotFoundError):
        return FINDINGS
    return FAILED


def _refuse_shown_token(spark: SparkSession) -> None:
    """Raise :class:`InvalidRequestError` for a token among Spark's own settings, where many can read it."""
    for setting in _SHOWN:
        if spark.conf.get(f"{setting}.{TOKEN}", None):
            raise InvalidRequestError(
                f"a token in {setting}.{TOKEN} is shown in arguments of processes and in Spark's settings",
                hint=f"put it into a file on driver and executors that {setting}.{TOKEN_FILE} names",
            )


@contextlib.contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    """The session that is there, or a new one that ends with the job.

    Raises :class:`InvalidRequestError` for Spark Connect.
    """
    if is_remote() or "SPARK_REMOTE" in os.environ:
        raise InvalidRequestError(
            "a job runs functions on executors, which Spark Connect does not offer",
            hint="run it by spark-submit, or without SPARK_REMOTE; the data source works with Spark Connect",
        )
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.appName(name)
    if "SPARK_ENV_LOADED" not in os.environ and (master or "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the first python3 of the path
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_ENV_LOADED" not in os.environ:  # spark-submit sets it, and its own master
        builder = builder.master("local[*]").config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
