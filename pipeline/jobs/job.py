"""A job and what jobs share: a session, progress, a JSON summary as the last line, exit codes, tasks on executors.

A job runs as ``python -m tierlog.pipeline.jobs.NAME …``, which makes a local session unless ``--master`` says
otherwise, or by ``spark-submit``, whose session it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from tierlog.pipeline.removal.tasks import FanOut
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, ObjectNotFoundError, StoreError
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.progress_bar import bar
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.remote.endpoint import TOKEN, TOKEN_FILE

A = TypeVar("A")
R = TypeVar("R")
_HOUR_MS = 3_600_000
_INTERVAL_S = 0.5
_TASKS_A_CORE = 8
#: Exit codes.
DONE, FINDINGS, WRONG_USE, FAILED = 0, 1, 2, 3
#: Settings of Spark that become environment variables of a driver or of executors.
_SHOWN = ("spark.executorEnv", "spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
Progress = Callable[[int, int], None]
Summary = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobContext:
    """The session, progress, clock and randomness of a job. Driver only."""

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
        """Runs to the end; returns the exit code: 0 done, 1 findings or nothing there, 2 wrong use, 3 failed."""
        parser = argparse.ArgumentParser(prog=f"python -m tierlog.pipeline.jobs.{self.name}", description=self.help)
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
    """Raises :class:`InvalidRequestError` for a token among Spark's own settings, where many can read it."""
    for setting in _SHOWN:
        if spark.conf.get(f"{setting}.{TOKEN}", None):
            raise InvalidRequestError(
                f"a token in {setting}.{TOKEN} is shown in arguments of processes and in Spark's settings",
                hint=f"put it into a file on driver and executors that {setting}.{TOKEN_FILE} names",
            )


@contextlib.contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    """Gives the session that is there, or a new one that ends with the job.

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
    _require_java()
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


def _require_java() -> None:
    """Raises :class:`InvalidRequestError` where Spark would only say that its gateway exited."""
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise InvalidRequestError(
            "Spark needs Java, of which there is none on the path",
            hint="install Java 17 or newer, or name it by JAVA_HOME; `tierlog adopt` needs neither Spark nor Java",
        )


# ------------------------------------------------------------------------------------- arguments of several jobs


def add_grace_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--grace-hours``, for jobs that name objects; see :func:`grace_ms_of`."""
    parser.add_argument(
        "--grace-hours", type=float, default=ColdOptions().grace_ms / _HOUR_MS, metavar="N",
        help="the stores' cold.grace_ms; what is stored is committed within a quarter of it (%(default)s)",
    )  # fmt: skip


def grace_ms_of(arguments: argparse.Namespace) -> int:
    """Returns the grace period of an archive's stores in ms; :class:`InvalidRequestError` if it is not positive.

    What nobody names is swept a grace period after it was stored, so each commit comes within a quarter of it.
    """
    grace_ms = int(arguments.grace_hours * _HOUR_MS)
    if grace_ms <= 0:
        raise InvalidRequestError("the grace period is longer than nothing")
    return grace_ms


def add_archive_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which archive an erasure or expiry changes, and what its commits need to know of its stores."""
    parser.add_argument("--cold", metavar="URL", required=True, help="the archive: file:///dir, s3://bucket/prefix")
    parser.add_argument("--store", metavar="ID", help="the store, if several lie there")
    parser.add_argument(
        "--no-volume", action="store_true", help="no volume of the store exists: it was written in bulk, or is lost"
    )
    add_grace_argument(parser)


# ------------------------------------------------------------------------------------------- tasks on executors


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A failure in place of a result: one that trying again would not change."""

    text: str
    is_gone: bool
    """Whether an object is not there: somebody may have removed it since the task was planned."""


def run_tasks(spark: SparkSession, function: Callable[[A], R], arguments: Sequence[A]) -> list[R | TaskFailure]:
    """Runs ``function``, which travels with its arguments, as a Spark task for each; returns the results in order.

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
    """Returns a folder for a task on the disks that Spark gives its executor, gone when the task leaves it."""
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
    """Returns the last line of the Python traceback inside a Java stack trace, if there is one."""
    lines = [line for line in str(error.java_exception.getMessage()).splitlines() if line.strip()]
    python = [line for line in lines if line[:1].isalpha() and ": " in line and "Error" in line.split(": ")[0]]
    return (python or lines or [str(error)])[-1].strip()


def most_at_once(spark: SparkSession) -> int:
    """Returns how many segments go into one commit: enough for every core to be busy, few enough to be done again."""
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


@contextlib.contextmanager
def task_progress(spark: SparkSession, clock: Clock, progress: Progress, group: str) -> Iterator[None]:
    """Tells ``progress`` how far all tasks are that this thread has run inside; ``group`` is no other job's."""
    context, ended = spark.sparkContext, threading.Event()
    context.setJobGroup(group, group)

    def watch() -> None:
        while not clock.wait(ended, _INTERVAL_S):
            _report(spark, progress, group)

    watcher = threading.Thread(target=watch, name="tierlog-following", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None takes it away
        _report(spark, progress, group)


def _report(spark: SparkSession, progress: Progress, group: str) -> None:
    tracker = spark.sparkContext.statusTracker()
    done = of = 0
    for job in tracker.getJobIdsForGroup(group):
        found = tracker.getJobInfo(job)
        for stage in found.stageIds if found is not None else ():
            info = tracker.getStageInfo(stage)
            if info is not None:  # of a stage that was skipped nothing is known
                done, of = done + info.numCompletedTasks, of + info.numTasks
    if of:
        progress(done, of)
