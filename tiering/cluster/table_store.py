"""Reads the cluster table by conditional GETs and changes it by compare-and-swap."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from tiering.backoff import Backoff
from tiering.clock import Clock
from tiering.cluster.table import ClusterTable
from tiering.cold.object_store import ObjectStore
from tiering.errors import ConflictError, ObjectNotFoundError, PreconditionFailedError, UnavailableError
from tiering.paths import CLUSTER_TABLE
from tiering.randomness import Randomness

_TRIES = 24
_FIRST_PAUSE_S = 0.01
_MOST_PAUSE_S = 0.5


class ClusterTableStore:
    """The table of one prefix. Thread safe; one call at a time.

    Somebody may set the object back to an older version, or delete it. Versions count on from the greatest that was
    seen, and a table that is gone begins with what was known of it, so that nobody ever sees its version go back.
    """

    def __init__(self, objects: ObjectStore, clock: Clock, randomness: Randomness) -> None:
        self._objects = objects
        self._clock = clock
        self._randomness = randomness
        self._lock = threading.Lock()
        self._etag: str | None = None
        self._seen = ClusterTable()
        self._newest = ClusterTable()

    @property
    def is_set_back(self) -> bool:
        """Whether the object, when last seen, was gone or older than one seen before: any change puts that right."""
        return self._etag is None or self._seen.version < self._newest.version

    def refresh(self) -> ClusterTable:
        """The newest table, one request; that of version 0, without stores, before there is any."""
        with self._lock:
            self._refresh()
            return self._newest

    def change(self, edit: Callable[[ClusterTable], ClusterTable]) -> ClusterTable:
        """Replace the table by what ``edit`` makes of the newest, again and again until nobody comes between.

        ``edit`` has to be a change that may be made twice: it is tried once more after a write that got no answer, and
        where it changes nothing there is nothing to write. What it raises is raised. So is the object store's error if
        the outcome could not be learnt, and :class:`ConflictError` if the table kept changing.
        """
        pauses = Backoff(self._clock, self._randomness, first_s=_FIRST_PAUSE_S, most_s=_MOST_PAUSE_S)
        unanswered: UnavailableError | None = None
        with self._lock:
            for _ in range(_TRIES):
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
                except PreconditionFailedError:
                    unanswered = None
                except UnavailableError as error:
                    unanswered = error
                else:
                    self._keep(table, info.etag)
                    return table
                pauses.failed()
                self._clock.wait(threading.Event(), pauses.left_s)
        raise unanswered or ConflictError(f"the cluster table kept changing over {_TRIES} tries", path=CLUSTER_TABLE)

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
