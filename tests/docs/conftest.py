"""What pages are run with: the process that commands are forks of, an S3 server, a Spark session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.spark.conftest import spark
from tests.support.docs.runner import forks
from tests.support.objects.s3_server import s3_server

__all__ = ["s3_server", "spark"]


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if shutil.which("curl") is None:
        pytest.skip("pages need curl")
    with forks(tmp_path_factory.mktemp("forks")) as environment:
        yield environment
