"""How a broker is reached, by the network or by its directory: its log, and what lies beside the log.

A connection is for one stretch of following: where anything fails, it is closed, and another one is made.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tierlog.service.config.follow import FollowSettings
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, StoreError, UnavailableError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.rocketmq.broker_directory import EPOCH_FILE, BrokerDirectory, told_by_its_broker
from tierlog.tiering.rocketmq.broker_files import BrokerState
from tierlog.tiering.rocketmq.log_source import LogBounds, LogSource, NoLogYetError, SourceLostError
from tierlog.tiering.rocketmq.remote_log import RemoteLog, check_followable, dledger_error
from tierlog.tiering.rocketmq.remoting import (
    BrokerAddress,
    BrokerClient,
    BrokerFacts,
    Credentials,
    bounds_in,
    copied_state,
    facts_of,
    find_brokers,
    parse_address,
    runtime_info,
)

_LOG = logging.getLogger("tierlog")
#: Where segments of a broker's directory get their second name.
HELD_FOLDER = "tierlog-held"
#: How the folder begins in which one with DLedger has its log.
_DLEDGER_FOLDER = "dledger-"
_PROBE_S = 1.0
#: How often a broker whose files are followed is looked for where it did not answer.
_ASK_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class BrokerNow:
    """Where a broker's log begins and ends, and how full its disk is, if that is known."""

    bounds: LogBounds
    disk_used: float | None = None
    """Between 0 and 1."""


class BrokerLink(Protocol):
    """One stretch of following a broker.

    The source is for one thread. :meth:`now` and :meth:`state` are for one thread each, beside it, and take some
    seconds where the broker is slow. :meth:`close` may be called from any.
    """

    source: LogSource
    cluster: str
    address: str | None
    facts: BrokerFacts | None
    """None where only its directory is known."""

    def now(self) -> BrokerNow:
        """Asks the broker how it is; raises :class:`SourceLostError` or :class:`UnavailableError`."""
        ...

    def state(self) -> BrokerState:
        """Returns topics, groups and offsets as a slave copies them; raises :class:`UnavailableError`."""
        ...

    def goes_on_at(self, offset: int) -> bool:
        """Whether the broker itself says that its log goes on behind an offset; False where it cannot be asked."""
        ...

    def close(self) -> None:
        """Ends a read that waits, too, and questions under way soon. Idempotent."""
        ...


class Upstream(Protocol):
    """A broker that is to be followed, whether it runs or not."""

    name: str

    @property
    def slaves(self) -> Sequence[str]:
        """Where its slaves answer, as a nameserver said last."""
        ...

    def remember(self, address: str) -> None:
        """Takes the address of the master, as an earlier process knew it; what nameservers say counts more."""
        ...

    def connect(self) -> BrokerLink:
        """Finds the broker, the newest master of its name.

        Raises :class:`UnavailableError` while it is not reached, :class:`NotFoundError` if nothing has its name, and
        :class:`InvalidRequestError` for one that cannot be followed.
        """
        ...

    def is_gone(self) -> bool:
        """Whether nobody listens any more where the broker did, nor where a slave of it would that may become master.

        False as well while that cannot be told.
        """
        ...

    def is_back(self) -> bool:
        """Whether somebody listens where the broker did, or where a nameserver says that its master is."""
        ...


@dataclass(slots=True)
class _Link:
    source: LogSource
    cluster: str
    address: str | None
    facts: BrokerFacts | None
    client: BrokerClient | None
    copying: BrokerClient | None = None
    """Asked for all that lies beside the log, which takes a broker a while; one client asks one thing at a time."""
    can_be_asked: Callable[[], bool] = lambda: False
    """Whether a broker that could not be asked when its files were opened can be now."""

    def now(self) -> BrokerNow:
        if self.client is None:
            if self.can_be_asked():
                raise SourceLostError("the broker answers again, and tells more than its files do")
            return BrokerNow(self.source.bounds())
        info = self._told(self.client)
        if isinstance(self.source, RemoteLog):
            self.source.told(info)
        return BrokerNow(bounds_in(info), _disk_used(info))

    def _told(self, client: BrokerClient) -> Mapping[str, str]:
        info = self.source.told() if isinstance(self.source, BrokerDirectory) else runtime_info(client)
        if info is None:
            raise SourceLostError(f"{client.address} is not the broker that writes these files any more")
        return info

    def state(self) -> BrokerState:
        if isinstance(self.source, BrokerDirectory):
            return self.source.state()
        assert self.copying is not None
        return copied_state(self.copying)

    def goes_on_at(self, offset: int) -> bool:
        return self.client is not None and bounds_in(self._told(self.client)).max_offset > offset

    def close(self) -> None:
        self.source.close()
        for client in (self.client, self.copying):
            if client is not None:
                client.abandon()


class RemoteBroker:
    """A broker that is found by its name, and copied from as its slaves do."""

    def __init__(self, name: str, settings: FollowSettings, clock: Clock) -> None:
        self.name = name
        self._settings = settings
        self._clock = clock
        self._credentials = credentials_of(settings)
        #: Where the master was reached last.
        self.known: BrokerAddress | None = None
        self.slaves: Sequence[str] = ()

    def remember(self, address: str) -> None:
        self.known = BrokerAddress(self.name, "", address)

    def connect(self) -> BrokerLink:
        found = self.find()
        client, copying = (
            BrokerClient(found.address, clock=self._clock, credentials=self._credentials) for _ in range(2)
        )
        try:
            facts = facts_of(client)
            check_followable(facts)
            source = RemoteLog(
                self._settings.ha or facts.ha_address, client, segment_bytes=facts.segment_bytes, clock=self._clock,
                is_replica=self._settings.mode == "replica",
            )  # fmt: skip
        except BaseException:
            client.close()
            raise
        self.known = found
        return _Link(source, facts.cluster or found.cluster, found.address, facts, client, copying)

    def find(self) -> BrokerAddress:
        """Asks the nameservers; while none answers, or none knows it, the broker is where it was."""
        try:
            found = self._ask()
        except (UnavailableError, NotFoundError):
            if self.known is None:
                raise
            return self.known
        if not found.address and self.known is None:
            raise UnavailableError(f"broker {self.name} has no master now")
        return found if found.address or self.known is None else self.known

    def _ask(self) -> BrokerAddress:
        """Asks the nameservers."""
        try:
            found = find_brokers(
                self._settings.nameservers, self.name, clock=self._clock, credentials=self._credentials
            )  # fmt: skip
        except NotFoundError:
            self.slaves = ()
            raise
        self.slaves = found.slaves
        return found

    def is_gone(self) -> bool:
        if self.known is None or _listens(self.known.address) is not False:
            return False
        with contextlib.suppress(UnavailableError, NotFoundError):
            found = self._ask()
            return all(_listens(address) is False for address in found.all)
        return True

    def is_back(self) -> bool:
        where = [] if self.known is None else [self.known.address]
        with contextlib.suppress(UnavailableError, NotFoundError):
            where.append(self._ask().address)
        return any(_listens(address) for address in where if address)


class DirectoryBroker:
    """A broker on this machine whose files are read; the nameservers, if there are any, know where it answers.

    Who answers there counts only where it writes these files: after a failover it is another one.
    """

    def __init__(self, name: str, root: Path, settings: FollowSettings, clock: Clock, fs: FileSystem) -> None:
        self.name = name
        self._root = root
        self._paths = StorePaths(root)
        self._settings = settings
        self._clock = clock
        self._fs = fs
        self._remote = RemoteBroker(name, settings, clock)
        self._facts: BrokerFacts | None = None
        self._ask_again_s = 0.0
        #: Who was last found to have the name and to write other files.
        self._other = ""

    @property
    def slaves(self) -> Sequence[str]:
        return self._remote.slaves

    def remember(self, address: str) -> None:
        self._remote.remember(address)

    def connect(self) -> BrokerLink:
        client = self._client()
        facts = self._facts
        try:
            if self._has_dledger():
                raise dledger_error(self.name)  # noqa: TRY301
            source = self._directory(client)
        except BaseException:
            if client is not None:
                client.close()
            raise
        known = self._remote.known
        cluster, address = (known.cluster, known.address) if known is not None else ("", None)
        self._ask_again_s = self._clock.monotonic_s() + _ASK_AGAIN_S
        return _Link(source, cluster, address, facts, client, can_be_asked=self._can_be_asked)

    def _can_be_asked(self) -> bool:
        """Looks now and then whether the broker answers: a started one is registered a while after its first write."""
        now_s = self._clock.monotonic_s()
        if now_s < self._ask_again_s:
            return False
        self._ask_again_s = now_s + _ASK_AGAIN_S
        client = self._client()
        if client is not None:
            client.close()
        return client is not None

    def _is_controller_mode(self) -> bool:
        """Asks its settings, and while they are not known its files."""
        if self._facts is not None:
            return self._facts.is_controller_mode
        return self._fs.exists(self._root / EPOCH_FILE)

    def _has_dledger(self) -> bool:
        if self._facts is not None:
            return self._facts.is_dledger
        return any(name.startswith(_DLEDGER_FOLDER) for name in self._fs.list_dir(self._root))

    def _directory(self, client: BrokerClient | None) -> BrokerDirectory:
        """Opens the broker's files; those of one that has had messages are not waited for."""
        try:
            return BrokerDirectory(
                self._root, fs=self._fs, clock=self._clock, client=client,
                held_folder=self._root / HELD_FOLDER if self._settings.hold else None,
                max_held_bytes=self._settings.max_held_bytes, is_controller_mode=self._is_controller_mode(),
            )  # fmt: skip
        except NoLogYetError as error:
            if not self._has_messages():
                raise
            raise NotFoundError(
                f"broker {self.name} has had messages, and no log is here", path=error.path,
                hint="name the folder that is its storePathRootDir",
            ) from error  # fmt: skip

    def _has_messages(self) -> bool:
        """Asks whoever has the broker's name whether it has had any; not if nobody says."""
        if self._remote.known is None:
            return False
        client = self._client_of(self._remote.known)
        try:
            return bounds_in(runtime_info(client)).max_offset > 0
        except UnavailableError:
            return False
        finally:
            client.close()

    def _client_of(self, broker: BrokerAddress) -> BrokerClient:
        return BrokerClient(broker.address, clock=self._clock, credentials=credentials_of(self._settings))

    def _client(self) -> BrokerClient | None:
        """Returns a client of the broker and learns its settings.

        None if it does not run, is not to be asked, or is not the one that writes these files: they are all there is
        then, and what was known of it.
        """
        if not self._settings.nameservers:
            return None
        client: BrokerClient | None = None
        is_its = False
        try:
            self._remote.known = known = self._remote.find()
            client = self._client_of(known)
            is_its = told_by_its_broker(self._fs, self._paths, client) is not None
            if is_its:
                self._facts = facts_of(client)
            elif self._other != known.address:
                _LOG.warning("broker %s: %s does not write %s, and is not asked", self.name, known.address, self._root)
            self._other = "" if is_its else known.address
        except (UnavailableError, NotFoundError):
            is_its = False
        if client is not None and not is_its:
            client.close()
        return client if is_its else None

    def is_gone(self) -> bool:
        return self._remote.is_gone()

    def is_back(self) -> bool:
        return self._remote.is_back()


def upstream_of(name: str, settings: FollowSettings, clock: Clock, fs: FileSystem) -> Upstream:
    """Returns the way to a broker that the settings say."""
    if settings.store is not None:
        return DirectoryBroker(name, settings.store.absolute(), settings, clock, fs)
    return RemoteBroker(name, settings, clock)


def check_settings(settings: FollowSettings) -> None:
    """Raises :class:`InvalidRequestError` for settings that do not say which brokers, or contradict each other."""
    brokers = settings.brokers
    if not brokers:
        raise InvalidRequestError("no broker is named", hint="give --broker NAME, as its nameserver knows it")
    if not settings.nameservers and settings.store is None:
        raise InvalidRequestError(
            "where the broker is found is not said", hint="give --namesrv HOST:PORT, or --store DIR for its directory"
        )
    for flag, value in (("--ha", settings.ha), ("--store", settings.store)):
        if value is not None and len(brokers) > 1:
            raise InvalidRequestError(f"{flag} is of one broker, and {len(brokers)} are named")
    if settings.store is not None and settings.mode == "replica":
        raise InvalidRequestError(
            "a replica is what a broker sends its log to, and --store reads its files",
            hint="leave one of --store and --mode replica out",
        )
    if settings.hold and settings.store is None:
        raise InvalidRequestError("--hold keeps files of a broker's directory", hint="it goes with --store DIR")
    if settings.promote and not settings.nameservers:
        raise InvalidRequestError(
            "whether the broker is gone is asked where it answers, which no nameserver says",
            hint="give --namesrv HOST:PORT with --promote",
        )
    if settings.listen is not None and not settings.nameservers:
        raise InvalidRequestError(
            "who looks for the archive asks a nameserver, and none is named", hint="give --namesrv with --listen"
        )
    for address in settings.nameservers:
        parse_address(address)
    credentials_of(settings)


def credentials_of(settings: FollowSettings) -> Credentials | None:
    """Returns what requests are signed with; None if they are not.

    Raises :class:`InvalidRequestError` if one half of it is missing, or the file cannot be read.
    """
    secret = None if settings.secret_key is None else settings.secret_key.get_secret_value()
    if settings.secret_key_file is not None:
        try:
            secret = settings.secret_key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(
                "the secret key cannot be read", path=str(settings.secret_key_file), hint=str(error)
            ) from error
    if settings.access_key is None and secret is None:
        return None
    if not settings.access_key or not secret:
        raise InvalidRequestError(
            "an access key and its secret go together",
            hint="set follow.access_key, and follow.secret_key_file or TIERLOG_FOLLOW_SECRET_KEY",
        )
    return Credentials(settings.access_key, secret)


def _listens(address: str) -> bool | None:
    """Whether somebody listens there; None where that cannot be told: silence says neither."""
    try:
        with contextlib.closing(socket.create_connection(parse_address(address), timeout=_PROBE_S)):
            return True
    except ConnectionRefusedError:
        return False
    except (OSError, StoreError):
        return None


def _disk_used(info: Mapping[str, str]) -> float | None:
    try:
        found = float(info["commitLogDiskRatio"])
    except (ValueError, KeyError):
        return None
    return found if 0 <= found <= 1 else None
