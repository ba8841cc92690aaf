"""``tierlog/store.json``: who this store is, and what must never change about it.

::

    {"format": 1, "store_id": "…", "volume_id": "…", "open_id": "…", "head_open_ids": ["…"],
     "cold_url": "file:///…" | null, "segment_bytes": 1073741824, "queue_file_units": 300000,
     "restoring_from": "…" | null}

A store whose log a follower of a RocketMQ broker writes (``docs/decisions/0055-a-follower-writes-the-log.md``) says so
by ``"followed": true``, and ``format`` is then 2, which versions that would append to it refuse. It stays 2 once the
store takes messages itself: below ``followed_below`` the log has what they do not expect, as offsets that jump or come
again, and times that fall. While its log is begun again behind a gap there is ``"gap": [end, begin]`` too.

A store is made once it was opened to the end, which leaves ``checkpoint``: see :func:`is_made`.

``open_id`` is fresh at every open. ``head_open_ids`` are the open ids that the archive's head may hold: the last one
known to be there and every later one, because an open that was cut off may have published its id or not. A copy of
the volume has an open id the head never saw, so of two copies only the first to write continues.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from tierlog.tiering.base.errors import InvalidRequestError, StoreMismatchError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import CLUSTER_FOLDER, StorePaths, parse_base_offset
from tierlog.tiering.base.randomness import Randomness

_FORMAT = 1
#: Of a store that follows a broker, or did.
_FORMAT_FOLLOWED = 2
#: Every legal store id, whole.
STORE_ID_PATTERN = "[a-z0-9-]{1,63}"
_STORE_ID = re.compile(STORE_ID_PATTERN)
DEFAULT_SEGMENT_BYTES = 1 << 30
DEFAULT_QUEUE_FILE_UNITS = 300_000


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The content of ``store.json``."""

    store_id: str
    volume_id: str
    open_id: str
    head_open_ids: tuple[str, ...]
    cold_url: str | None
    segment_bytes: int
    queue_file_units: int
    #: While the store is being restored: the volume that it takes the archive over from.
    restoring_from: str | None = None
    #: Whether the log is written by a follower of a broker, and by nobody else.
    followed: bool = False
    #: While the log of a follower is begun again: where it ended, and where the broker's log begins now.
    gap: tuple[int, int] | None = None
    #: Cluster and address of the broker that is followed, or was, where it was reached last.
    broker: tuple[str, str] | None = None
    #: A follower wrote the log below this physical offset, until the store was made an ordinary one.
    followed_below: int = 0
    #: Below this physical offset store times may step back, as a broker's do whose clock did.
    times_fall_below: int = 0

    @classmethod
    def read(cls, fs: FileSystem, paths: StorePaths) -> StoreIdentity | None:
        """Returns the store's identity, or None where no store was made yet."""
        return _FILE.read(fs, paths.store_json)

    def save(self, fs: FileSystem, paths: StorePaths) -> None:
        """Makes this the durable identity."""
        _FILE.replace(fs, paths.store_json, self, paths.tmp)

    def published(self) -> StoreIdentity:
        """This open's id is known to be in the head."""
        return replace(self, head_open_ids=(self.open_id,))


def is_made(fs: FileSystem, paths: StorePaths) -> bool:
    """Whether a store was ever opened here to the end, or anything else says that the directory holds more than traces.

    A first start that was refused or killed leaves an identity, and at most a first segment without a byte in it. Who
    has only that may begin anew, with other sizes.
    """
    written = (
        paths.checkpoint, paths.abort, paths.topics_json, paths.groups_json, paths.head_json, paths.producers_json
    )  # fmt: skip
    if any(fs.exists(path) for path in written):
        return True
    identity = StoreIdentity.read(fs, paths)
    if identity is not None and identity.restoring_from is not None:
        return True
    bases = _bases(fs, paths)
    begins_anywhere = identity is not None and identity.followed and len(bases) == 1
    return any((base > 0 and not begins_anywhere) or bool(fs.map_read(paths.segment(base)).any()) for base in bases)


def _bases(fs: FileSystem, paths: StorePaths) -> list[int]:
    return [base for base in map(parse_base_offset, fs.list_dir(paths.commitlog)) if base is not None]


def clear_traces(fs: FileSystem, paths: StorePaths) -> None:
    """Removes what a first start leaves that did not come to its end, and folders that are empty then; durably.

    Killed in here: less is left of a directory that is not :func:`is_made`. Never called for another one.
    """
    known = {path.name for path in paths.files}
    begun = (
        paths.tmp / name for name in fs.list_dir(paths.tmp) if name in known or parse_base_offset(name) is not None
    )
    for path in (*map(paths.segment, _bases(fs, paths)), *begun, *paths.files):
        fs.unlink(path)
    folders = [paths.index / name for name in fs.list_dir(paths.index)]
    folders += [paths.index, paths.quarantine, paths.cache, paths.consumequeue, paths.tmp]
    for folder in (*folders, paths.commitlog, paths.tierlog):
        if fs.is_dir(folder):
            fs.flush_dir(folder)
            if not fs.list_dir(folder):
                fs.remove_dir(folder)
    fs.flush_dir(paths.root)


def _decode(document: Any) -> StoreIdentity:
    known = {name: document[name] for name in StoreIdentity.__slots__ if name in document}
    gap = known.get("gap")
    known["gap"] = None if gap is None else (int(gap[0]), int(gap[1]))
    broker = known.get("broker")
    known["broker"] = None if broker is None else (str(broker[0]), str(broker[1]))
    return StoreIdentity(**{**known, "head_open_ids": tuple(known["head_open_ids"])})


def _encode(identity: StoreIdentity) -> bytes:
    has_brokers_log = identity.followed or identity.followed_below > 0
    document = {"format": _FORMAT_FOLLOWED if has_brokers_log else _FORMAT, **asdict(identity)}
    for name in ("followed", "broker", "followed_below", "gap", "times_fall_below"):
        if not document[name]:
            del document[name]
    return json.dumps(document, indent=1).encode()


_FILE = JsonFile(_decode, _encode, (_FORMAT, _FORMAT_FOLLOWED))


def validate_known_store_id(store_id: str) -> str:
    """Returns the id of a store that may be there, or raises :class:`InvalidRequestError`."""
    if not _STORE_ID.fullmatch(store_id):
        raise InvalidRequestError(f"bad store id {store_id[:100]!r}", hint="use 1 to 63 of a-z, 0-9 and -")
    return store_id


def validate_store_id(store_id: str | None) -> str | None:
    """Returns an id that a new store may have, or None for None, or raises :class:`InvalidRequestError`."""
    if store_id is None:
        return None
    if store_id == CLUSTER_FOLDER:
        raise InvalidRequestError(
            f"no store is called {store_id!r}: below an archive's prefix that is the folder of what its stores share",
            hint="choose another id",
        )
    return validate_known_store_id(store_id)


def plan_identity(
    fs: FileSystem,
    paths: StorePaths,
    randomness: Randomness,
    *,
    store_id: str | None,
    cold_url: str | None,
    segment_bytes: int | None,
    queue_file_units: int | None,
    followed: bool = False,
) -> StoreIdentity:
    """Returns the identity of this open, with a fresh open id; nothing is durable before :meth:`StoreIdentity.save`.

    None leaves a value as the store was made (or at its default). Raises :class:`StoreMismatchError` for a value
    that contradicts the store. A first start that did not come to its end binds nobody.
    """
    found = StoreIdentity.read(fs, paths) if is_made(fs, paths) else None
    open_id = randomness.token_hex(8)
    # a new store: what is not given is drawn, or a default
    if found is None:
        return StoreIdentity(
            store_id=validate_store_id(store_id) or randomness.token_hex(8), volume_id=randomness.token_hex(8),
            open_id=open_id, head_open_ids=(open_id,), cold_url=cold_url,
            segment_bytes=segment_bytes or DEFAULT_SEGMENT_BYTES,
            queue_file_units=queue_file_units or DEFAULT_QUEUE_FILE_UNITS, followed=followed,
        )  # fmt: skip
    # an existing one: what is given has to fit
    if found.restoring_from is not None:
        raise StoreMismatchError(
            "the restore of this store was cut off", path=str(paths.root), hint="run it again with --restore"
        )
    for name, asked, kept in (
        ("store id", store_id, found.store_id),
        ("cold URL", cold_url, found.cold_url),
        ("segment size", segment_bytes, found.segment_bytes),
        ("queue-file units", queue_file_units, found.queue_file_units),
    ):
        if asked is not None and kept is not None and asked != kept:
            raise StoreMismatchError(
                f"the store was made with {name} {kept}, not {asked}",
                path=str(paths.root),
                hint="leave the option out, or open another directory",
            )
    # a fresh open id, and those that the head may still hold
    if found.cold_url is None:  # no head has ever seen this volume
        return replace(found, open_id=open_id, head_open_ids=(open_id,), cold_url=cold_url)
    return replace(found, open_id=open_id, head_open_ids=(*found.head_open_ids, open_id))
