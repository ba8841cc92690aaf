"""How fast does Spark read an archive, with one core and with two, and beside the same data as Parquet?

An archive of ``--mib`` MiB of records (bodies are JSON of about 200 bytes, two keys, a tag, 16 topics) is made by the
engine in a folder below ``--work``, or found there from an earlier run. Then, each in a process of its own, with
``local[1]`` and ``local[2]``, after a warm-up of the same kind on one topic:

* **frames**: every message as an Arrow batch on the executors, nothing handed to Spark;
* **export**: the job, a table of Parquet files in a new folder;
* **scan**: ``spark.read.format("tierlog")``, all rows counted and their bodies' lengths summed;
* **key**: the same source, view ``keys``, one topic and one key out of the middle, ``--look-ups`` times, the median;
* **Parquet scan** and **Parquet key**: the same questions to what was exported, read by Spark itself.

Printed for each: seconds, messages a second, MiB of records a second, the ratio of two cores to one, and of Parquet's
time to the archive's. The page cache is warm.

``PYTHONPATH=. python benchmarks/spark_export.py [--mib 2048] [--look-ups 5] [--work DIR]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tierlog.tiering.message.batch import Message

TOPICS = 16
_BATCH = 2_000
_WORDS = ("created", "paid", "packed", "shipped", "returned", "refunded", "cancelled", "delivered")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--look-ups", type=int, default=5)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments)), flush=True)
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.work = arguments.work or Path(scratch)
        messages = made_archive(arguments.work, arguments.mib)
        report(arguments, messages)


def made_archive(work: Path, mib: int) -> int:
    """Make the archive unless it is there; its number of messages."""
    from tierlog.service.config.settings import Settings
    from tierlog.service.engine.store import Store

    note = work / "made.json"
    if note.exists():
        found = json.loads(note.read_text())
        if found["mib"] != mib:
            sys.exit(f"{work} holds an archive of {found['mib']} MiB")
        return int(found["messages"])
    work.mkdir(parents=True, exist_ok=True)
    segment_bytes = min(256, max(16, mib // 4)) << 20
    settings = Settings.load(
        overrides={"hot.segment_bytes": segment_bytes, "hot.default_queues": 4, "advertise": "127.0.0.1:10911",
                   "hot.disk_max_used_percent": 100, "hot.disk_full_percent": 100}
    )  # fmt: skip
    begun = time.perf_counter()
    engine = Store.open(work / "store", settings=settings, cold_url=f"file://{work}/cold", store_id="bench")
    chance = np.random.default_rng(1)
    messages = 0
    while int(str(engine.stats()["appended_bytes"])) < mib << 20:
        for _ in range(10):
            engine.append(batch(messages, chance))
            messages += _BATCH
    engine.archive(everything=True)
    engine.close()
    shutil.rmtree(work / "store")
    note.write_text(json.dumps({"mib": mib, "messages": messages}))
    print(f"{messages:,} messages archived in {time.perf_counter() - begun:.0f} s", flush=True)
    return messages


def batch(first: int, chance: np.random.Generator) -> list[Message]:
    words = chance.integers(0, len(_WORDS), (_BATCH, 12)).tolist()
    amounts = chance.integers(0, 1_000_000, _BATCH).tolist()
    return [
        Message(
            f"topic-{number % TOPICS:02d}",
            b'{"id": %d, "customer": %d, "amount": %d, "note": "%s"}'
            % (number, amount % 50_000, amount, " ".join(_WORDS[word] for word in line).encode()),
            [f"order-{number}", f"customer-{amount % 50_000}"],
            _WORDS[line[0]],
        )
        for number, line, amount in zip(range(first, first + _BATCH), words, amounts, strict=True)
    ]


def report(arguments: argparse.Namespace, messages: int) -> None:
    whats = ("frames", "export", "scan", "key", "Parquet scan", "Parquet key")
    found = {(what, cores): run(arguments, what, cores) for cores in (1, 2) for what in whats}
    print(f"\n{messages:,} messages, {arguments.mib} MiB of records, {os.cpu_count()} cores")
    each = f"{'messages/s':>14}{'MiB/s':>8}"
    print(f"{'':14}{'1 core':>10}{each}{'2 cores':>10}{each}{'scaling':>9}")
    for what in whats:
        line = f"{what:14}"
        for cores in (1, 2):
            seconds = found[what, cores]["seconds"]
            line += f"{seconds:9.2f}s"
            line += f"{'':22}" if "key" in what else f"{messages / seconds:14,.0f}{arguments.mib / seconds:8.0f}"
        print(f"{line}{found[what, 1]['seconds'] / found[what, 2]['seconds']:8.2f}x")
    for what in ("scan", "key"):
        ratios = [found[f"Parquet {what}", cores]["seconds"] / found[what, cores]["seconds"] for cores in (1, 2)]
        print(f"Parquet's {what} takes {ratios[0]:.2f} and {ratios[1]:.2f} times as long as the archive's")
    scan, key = found["scan", 1]["seconds"], found["key", 1]["seconds"]
    print(f"a look-up by key takes {key / scan:.4f} of a scan")
    files, size = (found["export", 1][name] for name in ("files", "bytes"))
    print(f"exported: {files} files, {size / (1 << 20):.0f} MiB; the archive: {found['frames', 1]['bytes'] >> 20} MiB")


def run(arguments: argparse.Namespace, what: str, cores: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, "--cores", str(cores), "--work", str(arguments.work)]
    command += ["--look-ups", str(arguments.look_ups)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{what} failed: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{what}, local[{cores}]: {found}", flush=True)
    return found


# one measurement, in a process of its own


def child(arguments: argparse.Namespace) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{arguments.cores}]").appName("benchmark")
    for name, value in (
        ("spark.driver.memory", "2g"), ("spark.ui.enabled", "false"), ("spark.ui.showConsoleProgress", "false"),
        ("spark.sql.session.timeZone", "UTC"), ("spark.sql.shuffle.partitions", "4"),
    ):  # fmt: skip
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    work: Path = arguments.work
    cold, out = f"file://{work}/cold", work / f"out-{arguments.cores}"
    try:
        return {
            "frames": lambda: frames(spark, cold),
            "export": lambda: export(cold, out),
            "scan": lambda: timed(lambda topic: total(archive(spark, cold, **({"topic": topic} if topic else {})))),
            "key": lambda: keys(
                lambda topic, key: by_key(archive(spark, cold, view="keys", topic=topic, key=key)), arguments
            ),
            "Parquet scan": lambda: timed(lambda topic: total(of_topic(parquet(spark, out), topic))),
            "Parquet key": lambda: keys(
                lambda topic, key: in_parquet(parquet(spark, out), topic, key), arguments
            ),
        }[arguments.child]()  # fmt: skip
    finally:
        spark.stop()


def timed(work: Callable[[str | None], dict[str, Any]]) -> dict[str, Any]:
    """Seconds of a piece of work on everything, after the same on one topic."""
    work("topic-00")
    begun = time.perf_counter()
    found = work(None)
    return {"seconds": time.perf_counter() - begun, **found}


def frames(spark: Any, cold: str) -> dict[str, Any]:
    from functools import partial

    from tierlog.pipeline.base.archive import ArchiveSnapshot
    from tierlog.pipeline.jobs.job import run_tasks
    from tierlog.pipeline.read.partitions import plan_parts
    from tierlog.pipeline.read.predicate import Predicate

    store = ArchiveSnapshot.take(cold).only()

    def read(topic: str | None) -> dict[str, Any]:
        predicate = Predicate.of([topic] if topic else [])
        tasks = list(plan_parts(store, predicate))
        counts = run_tasks(spark, partial(rows_of, store=store, predicate=predicate), tasks)
        return {"messages": sum(counts), "tasks": len(tasks)}  # type: ignore[arg-type]  # none fails

    size = sum(entry.size_bytes for entry in store.manifest.log_entries(store.manifest.reader(), store.head))
    return {**timed(read), "bytes": size}


def rows_of(task: Any, *, store: Any, predicate: Any) -> int:
    from tierlog.pipeline.read.partitions import read_parts

    return sum(batch.num_rows for batch in read_parts(store, task, predicate))


def export(cold: str, out: Path) -> dict[str, Any]:
    import contextlib
    import io

    from tierlog.pipeline.jobs.export import main as job

    def write(topic: str | None) -> dict[str, Any]:
        folder = out if topic is None else out.with_name(f"{out.name}-warm")
        shutil.rmtree(folder, ignore_errors=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = job(["--cold", cold, "--out", f"file://{folder}", *(["--topic", topic] if topic else [])])
        if code:
            raise SystemExit(f"the export ended with {code}")
        summary: dict[str, Any] = json.loads(said.getvalue().splitlines()[-1])
        return {name: summary[name] for name in ("rows", "files", "bytes", "tasks")}

    return timed(write)


def archive(spark: Any, cold: str, **options: str) -> Any:
    from tierlog.pipeline.source import TierlogDataSource

    spark.dataSource.register(TierlogDataSource)
    return spark.read.format("tierlog").option("cold", cold).options(**options).load()


def parquet(spark: Any, out: Path) -> Any:
    return spark.read.parquet(json.loads((out / "_exported.json").read_text())["table"])


def of_topic(frame: Any, topic: str | None) -> Any:
    return frame if topic is None else frame.where(frame.topic == topic)


def total(frame: Any) -> dict[str, Any]:
    (row,) = frame.selectExpr("count(*) as messages", "sum(length(body)) as bytes").collect()
    return {"messages": row["messages"], "body_bytes": row["bytes"]}


def keys(look_up: Callable[[str, str], int], arguments: argparse.Namespace) -> dict[str, Any]:
    """The median of look-ups of keys out of the middle, after one of another."""
    messages = json.loads((arguments.work / "made.json").read_text())["messages"]
    look_up("topic-01", "order-1")
    seconds = []
    for number in range(messages // 2, messages // 2 + arguments.look_ups):
        begun = time.perf_counter()
        if look_up(f"topic-{number % TOPICS:02d}", f"order-{number}") != 1:
            raise SystemExit(f"order-{number} was not found once")
        seconds.append(time.perf_counter() - begun)
    return {"seconds": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}


def by_key(frame: Any) -> int:
    return len(frame.select("queue_offset", "body").collect())


def in_parquet(frame: Any, topic: str, key: str) -> int:
    rows = frame.where(f"topic = '{topic}' and array_contains(keys, '{key}')").select("queue_offset", "body")
    return len(rows.collect())


if __name__ == "__main__":
    main()
