"""Archives as jobs read them: found and pinned on the driver, opened again by every executor process.

Credentials never travel: every process finds its own by the usual AWS means, and the endpoint of an S3-compatible
server in ``TIERLOG_S3_ENDPOINT`` (``spark.executorEnv.TIERLOG_S3_ENDPOINT`` on a cluster). So nothing secret is in a
job's arguments, and nothing in Spark's event log.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tierlog.tiering.base.backoff import TryAgain
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError, NotFoundError, ObjectNotFoundError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.types import END_OF_TIME_MS, TimeRange
from tierlog.tiering.cold.manifest.opened import open_manifest as open_manifest
from tierlog.tiering.cold.manifest.opened import open_objects as open_objects
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, LostRange
from tierlog.tiering.objects.urls import canonical_url, stores_below

_LOG = logging.getLogger(__name__)
_TRIES = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """One store of an archive as one head shows it.

    What tasks share, so that it goes to executors once for all of them: open erasures alone may have 100 kB of a head.
    """

    url: str
    store_id: str
    encoded_head: bytes

    @property
    def head(self) -> Head:
        """The head that all tasks of a job read by."""
        return _decoded(self.encoded_head, self.store_id)

    def for_known_entries(self) -> PinnedStore:
        """Returns the same for tasks that know which objects to read: their names are left out of the head."""
        bare = replace(self.head, log=(), index=(), log_tree=(), index_tree=(), removed=(), commit_ids=())
        return PinnedStore(self.url, self.store_id, bare.encode())

    @property
    def manifest(self) -> ManifestStore:
        """This process's manifest of the store; read it with :attr:`head`, not with a newer one."""
        return open_manifest(self.url, self.store_id)


@functools.lru_cache(maxsize=32)
def _decoded(encoded: bytes, store_id: str) -> Head:
    return Head.decode(encoded, path=ColdKeys(store_id).head)


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """The stores of one archive, each at one manifest version: what a query or job reads from beginning to end."""

    url: str
    stores: Mapping[str, PinnedStore]

    @classmethod
    def take(cls, url: str, store_ids: Iterable[str] = ()) -> ArchiveSnapshot:
        """Pins the newest head of every store below ``url``, or of those named.

        Raises :class:`InvalidRequestError` for a malformed URL, :class:`NotFoundError` if no archive or not the named
        one lies there, the object store's error if it cannot be asked.
        """
        url = canonical_url(url)
        check_is_there(url)
        objects = open_objects(url)
        wanted = sorted(store_ids) or list(stores_below(objects))
        if not wanted:
            raise NotFoundError("no archive of any store here", path=url)
        return cls(url, {store_id: pin(url, store_id) for store_id in wanted})

    def for_known_entries(self) -> ArchiveSnapshot:
        """Returns each store as :meth:`PinnedStore.for_known_entries` has it."""
        return replace(self, stores={name: store.for_known_entries() for name, store in self.stores.items()})

    def lost(self) -> Iterator[tuple[str, Iterable[LostRange]]]:
        """Yields each store with what it lacks of its broker's log."""
        for store in self.stores.values():
            yield store.store_id, store.head.lost

    def only(self) -> PinnedStore:
        """Returns the one store; :class:`InvalidRequestError` if there are several."""
        if len(self.stores) > 1:
            raise InvalidRequestError(f"{len(self.stores)} stores lie here", hint="name the store by its id")
        return next(iter(self.stores.values()))


def check_is_there(url: str) -> None:
    """Raises :class:`NotFoundError` if there is no directory of this name, which opening it would make."""
    scheme, _, path = url.partition("://")
    if scheme == "file" and not Path(path).is_dir():
        raise NotFoundError("no archive of any store here, nor a directory", path=url)


def warn_of_lost(by_store: Iterable[tuple[str, Iterable[LostRange]]], from_ms: int | None, to_ms: int | None) -> None:
    """Says of each range of a followed log that nobody has, and that was wanted: rows cannot tell what they lack."""
    wanted = TimeRange(0 if from_ms is None else from_ms, END_OF_TIME_MS if to_ms is None else to_ms)
    for store_id, ranges in by_store:
        for lost in ranges:
            if lost.may_be_in(wanted):
                say_lost(store_id, lost)


def say_lost(store_id: str, lost: LostRange) -> None:
    """Says that a store lacks a range of its broker's log, of which no offset and no row tells that it was there."""
    _LOG.warning("store %s is not complete: %s", store_id, lost.error().message)


def pin(url: str, store_id: str) -> PinnedStore:
    """Pins the newest head of one store; errors as of :meth:`ArchiveSnapshot.take`."""
    try:
        head = open_manifest(url, store_id).refresh()
    except ObjectNotFoundError as error:
        if next(iter(open_objects(url).list(f"{store_id}/")), None) is None:
            raise NotFoundError(f"no archive of store {store_id!r} here", path=url) from error
        raise  # the head of a store that is there is lost
    return PinnedStore(url, store_id, head.encode())


def retried(manifest: ManifestStore, step: Callable[[], T], final: tuple[type[ConflictError], ...] = ()) -> T:
    """Runs a step, which plans from the newest head each time, again while others are faster; returns its result.

    Another process may archive, merge, erase or expire beside a job. Pauses grow between tries. Raises
    :class:`ConflictError` if it keeps failing, and what is ``final`` at once.
    """

    def tried() -> T:
        try:
            return step()
        except final:
            raise
        except ConflictError as error:
            raise TryAgain(error) from error

    return manifest.retries(tries=_TRIES, first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S).run(tried)
