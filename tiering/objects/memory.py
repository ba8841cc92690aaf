"""Objects in the memory of this process: a whole store for tests and trials, gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import (
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    TornRecordError,
)
from tierlog.tiering.objects.object_store import (
    Content,
    ObjectInfo,
    PendingUpload,
    validate_after,
    validate_conditions,
    validate_key,
    validate_prefix,
    validate_range,
)


class MemoryObjectStore:
    """Keeps the contract of ObjectStore in memory; one lock makes every call atomic.

    It is the server as well as the client: ``close`` loses nothing, and two users of one instance share its
    objects. A key may be a folder of another one, as on S3.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._uploads: dict[str, PendingUpload] = {}
        self._upload_count = 0

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """Stores ``data``; a condition is checked and the object replaced in one step."""
        validate_key(key)
        validate_conditions(if_absent, if_match)
        kept = bytes(data)
        with self._lock:
            current = self._objects.get(key)
            if if_absent and current is not None:
                raise PreconditionFailedError("the object exists", path=key)
            if if_match is not None and (current is None or current[1].etag != if_match):
                raise PreconditionFailedError("the object is gone or was replaced", path=key)
            return self._store(key, kept)

    def upload(self, key: str, pieces: Iterable[bytes]) -> ObjectInfo:
        """Collects the pieces, then stores them; the whole object is in memory, as everything here is."""
        validate_key(key)
        with self._lock:
            self._upload_count += 1
            pending = PendingUpload(key, str(self._upload_count), self._clock.now_ms())
            self._uploads[pending.upload_id] = pending
        try:
            data = b"".join(pieces)
            with self._lock:
                if pending.upload_id not in self._uploads:
                    raise ObjectStoreUnavailableError("the upload was aborted", path=key)
                return self._store(key, data)
        finally:
            self.abort_upload(pending)

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        validate_key(key)
        with self._lock:
            try:
                return self._objects[key]
            except KeyError:
                raise ObjectNotFoundError("no such object", path=key) from None

    def get_if_changed(self, key: str, etag: str) -> tuple[bytes, ObjectInfo] | None:
        found = self.get(key)
        return None if found[1].etag == etag else found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        validate_range(start, end)
        data, _ = self.get(key)
        if end > len(data):
            raise TornRecordError(f"[{start}, {end}) ends outside of {len(data)} bytes", path=key, position=len(data))
        return data[start:end]

    def head(self, key: str) -> ObjectInfo:
        return self.get(key)[1]

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yields what is there at the time of the call, in key order."""
        validate_prefix(prefix)
        validate_after(after)
        with self._lock:
            infos = [info for key, (_, info) in self._objects.items() if key.startswith(prefix) and key > after]
        # Text order is the order of code points, which UTF-8 keeps.
        return iter(sorted(infos, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        validate_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Returns the uploads running at the time of the call."""
        validate_prefix(prefix)
        with self._lock:
            return iter([pending for pending in self._uploads.values() if pending.key.startswith(prefix)])

    def abort_upload(self, pending: PendingUpload) -> None:
        """Makes a running upload fail at its end."""
        with self._lock:
            self._uploads.pop(pending.upload_id, None)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        """Nothing to give back."""

    def _store(self, key: str, data: bytes) -> ObjectInfo:
        info = Content(data).info(key, self._clock.now_ms())
        self._objects[key] = (data, info)
        return info
