"""What a CronJob runs is a job of the pipeline, with arguments that it knows."""

from __future__ import annotations

import argparse
import importlib

import pytest

from tests.support.service.chart import Chart


@pytest.mark.parametrize("base", ["full", "irsa"])
def test_jobs_are_run_as_their_own_parsers_allow(chart: Chart, base: str) -> None:
    for name, _, spec in chart.render(base=base).pods():
        if not name.startswith("CronJob/"):
            continue
        (container,) = spec["containers"]
        python, flag, module = container["command"]
        assert (python, flag) == ("python", "-m")
        job = importlib.import_module(module)
        assert job.__name__ == f"pipeline.jobs.{container['name']}"
        parser = argparse.ArgumentParser(exit_on_error=False)
        job._add_arguments(parser)
        assert parser.parse_args(container["args"]).cold.startswith("s3://")
        assert spec["restartPolicy"] == "Never"


def test_a_job_has_room_for_its_temporary_files_and_no_volume_of_a_store(chart: Chart) -> None:
    for name, _, spec in chart.render(base="full").pods():
        if name.startswith("CronJob/"):
            assert spec["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "20Gi"}}]
            environment = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
            assert environment["SPARK_LOCAL_DIRS"] == environment["HOME"] == "/tmp"
            assert "TIERLOG_TOKEN_FILE" not in environment, "a job asks the bucket and no service"
