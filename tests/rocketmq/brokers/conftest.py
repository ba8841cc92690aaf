"""Real brokers of every version that is supported, and a client beside each."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.objects.s3_server import s3_server
from tests.support.rocketmq.real_brokers import Cluster, RealBroker, nameserver
from tests.support.rocketmq.real_clients import RealClient, java_client
from tests.tools.cache import ToolMissingError
from tests.tools.rocketmq_clients import JAVA_5, SERVERS, ClientProgram, built

__all__ = ["s3_server"]
_HERE = Path(__file__).parent
NEWEST = "5.5.0"

Begin = Callable[..., Cluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.timeout(900))


def _built(program: ClientProgram) -> Path:
    try:
        return built(program)
    except ToolMissingError as error:
        pytest.skip(f"RocketMQ's programs cannot be built: {error}")


def server_program(version: str) -> Path:
    """Where nameserver and broker of a version are built."""
    return _built(SERVERS[version])


@pytest.fixture(scope="session")
def nameservers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The address of the nameserver of a version, which is begun when the first asks for it."""
    begun: dict[str, str] = {}
    with contextlib.ExitStack() as running:

        def address(version: str) -> str:
            if version not in begun:
                folder = tmp_path_factory.mktemp(f"nameserver-{version}")
                begun[version] = running.enter_context(nameserver(server_program(version), folder))
            return begun[version]

        yield address


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    """Java's, for all brokers."""
    with java_client(_built(JAVA_5), "Remoting5", tmp_path_factory.mktemp("client"), "") as found:
        yield found


@pytest.fixture
def begin(nameservers: Callable[[str], str], client: RealClient, tmp_path: Path) -> Iterator[Begin]:
    """Begins a broker of a version with some settings; it is killed after the test.

    It has the ``name`` of one that it is a slave of, and another nameserver than the tests' if that is given.
    """
    numbers = itertools.count(1)
    with contextlib.ExitStack() as running:

        def run(
            version: str = NEWEST, *, name: str | None = None, address: str | None = None, **settings: object
        ) -> Cluster:
            where = nameservers(version) if address is None else address
            folder = tmp_path / f"broker-{next(numbers)}"
            broker = RealBroker(server_program(version), folder, where, settings, name=name)
            running.callback(broker.close)
            broker.start()
            return Cluster(broker, RealClient(client.program, where))

        yield run
