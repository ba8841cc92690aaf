"""The cluster table, format version 1: which stores there are, where each answers, and what was decided about them.

::

    {"format": 1, "version": 7,
     "stores": {"a": {"url": "http://a:8080", "epoch": 3, "volume_id": "…"}},
     "topics": {"orders": "a"}, "closed": ["b"]}

``docs/formats/cluster.md`` says what each key means. Keys that are not known here are kept by whoever replaces the
table, at the top and in the entries of stores, so that an older node takes nothing away from a newer one.

:class:`ClusterTable` is one version, and :class:`ClusterTableStore` reads it by conditional GETs and changes it by
compare-and-swap. A topic that is not routed has the store that rendezvous hashing finds (:func:`rendezvous`): the one
whose weight together with the name is greatest. The weight of a store for a name is XXH64 (seed 0) of the UTF-8 of
``name``, a zero byte, and the store id. Every process of every version finds the same store, and when a store comes,
about one name in n moves, to that store only.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import xxhash

from tierlog.tiering.base.backoff import Retries, TryAgain
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ConflictError,
    CorruptionError,
    InvalidRequestError,
    NotFoundError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    UnavailableError,
    UnsupportedFormatError,
)
from tierlog.tiering.base.paths import CLUSTER_TABLE
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.hot.identity import validate_known_store_id
from tierlog.tiering.message.batch import validate_topic
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.remote.endpoint import ServiceAddress

FORMAT = 1
#: The table is read whole by every process, and goes through memory as JSON.
MAX_TABLE_BYTES = 4 << 20
_END = 1 << 63
_KEYS = ("format", "version", "stores", "topics", "closed")
_ENTRY_KEYS = ("url", "epoch", "volume_id", "doors")
_TRIES = 24
_FIRST_PAUSE_S = 0.01
_MOST_PAUSE_S = 0.5

Json = dict[str, Any]


def weight(name: str, store_id: str) -> int:
    """Returns the unsigned 64-bit weight of one store for a name."""
    return xxhash.xxh64_intdigest(f"{name}\0{store_id}".encode())


def rendezvous(name: str, store_ids: Iterable[str]) -> str | None:
    """Returns the store for a name, or None of none; of equal weights the least id."""
    return max(sorted(store_ids), key=lambda store_id: weight(name, store_id), default=None)


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """The server of a store: ``epoch`` is that of the archive's head when the volume claimed it."""

    url: str
    epoch: int
    volume_id: str
    doors: Mapping[str, str] = field(default_factory=dict)
    """By protocol: ``host:port`` at which clients of RocketMQ reach the store."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a newer version has written."""

    def to_json(self) -> Json:
        """Returns the JSON form."""
        doors = {"doors": dict(sorted(self.doors.items()))} if self.doors else {}
        return {**self.more, "url": self.url, "epoch": self.epoch, "volume_id": self.volume_id, **doors}


@dataclass(frozen=True, slots=True)
class ClusterTable:
    """One version of the table; changes make a new one of the same version, which is counted when it is stored."""

    version: int = 0
    stores: Mapping[str, StoreEntry] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a newer version has written."""

    @property
    def open_stores(self) -> list[str]:
        """The stores that topics are hashed over, by id: those that are not closed, or all if every one is."""
        return sorted(set(self.stores) - self.closed) or sorted(self.stores)

    # changes

    def enter(self, store_id: str, entry: StoreEntry) -> ClusterTable:
        """Adds the entry of a store; :class:`ConflictError` if a later owner of it has entered itself before."""
        found = self.stores.get(store_id)
        if found is not None:
            if found.epoch > entry.epoch or (found.epoch == entry.epoch and found.volume_id != entry.volume_id):
                raise ConflictError(
                    f"volume {found.volume_id} has entered store {store_id} in the cluster table with epoch "
                    f"{found.epoch}; {entry.volume_id} has {entry.epoch}",
                    hint=f"if the archive was made anew, take the old entry out: `tierlog cluster --remove {store_id}`",
                )
            entry = replace(entry, more=found.more)
        return replace(self, stores={**self.stores, store_id: entry})

    def route(self, topic: str, store_id: str) -> ClusterTable:
        """Routes new messages of a topic to one store; :class:`NotFoundError` if there is no such store."""
        self.check_store(store_id)
        return replace(self, topics={**self.topics, topic: store_id})

    def unroute(self, topic: str) -> ClusterTable:
        """Leaves a topic to the store that it is hashed to."""
        return replace(self, topics={name: store for name, store in self.topics.items() if name != topic})

    def close(self, store_id: str) -> ClusterTable:
        """Hashes no topic to a store any more; :class:`ConflictError` for the last one that is open."""
        self.check_store(store_id)
        if not set(self.stores) - self.closed - {store_id}:
            raise ConflictError(f"store {store_id} is the only one that is open", hint="open or add another first")
        return replace(self, closed=self.closed | {store_id})

    def open(self, store_id: str) -> ClusterTable:
        """Hashes topics to a store again."""
        return replace(self, closed=self.closed - {store_id})

    def remove(self, store_id: str) -> ClusterTable:
        """Removes a store, its mark, and the topics that were routed to it."""
        return replace(
            self,
            stores={name: entry for name, entry in self.stores.items() if name != store_id},
            topics={topic: store for topic, store in self.topics.items() if store != store_id},
            closed=self.closed - {store_id},
        )

    def check_store(self, store_id: str) -> None:
        """Raises :class:`NotFoundError` unless the store is in the table."""
        if store_id not in self.stores:
            raise NotFoundError(
                f"store {store_id!r} is not in the cluster",
                hint=f"there are: {', '.join(sorted(self.stores)) or 'none yet'}",
            )

    # bytes

    def encode(self) -> bytes:
        """Returns the object's bytes; :class:`InvalidRequestError` if they are too many."""
        document = {
            **self.more,
            "format": FORMAT,
            "version": self.version,
            "stores": {store_id: self.stores[store_id].to_json() for store_id in sorted(self.stores)},
            "topics": dict(sorted(self.topics.items())),
            "closed": sorted(self.closed),
        }
        data = (json.dumps(document, indent=1) + "\n").encode()
        if len(data) > MAX_TABLE_BYTES:
            raise InvalidRequestError(
                f"the cluster table would have {len(data)} bytes, over {MAX_TABLE_BYTES}",
                hint="route fewer topics by name: most are where hashing puts them",
            )
        return data

    @classmethod
    def decode(cls, data: bytes, *, path: str | None = None) -> ClusterTable:
        """Decodes an object; :class:`UnsupportedFormatError` for a newer one, else :class:`CorruptionError`."""
        if len(data) > MAX_TABLE_BYTES:
            raise CorruptionError(f"the cluster table has {len(data)} bytes, over {MAX_TABLE_BYTES}", path=path)
        try:
            return cls._of(json.loads(data))
        except UnsupportedFormatError as error:
            raise UnsupportedFormatError(error.message, path=path) from error
        except (StoreError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            problem = f"the cluster table is damaged ({type(error).__name__}: {str(error)[:200]})"
            raise CorruptionError(problem, path=path) from error

    @classmethod
    def _of(cls, document: Any) -> ClusterTable:
        fields = _object(document)
        if _number(fields["format"]) > FORMAT:
            raise UnsupportedFormatError(f"the cluster table is of format {fields['format']}, newer than {FORMAT}")
        topics = _object(fields["topics"])
        for topic, store_id in topics.items():
            validate_topic(topic)
            _store_id(store_id)
        return cls(
            _number(fields["version"]),
            {_store_id(store_id): _entry(entry) for store_id, entry in _object(fields["stores"]).items()},
            topics,
            frozenset(_store_id(store_id) for store_id in _list(fields["closed"])),
            _without(fields, _KEYS),
        )


def _entry(value: object) -> StoreEntry:
    fields = _object(value)
    url, volume_id = fields["url"], fields["volume_id"]
    if not isinstance(volume_id, str):
        raise TypeError("a volume id is a text")
    ServiceAddress.parse(url)
    doors = _object(fields.get("doors", {}))
    for address in doors.values():
        _host_and_port(address)
    return StoreEntry(url, _number(fields["epoch"]), volume_id, doors, _without(fields, _ENTRY_KEYS))


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise TypeError("an object was expected")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("a list was expected")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _END:
        raise ValueError("a number from 0 on was expected")
    return value


def _host_and_port(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r".{1,255}:[0-9]{1,5}", value):
        raise ValueError("a host and a port were expected")
    return value


def _store_id(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a store id is a text")
    return validate_known_store_id(value)


def _without(fields: Json, known: Iterable[str]) -> Json:
    return {name: value for name, value in fields.items() if name not in known}


class ClusterTableStore:
    """The stored table of one prefix. Thread safe; one call at a time.

    Somebody may set the object back to an older version, or delete it. Versions count on from the greatest that was
    seen, and a table that is gone begins with what was known of it, so that nobody ever sees its version go back.
    """

    def __init__(
        self, objects: ObjectStore, clock: Clock, randomness: Randomness, stopping: threading.Event | None = None
    ) -> None:
        """``stopping`` ends the tries of a change, which fails then."""
        self._objects = objects
        self._retries = Retries(
            clock, randomness, tries=_TRIES, first_s=_FIRST_PAUSE_S, most_s=_MOST_PAUSE_S, stopping=stopping
        )
        self._lock = threading.Lock()
        self._etag: str | None = None
        self._seen = ClusterTable()
        self._newest = ClusterTable()

    @property
    def is_set_back(self) -> bool:
        """Whether the object, when last seen, was gone or older than one seen before: any change puts that right."""
        return self._etag is None or self._seen.version < self._newest.version

    def refresh(self) -> ClusterTable:
        """Reads the newest table with one request; before there is one, returns version 0 without stores."""
        with self._lock:
            self._refresh()
            return self._newest

    def change(self, edit: Callable[[ClusterTable], ClusterTable]) -> ClusterTable:
        """Replaces the table with ``edit`` of the newest version, retrying until no other write intervenes.

        ``edit`` has to be a change that may be made twice: it is tried once more after a write that got no answer, and
        where it changes nothing there is nothing to write. What it raises is raised. So is the object store's error if
        the outcome could not be learnt, and :class:`ConflictError` if the table kept changing.
        """
        with self._lock:
            return self._retries.run(partial(self._change, edit))

    def _change(self, edit: Callable[[ClusterTable], ClusterTable]) -> ClusterTable:
        self._refresh()  # a dead bucket raises here: the outcome of an earlier try stays unknown
        wanted = edit(self._seen)
        if wanted == self._seen and not self.is_set_back:
            return self._seen
        table = replace(wanted, version=max(self._seen.version, self._newest.version) + 1)
        try:
            if self._etag is None:
                info = self._objects.put(CLUSTER_TABLE, table.encode(), if_absent=True)
            else:
                info = self._objects.put(CLUSTER_TABLE, table.encode(), if_match=self._etag)
        except PreconditionFailedError as error:
            changed = ConflictError(f"the cluster table kept changing over {_TRIES} tries", path=CLUSTER_TABLE)
            raise TryAgain(changed) from error
        except UnavailableError as error:
            raise TryAgain(error) from error
        self._keep(table, info.etag)
        return table

    def _refresh(self) -> None:
        try:
            if self._etag is None:
                found = self._objects.get(CLUSTER_TABLE)
            else:
                changed = self._objects.get_if_changed(CLUSTER_TABLE, self._etag)
                if changed is None:
                    return
                found = changed
        except ObjectNotFoundError:
            self._etag, self._seen = None, self._newest
            return
        data, info = found
        self._keep(ClusterTable.decode(data, path=CLUSTER_TABLE), info.etag)

    def _keep(self, table: ClusterTable, etag: str) -> None:
        self._etag, self._seen = etag, table
        if table.version >= self._newest.version:
            self._newest = table
