"""Real S3 servers, one of each kind for all tests here; every test in this folder needs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.objects.real_s3 import NAMES, server_or_skip
from tests.support.objects.s3_server import S3Server, s3_server

__all__ = ["s3_server"]
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.s3)


def _server(name: str, factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with server_or_skip(name, factory.mktemp(name)) as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    yield from _server("minio", tmp_path_factory)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    yield from _server("versitygw", tmp_path_factory)


@pytest.fixture(params=NAMES)
def real_server(request: pytest.FixtureRequest) -> S3Server:
    """Each of them in turn."""
    server: S3Server = request.getfixturevalue(request.param)
    return server
