"""A nameserver and masters of brokers that send their logs to whoever connects, each with a log that a test grows."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support.rocketmq.fake_broker import FakeBroker, FakeMaster, MasterConnection
from tests.support.stores.followed import BrokerLog
from tierlog.tiering.rocketmq.codes import RequestCode

_PIECE_BYTES = 1500


class FakeClusterBroker:
    """One master with its log: its remoting port, and where its slaves connect."""

    def __init__(self, name: str, log: BrokerLog) -> None:
        self.name = name
        self.remoting, self._master = FakeBroker(), FakeMaster()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.grow(log)
        remoting = self.remoting
        for code, table in (
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {"subscriptionGroupTable": {"shop": {"retryMaxTimes": 3}}}),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, {"offsetTable": {"orders@shop": {"0": 3}}}),
            (RequestCode.GET_ALL_DELAY_OFFSET, {"offsetTable": {}}),
            (RequestCode.GET_ALL_TOPIC_CONFIG, {"topicConfigTable": {"quiet": {"readQueueNums": 3}}}),
        ):
            remoting.answer(code, table)
        self.configure()
        self._thread.start()

    def configure(self, **changes: str) -> None:
        """What the broker says of its settings."""
        port = self._master.address.rpartition(":")[2]
        settings = {
            "brokerName": self.name, "brokerClusterName": "east", "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": str(self.log.segment_bytes), "haListenPort": port, "fileReservedTime": "72",
            **changes,
        }  # fmt: skip
        text = "\n".join(f"{name}={value}" for name, value in settings.items())
        self.remoting.answer(RequestCode.GET_BROKER_CONFIG, text.encode())

    def grow(self, log: BrokerLog) -> None:
        """Another log from now on, which begins as the one before."""
        self.log = log
        self.remoting.tell_bounds(log.begin, log.end, remainHowManyDataToFlush="0 B", commitLogDiskRatio="0.4")

    def close(self) -> None:
        """Stops, for good."""
        self._stopping.set()
        self.remoting.close()
        with contextlib.suppress(OSError):
            self._master._server.shutdown(socket.SHUT_RDWR)
        self._master._server.close()
        self._thread.join(20)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError, AssertionError), self._master.connection() as slave:
                self._send_all(slave)

    def _send_all(self, slave: MasterConnection) -> None:
        asked = slave.reported()
        position, sent = asked, 0
        while not self._stopping.wait(0.005):
            piece = self.log.read(position, _PIECE_BYTES)
            slave.send(position, piece)
            position += len(piece)
            sent += 1
            while slave.reports_waiting():
                slave.reported()


class FakeCluster:
    """A nameserver that knows some brokers."""

    def __init__(self, *brokers: FakeClusterBroker) -> None:
        self.brokers = brokers
        self.nameserver = FakeBroker()
        self._table: dict[str, object] = {}
        for broker in brokers:
            self.tell(broker.name, broker)

    def tell(self, name: str, master: FakeClusterBroker | None, *slaves: FakeClusterBroker) -> None:
        """Who has a name from now on, as the nameserver says."""
        addresses = {str(number): slave.remoting.address for number, slave in enumerate(slaves, 1)}
        if master is not None:
            addresses["0"] = master.remoting.address
        self._table[name] = {"cluster": "east", "brokerAddrs": addresses}
        self.nameserver.answer(RequestCode.GET_BROKER_CLUSTER_INFO, {"brokerAddrTable": self._table})

    def close(self) -> None:
        """Ends all of them."""
        for broker in self.brokers:
            broker.close()
        self.nameserver.close()


@contextlib.contextmanager
def cluster_of(**logs: BrokerLog) -> Iterator[FakeCluster]:
    """Brokers by name, with ``_`` for ``-``."""
    cluster = FakeCluster(*(FakeClusterBroker(name.replace("_", "-"), log) for name, log in logs.items()))
    try:
        yield cluster
    finally:
        cluster.close()
