"""How far the tasks of a Spark job are, while the driver waits for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pyspark.sql import SparkSession

from pipeline.job import Progress
from tiering.clock import Clock

_INTERVAL_S = 0.5


@contextlib.contextmanager
def following(spark: SparkSession, clock: Clock, progress: Progress, group: str) -> Iterator[None]:
    """Tell ``progress`` of all tasks that this thread has run inside; ``group`` is no other job's."""
    context, ended = spark.sparkContext, threading.Event()
    context.setJobGroup(group, group)

    def watch() -> None:
        while not clock.wait(ended, _INTERVAL_S):
            _tell(spark, progress, group)

    watcher = threading.Thread(target=watch, name="tierlog-following", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None takes it away
        _tell(spark, progress, group)


def _tell(spark: SparkSession, progress: Progress, group: str) -> None:
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
