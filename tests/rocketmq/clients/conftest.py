"""Real clients against a server: ours, or with ``TIERLOG_ROCKETMQ_PEER=real`` Apache RocketMQ itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.shell import shell
from tests.support.rocketmq.real_clients import (
    PEER_VARIABLE,
    Doors,
    RealClient,
    SpringShop,
    TierlogServer,
    fresh,
    java_client,
    other_client,
    real_server,
    spring_client,
    tierlog_server,
)
from tests.tools.cache import ToolMissingError
from tests.tools.rocketmq_clients import (
    GO,
    JAVA_4_9,
    JAVA_5,
    JAVA_GRPC,
    JAVA_SPRING,
    NODE,
    PYTHON,
    RUST,
    ClientProgram,
    built,
    command_of,
)

__all__ = ["shell"]
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.java)


def _built(program: ClientProgram) -> Path:
    """Its folder, or a skip where a tool is missing that builds it."""
    try:
        return built(program)
    except ToolMissingError as error:
        pytest.skip(f"RocketMQ's clients cannot be built: {error}")


def _other(program: ClientProgram, address: str, factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    _built(program)
    with other_client(command_of(program), factory.mktemp(program.name), address) as client:
        yield client


@pytest.fixture(scope="session")
def tierlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogServer]:
    """One service of ours for all tests that do not end it."""
    with tierlog_server(tmp_path_factory.mktemp("tierlog")) as server:
        yield server


@pytest.fixture(scope="session")
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Where the server of the tests is reached."""
    if os.environ.get(PEER_VARIABLE, "tierlog") == "real":
        with real_server(_built(JAVA_5), tmp_path_factory.mktemp("rocketmq")) as real:
            yield real
    else:
        server: TierlogServer = request.getfixturevalue("tierlog")
        yield server.doors


@pytest.fixture(scope="session")
def java_5(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """The remoting client 5.4.0, with mqadmin."""
    with java_client(_built(JAVA_5), "Remoting5", tmp_path_factory.mktemp("java-5"), doors.remoting) as client:
        yield client


@pytest.fixture(scope="session")
def java_4_9(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """The remoting client 4.9.8."""
    with java_client(_built(JAVA_4_9), "Remoting", tmp_path_factory.mktemp("java-4.9"), doors.remoting) as client:
        yield client


@pytest.fixture(scope="session")
def folder_of() -> Callable[[ClientProgram], Path]:
    """Where a program is built; a test that asks is skipped where a tool is missing that builds it."""
    return _built


@pytest.fixture(scope="session")
def shop(doors: Doors, java_5: RealClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpringShop]:
    """A Spring Boot application with the starter 2.3.5; its topics are there when its listeners begin."""
    topics = {name: fresh(f"shop-{name}") for name in ("orders", "steps", "tagged")}
    for topic in topics.values():
        java_5.send(topic, "first")
    with spring_client(_built(JAVA_SPRING), tmp_path_factory.mktemp("spring"), doors.remoting, topics) as shop:
        yield shop


@pytest.fixture(scope="session")
def go(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """The remoting client 2.1.2 for Go."""
    yield from _other(GO, doors.remoting, tmp_path_factory)


@pytest.fixture(scope="session")
def java_grpc(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """The gRPC client 5.1.0 for Java."""
    work = tmp_path_factory.mktemp("java-grpc")
    with java_client(_built(JAVA_GRPC), "Grpc", work, doors.grpc) as client:
        yield client


@pytest.fixture(scope="session")
def python(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """The gRPC client 5.1.2 for Python."""
    yield from _other(PYTHON, doors.grpc, tmp_path_factory)


@pytest.fixture(scope="session")
def node(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """The gRPC client 1.0.8 for Node."""
    yield from _other(NODE, doors.grpc, tmp_path_factory)


@pytest.fixture(scope="session")
def rust(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """The gRPC client 5.0.0 for Rust."""
    yield from _other(RUST, doors.grpc, tmp_path_factory)


@pytest.fixture(params=["java_5", "java_4_9"])
def client(request: pytest.FixtureRequest) -> RealClient:
    """Each remoting client in turn."""
    found: RealClient = request.getfixturevalue(request.param)
    return found
