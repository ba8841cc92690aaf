"""The cluster table, format version 1: which stores there are, where each answers, and what was decided about them.

::

    {"format": 1, "version": 7,
     "stores": {"a": {"url": "http://a:8080", "epoch": 3, "volume_id": "…"}},
     "topics": {"orders": "a"}, "closed": ["b"]}

``docs/formats/cluster.md`` says what each key means. Keys that are not known here are kept by whoever replaces the
table, at the top and in the entries of stores, so that an older node takes nothing away from a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tiering.batch import validate_topic
from tiering.errors import (
    ConflictError,
    CorruptionError,
    InvalidRequestError,
    NotFoundError,
    StoreError,
    UnsupportedFormatError,
)
from tiering.hot.identity import validate_known_store_id
from tiering.service_address import ServiceAddress

FORMAT = 1
#: The table is read whole by every process, and goes through memory as JSON.
MAX_TABLE_BYTES = 4 << 20
_END = 1 << 63
_KEYS = ("format", "version", "stores", "topics", "closed")
_ENTRY_KEYS = ("url", "epoch", "volume_id")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """Who serves a store: ``epoch`` is that of the archive's head when the volume claimed it."""

    url: str
    epoch: int
    volume_id: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """What a newer version has written beside."""

    def to_json(self) -> Json:
        """JSON form."""
        return {**self.more, "url": self.url, "epoch": self.epoch, "volume_id": self.volume_id}


@dataclass(frozen=True, slots=True)
class ClusterTable:
    """One version of the table; changes make a new one of the same version, which is counted when it is stored."""

    version: int = 0
    stores: Mapping[str, StoreEntry] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    more: Mapping[str, Any] = field(default_factory=dict)
    """What a newer version has written beside."""

    @property
    def open_stores(self) -> list[str]:
        """Stores that topics are hashed over, by id: those that are not closed, or all if every one is."""
        return sorted(set(self.stores) - self.closed) or sorted(self.stores)

    # changes

    def enter(self, store_id: str, entry: StoreEntry) -> ClusterTable:
        """With the entry of a store; :class:`ConflictError` if a later owner of it has entered itself before."""
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
        """With new messages of a topic going to one store; :class:`NotFoundError` if there is no such store."""
        self.check_store(store_id)
        return replace(self, topics={**self.topics, topic: store_id})

    def unroute(self, topic: str) -> ClusterTable:
        """With a topic at the store that it is hashed to."""
        return replace(self, topics={name: store for name, store in self.topics.items() if name != topic})

    def close(self, store_id: str) -> ClusterTable:
        """With no topic hashed to a store; :class:`ConflictError` for the last one that is open."""
        self.check_store(store_id)
        if not set(self.stores) - self.closed - {store_id}:
            raise ConflictError(f"store {store_id} is the only one that is open", hint="open or add another first")
        return replace(self, closed=self.closed | {store_id})

    def open(self, store_id: str) -> ClusterTable:
        """With topics hashed to a store again."""
        return replace(self, closed=self.closed - {store_id})

    def remove(self, store_id: str) -> ClusterTable:
        """Without a store, its mark, and the topics that were routed to it."""
        return replace(
            self,
            stores={name: entry for name, entry in self.stores.items() if name != store_id},
            topics={topic: store for topic, store in self.topics.items() if store != store_id},
            closed=self.closed - {store_id},
        )

    def check_store(self, store_id: str) -> None:
        """Raise :class:`NotFoundError` unless the store is in the table."""
        if store_id not in self.stores:
            raise NotFoundError(
                f"store {store_id!r} is not in the cluster",
                hint=f"there are: {', '.join(sorted(self.stores)) or 'none yet'}",
            )

    # bytes

    def encode(self) -> bytes:
        """The object's bytes; :class:`InvalidRequestError` if they are too many."""
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
        """Inverse of :meth:`encode`; :class:`UnsupportedFormatError` for a newer one, else :class:`CorruptionError`."""
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
    return StoreEntry(url, _number(fields["epoch"]), volume_id, _without(fields, _ENTRY_KEYS))


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


def _store_id(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a store id is a text")
    return validate_known_store_id(value)


def _without(fields: Json, known: Iterable[str]) -> Json:
    return {name: value for name, value in fields.items() if name not in known}
