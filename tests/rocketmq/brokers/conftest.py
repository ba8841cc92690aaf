"""Real brokers of every version that is supported, and a client beside each."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.objects.s3_server import s3_server
from tests.support.rocketmq.real_brokers import Cluster, RealBroker, nameserver
from tests.support.rocketmq.real_clients import RealClient, java_client
from tests.tools.cache import ToolMissingError
from tests.tools.java_programs import BRIEF
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
    """Java's, for all brokers; a producer learns within a second who is master now."""
    options = (*BRIEF, "-Dtests.pollNameServerMs=1000")
    with java_client(_built(JAVA_5), "Remoting5", tmp_path_factory.mktemp("client"), "", options=options) as found:
        yield found


@pytest.fixture
def begin(nameservers: Callable[[str], str], client: RealClient, tmp_path: Path) -> Iterator[Begin]:
    """Begins a broker of a version with some settings; it is killed after the test.

    A slave has the topics of its ``master``, which it would copy only a minute after its start. ``address`` is that of
    another nameserver than the tests'.
    """
    numbers = itertools.count(1)
    with contextlib.ExitStack() as running:

        def run(
            version: str = NEWEST, *, master: RealBroker | None = None, address: str | None = None, **settings: object
        ) -> Cluster:
            where = nameservers(version) if address is None else address
            folder = tmp_path / f"broker-{next(numbers)}"
            name = None if master is None else master.name
            broker = RealBroker(server_program(version), folder, where, settings, name=name)
            if master is not None:
                shutil.copytree(master.store / "config", broker.store / "config")
            running.callback(broker.close)
            broker.start()
            return Cluster(broker, RealClient(client.program, where))

        yield run
