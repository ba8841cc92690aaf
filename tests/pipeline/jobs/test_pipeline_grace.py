"""Jobs name what they stored within the grace period of the archive's store, not within the default."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from tierlog.pipeline.jobs import erase, expire, merge, rebuild
from tierlog.pipeline.jobs.job import grace_ms_of
from tierlog.pipeline.removal.tasks import ArchivePlace
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.options import ColdOptions

ADDERS = [job.JOB.add_arguments for job in (erase, expire, merge, rebuild)]


@pytest.mark.parametrize("add_arguments", ADDERS)
def test_every_job_that_names_objects_is_told_the_grace_period(
    add_arguments: Callable[[argparse.ArgumentParser], None], tmp_path: Path
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    cold = ["--cold", f"file://{tmp_path}"]
    assert grace_ms_of(parser.parse_args(cold)) == ColdOptions().grace_ms
    assert grace_ms_of(parser.parse_args([*cold, "--grace-hours", "0.5"])) == 1_800_000
    with pytest.raises(InvalidRequestError, match="longer than nothing"):
        grace_ms_of(parser.parse_args([*cold, "--grace-hours", "0"]))


def test_a_removal_commits_within_the_grace_period_of_its_store(tmp_path: Path) -> None:
    place = ArchivePlace(f"file://{tmp_path}", "one", 1_800_000)
    assert place.manifest.options.grace_ms == 1_800_000
    assert ArchivePlace(place.url, "one").manifest.options.grace_ms == ColdOptions().grace_ms
