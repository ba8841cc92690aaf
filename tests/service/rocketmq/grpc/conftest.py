"""A store with the gRPC door in front of it, and a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rocketmq.grpc_client import GrpcClient
from tests.support.rocketmq.grpc_world import GrpcWorld, grpc_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GrpcWorld]:
    with grpc_world(tmp_path / "store", {"hot.default_queues": 4}) as made:
        yield made


@pytest.fixture
def client(world: GrpcWorld) -> Iterator[GrpcClient]:
    with world.client() as connected:
        yield connected
