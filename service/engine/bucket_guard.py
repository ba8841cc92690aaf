"""The guard between a store and a bucket on which compare-and-swap may not hold.

A bucket is asked once for each volume and URL, and ``tierlog/bucket.json`` remembers the answer::

    {"format": 1, "cold_url": "s3://…", "volume_id": "…", "conditional_writes": true, "write_under_way": false}

Asked at opening within a few seconds; where the bucket is dead then, before the first conditional write. Killed before
the answer is remembered: it is asked again. ``write_under_way`` belongs to ``cold.single_writer``.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, replace

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, UnavailableError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.objects.doctor import broken_condition
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore
from tierlog.tiering.objects.single_writer import GuardedObjectStore, SingleWriterPuts

_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Known:
    cold_url: str
    volume_id: str
    conditional_writes: bool = False
    write_under_way: bool = False


_FILE = JsonFile(
    decode=lambda found: _Known(
        str(found["cold_url"]), str(found["volume_id"]),
        bool(found["conditional_writes"]), bool(found["write_under_way"]),
    ),
    encode=asdict,
)  # fmt: skip


class BucketGuard:
    """The guard of one open store; :meth:`guarded` is the store to write through."""

    def __init__(
        self,
        store: ObjectStore,
        identity: StoreIdentity,
        *,
        fs: FileSystem,
        paths: StorePaths,
        clock: Clock,
        randomness: Randomness,
        single_writer: bool,
    ) -> None:
        assert identity.cold_url is not None
        self._store = store
        self._fs = fs
        self._paths = paths
        self._randomness = randomness
        self._single_writer = single_writer
        self._lock = threading.Lock()
        self._refusal: StoreError | None = None
        self._known = self._read(identity.cold_url, identity.volume_id)
        self._alone = SingleWriterPuts(store, clock, self._mark, marked=self._known.write_under_way)
        self.guarded = GuardedObjectStore(store, self._alone if single_writer else self._checked_put)

    def ask(self) -> None:
        """Asks the bucket now, unless that was done; raises InvalidRequestError if it is not safe.

        Waits for seconds; a bucket that does not answer by then is asked again before the first conditional write.
        """
        if self._single_writer or self._known.conditional_writes:
            return
        refusals: list[StoreError] = []

        def look() -> None:
            try:
                self._ensure()
            except StoreError as error:
                refusals.append(error)

        thread = threading.Thread(target=look, name="tierlog-bucket-check", daemon=True)
        thread.start()
        thread.join(_LIMIT_S)
        for refusal in refusals:
            if not isinstance(refusal, UnavailableError):
                raise refusal

    def remember(self) -> None:
        """Makes durable what is known, once the store's folders exist."""
        if self._known.conditional_writes:
            self._save()

    def _checked_put(self, key: str, data: bytes, *, if_absent: bool, if_match: str | None) -> ObjectInfo:
        self._ensure()
        return self._store.put(key, data, if_absent=if_absent, if_match=if_match)

    def _ensure(self) -> None:
        with self._lock:
            if self._known.conditional_writes:
                return
            if self._refusal is not None:
                raise self._refusal
            problem = broken_condition(self._store, self._randomness.token_hex(8))
            if problem is not None:
                self._refusal = InvalidRequestError(
                    f"compare-and-swap does not hold in this bucket: {problem}",
                    path=self._known.cold_url,
                    hint="see tierlog doctor; cold.single_writer and docs/object_stores.md for one writer alone",
                )
                raise self._refusal
            self._known = replace(self._known, conditional_writes=True)
            if self._fs.exists(self._paths.tierlog):
                self._save()

    def _mark(self, under_way: bool) -> None:
        self._known = replace(self._known, write_under_way=under_way)
        self._save()

    def _read(self, cold_url: str, volume_id: str) -> _Known:
        known = _FILE.read(self._fs, self._paths.bucket_json)
        if known is not None and (known.cold_url, known.volume_id) == (cold_url, volume_id):
            return known
        return _Known(cold_url, volume_id)

    def _save(self) -> None:
        _FILE.replace(self._fs, self._paths.bucket_json, self._known, self._paths.tmp)
