"""A job that finds a Spark Connect session says what it needs."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tierlog.pipeline.jobs import verify
from tierlog.pipeline.jobs.job import WRONG_USE


@pytest.mark.parametrize("variable", ["SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"])
def test_a_job_on_spark_connect_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], variable: str
) -> None:
    """The first is set while there is such a session, the second makes one."""
    monkeypatch.setenv(variable, "sc://127.0.0.1:1")
    assert verify.JOB.main(["--cold", "file:///nowhere"]) == WRONG_USE
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("verify: a job runs functions on executors, which Spark Connect does not offer")
