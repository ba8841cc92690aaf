"""A small client of RocketMQ's nameservers and brokers: one request after the other over one connection.

Whatever comes is foreign: answers are bounded, and every wait has an end.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    CorruptionError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from tierlog.tiering.rocketmq.broker_files import BrokerState, state_of
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.fastjson import JsonValue, parse_json
from tierlog.tiering.rocketmq.frames import ACCESS_KEY, SIGNATURE, Frame, FrameReader, encode_frame, signature_of
from tierlog.tiering.rocketmq.log_source import LogBounds

#: RocketMQ's own bound of a frame is 16 MiB, unless it is set.
MAX_ANSWER_BYTES = 64 << 20
TIMEOUT_S = 3.0
MASTER_ID = "0"
#: In a broker's runtime info: ms since the epoch when it was started.
BOOT_TIMESTAMP = "bootTimestamp"
_RECEIVE_BYTES = 1 << 18
_NOTHING: Mapping[str, str] = MappingProxyType({})
#: How a broker writes a number of bytes: exact below 1 KiB, otherwise rounded to a tenth.
_BYTES = re.compile(r"(?P<number>[0-9]{1,15})(?:[.,](?P<tenth>[0-9]))? (?P<unit>|[KMGTPE]i)B")
_OFFSET = re.compile(r"[0-9]{1,18}")
_UNITS = {"": 1} | {f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGTPE", 1)}


@dataclass(frozen=True, slots=True)
class Credentials:
    """What requests are signed with, for brokers that let in only who signs."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """How a request was answered; 0 is success."""

    code: int
    fields: Mapping[str, str]
    body: bytes
    remark: str | None


class BrokerClient:
    """Asks one nameserver or broker. Thread safe: one request at a time. Connects when it has something to ask."""

    def __init__(
        self,
        address: str,
        *,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self._endpoint = parse_address(address)
        self._clock = clock
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._tls = tls
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._is_abandoned = False
        self._opaque = 0

    def request(self, code: int, fields: Mapping[str, str] = _NOTHING, body: bytes = b"") -> Reply:
        """Sends a request and returns its answer, whatever its code.

        Raises :class:`UnavailableError` if there was none in time; the request may have been done or not.
        """
        with self._lock:
            self._opaque += 1
            frame = Frame(code, self._opaque, 0, self._signed(fields, body), body, language="PYTHON")
            data = encode_frame(frame)
            try:
                if self._connection is not None and not self._is_abandoned:
                    # it may have been closed while nothing was asked: then once more
                    with contextlib.suppress(ConnectionError):
                        return self._exchange(self._connection, data)
                    self._disconnect()
                if not self._is_abandoned:
                    connection = self._connection = self._connect()
                    if not self._is_abandoned:
                        return self._exchange(connection, data)
                raise UnavailableError(f"{self.address} is not asked any more")
            except OSError as error:
                self._disconnect()
                raise UnavailableError(f"{self.address} did not answer: {_words(error)}") from error
            except InvalidRequestError as error:
                self._disconnect()
                raise UnavailableError(f"{self.address} does not speak RocketMQ's protocol: {error.message}") from error
            finally:
                if self._is_abandoned:
                    self._disconnect()

    def ask(self, code: RequestCode, fields: Mapping[str, str] = _NOTHING, body: bytes = b"") -> Reply:
        """Sends a request and returns its answer if it succeeded.

        Raises :class:`ForbiddenError` where the right is missing, :class:`UnavailableError` for any other code.
        """
        reply = self.request(code, fields, body)
        if reply.code == ResponseCode.NO_PERMISSION:
            raise ForbiddenError(f"{self.address} refused {code.name}: {reply.remark}")
        if reply.code != ResponseCode.SUCCESS:
            raise UnavailableError(f"{self.address} answered {code.name} with {reply.code}: {reply.remark}")
        return reply

    def document(self, code: RequestCode, fields: Mapping[str, str] = _NOTHING) -> dict[str, JsonValue]:
        """Sends a request and returns the JSON object of its answer; raises as :meth:`ask`."""
        try:
            found = parse_json(self.ask(code, fields).body, path=self.address)
        except CorruptionError as error:
            raise UnavailableError(f"{self.address} answered {code.name} with no JSON: {error.message}") from error
        if not isinstance(found, dict):
            raise UnavailableError(f"{self.address} answered {code.name} with no JSON object")
        return found

    def close(self) -> None:
        """Closes the connection; a later request opens another."""
        with self._lock:
            self._disconnect()

    def abandon(self) -> None:
        """Ends a request that waits, unless it still connects, and refuses later ones. At once, on any thread."""
        self._is_abandoned = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for an answer
        if self._lock.acquire(blocking=False):  # else whoever asks disconnects
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _signed(self, fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        if self._credentials is None:
            return fields
        named = {**fields, ACCESS_KEY: self._credentials.access_key}
        signature = base64.b64encode(signature_of(self._credentials.secret_key, named, body)).decode()
        return {**named, SIGNATURE: signature}

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._endpoint, timeout=self._timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                return self._tls.wrap_socket(connection, server_hostname=self._endpoint[0])
        except BaseException:
            connection.close()
            raise
        return connection

    def _exchange(self, connection: socket.socket, data: bytes) -> Reply:
        deadline = self._clock.monotonic_s() + self._timeout_s
        connection.settimeout(self._timeout_s)
        connection.sendall(data)
        reader = FrameReader(MAX_ANSWER_BYTES)
        while True:
            left_s = deadline - self._clock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError("the answer took too long")
            connection.settimeout(left_s)
            received = connection.recv(_RECEIVE_BYTES)
            if not received:
                raise ConnectionResetError("it closed the connection")
            for frame in reader.feed(received):
                if frame.is_answer and frame.opaque == self._opaque:
                    return Reply(frame.code, frame.fields, frame.body, frame.remark)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def parse_address(address: str) -> tuple[str, int]:
    """Returns host and port of ``host:port``; raises :class:`InvalidRequestError` for anything else."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) >= 1 << 16:
        raise InvalidRequestError(f"{address[:200]!r} is no address", hint="an address is host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker that a nameserver knows."""

    name: str
    cluster: str
    #: Of the master; empty while there is none.
    address: str
    #: Of its slaves, any of which may become master.
    slaves: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Master and slaves."""
        return tuple(filter(None, (self.address, *self.slaves)))


def find_brokers(
    nameservers: Sequence[str],
    broker_name: str,
    *,
    clock: Clock,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> BrokerAddress:
    """Returns master and slaves of this name, of the first nameserver that answers.

    Raises :class:`NotFoundError`, which says what names there are, and :class:`UnavailableError` if no nameserver
    answers.
    """
    table = _brokers(nameservers, clock, credentials, tls)
    broker = table.get(broker_name)
    if not isinstance(broker, dict):
        known = ", ".join(sorted(table)[:20]) or "none"
        raise NotFoundError(f"no broker has the name {broker_name}", hint=f"the nameserver knows: {known}")
    addresses, cluster = broker.get("brokerAddrs"), broker.get("cluster")
    by_id = sorted(addresses.items()) if isinstance(addresses, dict) else []
    told = {number: address for number, address in by_id if isinstance(address, str)}
    master = told.pop(MASTER_ID, "")
    return BrokerAddress(broker_name, cluster if isinstance(cluster, str) else "", master, tuple(told.values()))


def _brokers(
    nameservers: Sequence[str], clock: Clock, credentials: Credentials | None, tls: ssl.SSLContext | None
) -> dict[str, JsonValue]:
    failures = []
    for address in nameservers:
        client = BrokerClient(address, clock=clock, credentials=credentials, tls=tls)
        try:
            found = client.document(RequestCode.GET_BROKER_CLUSTER_INFO).get("brokerAddrTable")
            return found if isinstance(found, dict) else {}
        except UnavailableError as error:
            failures.append(error)
        finally:
            client.close()
    said = "; ".join(error.message for error in failures)
    raise UnavailableError(f"no nameserver answers: {said or 'none is given'}")


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What a broker tells of its settings, as far as a follower depends on it."""

    name: str
    cluster: str
    version: str
    #: ``ASYNC_MASTER``, ``SYNC_MASTER`` or ``SLAVE``.
    role: str
    segment_bytes: int
    #: Where slaves connect.
    ha_address: str
    is_controller_mode: bool
    is_dledger: bool
    #: Files older than this are removed in the hours of :attr:`delete_hours`.
    file_reserved_hours: int
    delete_hours: tuple[int, ...]
    #: Percent of the disk in use, above which files are removed at any hour.
    disk_max_used_percent: int


def facts_of(client: BrokerClient) -> BrokerFacts:
    """Asks a broker for its settings; raises as :meth:`BrokerClient.ask`."""
    config = settings_of(client)
    host, _ = parse_address(client.address)
    ha_host, ha_port = config.get("brokerIP2") or host, _number(config, "haListenPort", 10912)
    hours = [hour for hour in config.get("deleteWhen", "04").split(";") if hour.strip().isdigit()]
    return BrokerFacts(
        name=config.get("brokerName", ""),
        cluster=config.get("brokerClusterName", ""),
        version=runtime_info(client).get("brokerVersionDesc", ""),
        role=config.get("brokerRole", ""),
        segment_bytes=_number(config, "mappedFileSizeCommitLog", 1 << 30),
        ha_address=f"[{ha_host}]:{ha_port}" if ":" in ha_host else f"{ha_host}:{ha_port}",
        is_controller_mode=config.get("enableControllerMode") == "true",
        is_dledger=config.get("enableDLegerCommitLog") == "true",
        file_reserved_hours=_number(config, "fileReservedTime", 72),
        delete_hours=tuple(int(hour) for hour in hours),
        disk_max_used_percent=_number(config, "diskMaxUsedSpaceRatio", 75),
    )


def settings_of(client: BrokerClient) -> dict[str, str]:
    """Returns all settings of a broker; raises as :meth:`BrokerClient.ask`."""
    text = client.ask(RequestCode.GET_BROKER_CONFIG).body.decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def runtime_info(client: BrokerClient) -> dict[str, str]:
    """Returns what a broker tells of itself now; raises as :meth:`BrokerClient.ask`."""
    table = client.document(RequestCode.GET_BROKER_RUNTIME_INFO).get("table")
    if not isinstance(table, dict):
        raise UnavailableError(f"{client.address} tells nothing of itself")
    return {name: value for name, value in table.items() if isinstance(value, str)}


def bounds_in(info: Mapping[str, str]) -> LogBounds:
    """Returns the bounds of the log in a broker's runtime info; raises :class:`UnavailableError` without them."""
    least, most = info.get("commitLogMinOffset", ""), info.get("commitLogMaxOffset", "")
    if least == "-1":  # the log has no file yet
        least = most
    if not (_OFFSET.fullmatch(least) and _OFFSET.fullmatch(most)):
        raise UnavailableError(f"a broker whose log is [{least[:20]}, {most[:20]})")
    return LogBounds(int(least), max(int(least), int(most)))


def flushed_below(info: Mapping[str, str]) -> int | None:
    """Returns an offset below which the broker had flushed its log, None if its runtime info tells nothing of it.

    It tells the log's end first, and how much was not flushed at a later moment: what lies between is flushed.
    """
    match = _BYTES.fullmatch(info.get("remainHowManyDataToFlush", ""))
    if match is None:
        return None
    unit = _UNITS[match["unit"]]
    number = 10 * int(match["number"]) + int(match["tenth"] or 0)
    # a rounded number may stand for half a tenth more
    unflushed = int(match["number"]) if unit == 1 else (2 * number + 1) * unit // 20 + 1
    return max(0, bounds_in(info).max_offset - unflushed)


@dataclass(frozen=True, slots=True)
class SyncStateSet:
    """The brokers that may become master next, as the master of a cluster in controller mode tells them."""

    epoch: str
    """The master's last epoch and where it began, as brokers write it down: ``EPOCH-OFFSET``."""
    slaves: int
    """How many there are beside the master."""
    acknowledged: int
    """Below this each of them has the master's log; 0 where one is not connected."""
    end: int
    """Where the master's log ended."""


def sync_state_set(client: BrokerClient) -> SyncStateSet:
    """Asks a broker in controller mode; raises :class:`UnavailableError` if it is no master, and as
    :meth:`BrokerClient.ask`."""
    status = client.document(RequestCode.GET_BROKER_HA_STATUS)
    # asked behind it: both are of one epoch if this one is still the last
    epoch = last_epoch(client)
    slaves, end = status.get("inSyncSlaveNums"), status.get("masterCommitLogMaxOffset")
    connections = status.get("haConnectionInfo")
    if status.get("master") is not True or epoch is None or not isinstance(connections, list):
        raise UnavailableError(f"{client.address} tells nothing of its slaves")
    if not isinstance(slaves, int) or not isinstance(end, int):
        raise UnavailableError(f"{client.address} does not tell where its log ends")
    in_step = [each for each in connections if isinstance(each, dict) and each.get("inSync") is True]
    offsets = [offset if isinstance(offset := each.get("slaveAckOffset"), int) else 0 for each in in_step]
    least = max(0, min([end, *offsets])) if len(in_step) == slaves else 0
    return SyncStateSet(epoch, slaves, least, end)


def last_epoch(client: BrokerClient) -> str | None:
    """Asks a broker in controller mode for its last epoch, ``EPOCH-OFFSET``; raises as :meth:`BrokerClient.ask`."""
    epochs = client.document(RequestCode.GET_BROKER_EPOCH_CACHE).get("epochList")
    last = epochs[-1] if isinstance(epochs, list) and epochs else None
    return f"{last.get('epoch')}-{last.get('startOffset')}" if isinstance(last, dict) else None


def copied_state(client: BrokerClient) -> BrokerState:
    """Asks a master for what its slaves copy beside the log; raises as :meth:`BrokerClient.ask`."""
    return state_of(
        topics=_table(client, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
        groups=_table(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"),
        consumer_offsets=_table(client, RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable"),
        delay_offsets=_table(client, RequestCode.GET_ALL_DELAY_OFFSET, "offsetTable"),
    )


def _table(client: BrokerClient, code: RequestCode, name: str) -> dict[str, JsonValue]:
    found = client.document(code).get(name)
    return found if isinstance(found, dict) else {}


def _number(config: Mapping[str, str], name: str, default: int) -> int:
    text = config.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default


def _words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
