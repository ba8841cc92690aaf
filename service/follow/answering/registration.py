"""Entries at the nameservers: the follow process is one more broker there, renewed every ten seconds.

An entry is of a name of our own, at an address of our own, and never of a broker's name: a nameserver where somebody
else has the name is left alone until that entry is gone. Each entry has a connection of its own to each nameserver, as
a nameserver forgets what came by a connection that closes: a process that is killed is gone at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from tierlog.service.rocketmq.remoting.handlers.topic_tools import topic_config
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ConflictError, StoreError
from tierlog.tiering.rocketmq.codes import RequestCode
from tierlog.tiering.rocketmq.remoting import BrokerClient, Credentials

_LOG = logging.getLogger("tierlog")
#: Time between two renewals; a nameserver forgets a broker after 120 s.
RENEW_S = 10.0
#: Time between two looks at whether there is something new to say.
_LOOK_S = 1.0
_FIRST_RETRY_S = 1.0


class OfferedTopic(NamedTuple):
    """A topic of an entry: what may be done with it, and its queues."""

    perm: int
    queues: int


_OWN_TOPIC = OfferedTopic(0, 1)


@dataclass(frozen=True, slots=True)
class NameserverEntry:
    """A broker as a nameserver is told of it."""

    name: str
    cluster: str
    address: str
    #: 0 is a master's number, which clients look for where only a master will do.
    broker_id: int
    topics: Mapping[str, OfferedTopic]


@dataclass(slots=True)
class _Place:
    """One entry at one nameserver."""

    client: BrokerClient
    #: What it was told last, None while it knows nothing of us.
    told: NameserverEntry | None = None
    due_s: float = 0.0
    retry_s: float = _FIRST_RETRY_S
    error: str | None = None
    #: Changes of the topics, from which a nameserver sees that it has to look at them.
    changes: int = 0
    changed_ms: int = 0


@dataclass(slots=True)
class Registration:
    """Keeps entries at nameservers, on a thread of its own. :meth:`look` does one round, for tests."""

    nameservers: Sequence[str]
    entries: Callable[[], Sequence[NameserverEntry]]
    clock: Clock
    credentials: Callable[[], Credentials | None] = lambda: None
    _places: dict[tuple[str, str], _Place] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Registers from now on."""
        self._thread = threading.Thread(target=self._run, name="tierlog-registration", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Takes every entry back; what does not answer forgets it by itself."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        for place in self._places.values():
            if place.told is not None:
                with contextlib.suppress(StoreError):
                    place.client.ask(RequestCode.UNREGISTER_BROKER, _fields(place.told))
            place.client.close()
        self._places.clear()

    @property
    def errors(self) -> dict[str, str]:
        """Why an entry is not at a nameserver, by both names."""
        return {f"{name} at {server}": at.error for (server, name), at in self._places.items() if at.error is not None}

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
            except Exception:
                _LOG.exception("the nameservers could not be told what is here")
            self.clock.wait(self._stopping, _LOOK_S)

    def look(self) -> None:
        """Tells each nameserver what is new or has to be renewed."""
        for entry in self.entries():
            for server in self.nameservers:
                if not self._stopping.is_set():
                    self._renew(server, entry)

    def _renew(self, server: str, entry: NameserverEntry) -> None:
        place = self._places.get((server, entry.name))
        if place is None:
            client = BrokerClient(server, clock=self.clock, credentials=self.credentials())
            place = self._places[server, entry.name] = _Place(client)
        is_new = place.told is None or place.told != entry
        if self.clock.monotonic_s() < place.due_s and not (is_new and place.error is None):
            return
        try:
            if place.told is None:
                _check_free(place.client, entry)
            if is_new:
                place.changes += 1
                place.changed_ms = self.clock.now_ms()
            place.client.ask(RequestCode.REGISTER_BROKER, *_registration(entry, place))
        except StoreError as error:
            if place.error is None:
                _LOG.warning("%s is not registered at the nameserver %s: %s", entry.name, server, error)
            place.told, place.error = None, error.message
            place.due_s = self.clock.monotonic_s() + place.retry_s
            place.retry_s = min(2 * place.retry_s, RENEW_S)
        else:
            if place.error is not None or place.told is None:
                _LOG.info("%s is registered at the nameserver %s", entry.name, server)
            place.told, place.error, place.retry_s = entry, None, _FIRST_RETRY_S
            place.due_s = self.clock.monotonic_s() + RENEW_S


def _check_free(client: BrokerClient, entry: NameserverEntry) -> None:
    """Raises :class:`ConflictError` if the nameserver knows the name at another address."""
    known = client.document(RequestCode.GET_BROKER_CLUSTER_INFO).get("brokerAddrTable")
    broker = known.get(entry.name) if isinstance(known, dict) else None
    addresses = broker.get("brokerAddrs") if isinstance(broker, dict) else None
    others = {str(one) for one in addresses.values()} - {entry.address} if isinstance(addresses, dict) else set()
    if others:
        raise ConflictError(
            f"the name {entry.name} is that of a broker at {', '.join(sorted(others))}",
            hint="a nameserver forgets one that has gone after two minutes",
        )


def _fields(entry: NameserverEntry) -> dict[str, str]:
    return {
        "brokerAddr": entry.address,
        "brokerId": str(entry.broker_id),
        "brokerName": entry.name,
        "clusterName": entry.cluster,
    }


def _registration(entry: NameserverEntry, place: _Place) -> tuple[dict[str, str], bytes]:
    version = {"counter": place.changes, "stateVersion": 0, "timestamp": place.changed_ms}
    # a topic of the broker's own name, as every broker has: a nameserver refuses a new broker with a single topic
    topics = {entry.name: _OWN_TOPIC, **entry.topics}
    table = {name: {**topic_config(name, of.queues), "perm": of.perm} for name, of in sorted(topics.items())}
    body = orjson.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": table},
        }
    )
    more = {
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "compressed": "false",
        # a slave's topics are listed only where it may stand in for its master, which this name never had
        "enableActingMaster": "true" if entry.broker_id else "false",
        "haServerAddr": entry.address,
    }
    return {**_fields(entry), **more}, body
