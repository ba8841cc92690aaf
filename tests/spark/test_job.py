"""What all jobs have in common: summary last, errors in one line, exit codes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tierlog.pipeline.base.archive import ArchiveSnapshot
from tierlog.pipeline.jobs.job import FAILED, FINDINGS, WRONG_USE, Job, JobContext, Summary
from tierlog.tiering.base.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def job_of(*, summary: Summary | None = None, error: StoreError | None = None) -> Job:
    def body(context: JobContext, arguments: argparse.Namespace) -> Summary:
        if error is not None:
            raise error
        assert context.spark.range(10).count() == 10
        return {**(summary or {}), "given": arguments.given}

    return Job("example", "An example.", lambda parser: parser.add_argument("given"), body)  # type: ignore[arg-type, return-value]


def test_the_summary_is_the_last_line(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert job_of(summary={"messages": 3}).main(["this"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == {"messages": 3, "given": "this"}
    assert spark.range(1).count() == 1  # a session that was there stays


def test_findings_are_an_exit_code(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert job_of(summary={"findings": 2}).main(["this"]) == FINDINGS


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("ftp://nowhere", WRONG_USE, "is not the URL of an object store"),
        ("file:///tmp", FINDINGS, "no archive of any store here"),
    ],
)
def test_an_archive_that_is_not_there_is_one_line(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], url: str, code: int, words: str
) -> None:
    url = url.replace("/tmp", str(tmp_path))

    def body(context: JobContext, arguments: argparse.Namespace) -> Summary:
        return {"stores": len(ArchiveSnapshot.take(url).stores)}

    assert Job("example", "An example.", lambda parser: None, body).main([]) == code
    (line,) = capfd.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("example: ")
    assert words in line


def test_what_a_store_refuses_has_failed(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert job_of(error=StoreError("the disk is gone")).main(["this"]) == FAILED
    assert "example: the disk is gone" in capfd.readouterr().err


def test_a_token_among_sparks_settings_is_refused_and_not_repeated(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark shows its settings in the arguments of its processes, on its page and in its event log."""
    spark.conf.set("spark.executorEnv.TIERLOG_TOKEN", "t-secret")
    try:
        assert job_of().main(["this"]) == WRONG_USE
    finally:
        spark.conf.unset("spark.executorEnv.TIERLOG_TOKEN")
    said = capfd.readouterr().err
    assert "spark.executorEnv.TIERLOG_TOKEN_FILE" in said
    assert "t-secret" not in said
