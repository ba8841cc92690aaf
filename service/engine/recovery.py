"""The steps of opening a store, in order, however it was stopped.

:func:`take_volume` settles who may use the directory:

1. For a new store, steps 3 and 4 come first, and its volume must hold it: one that is refused leaves no trace. It is
   refused where the archive has a store that it may be meant to go on with, and while the archive cannot tell.
2. The lock, which goes with the process.
3. The identity of this open is planned, with a fresh open id.
4. The archive is asked whose it is and what its tails hold, for seconds at most.
5. ``store.json`` is replaced: from now on this open is the one that may write. A new store is made once all steps are
   done, which leaves ``checkpoint``; where one fails before that, what it has written goes.

From here on only tails are read from the bucket, and nobody waits for it:

6. The head that was seen last is read (``head.json``): what is archived and what is hidden while the bucket is dead.
7. The log is mapped and the complete files of the index are listed, as :class:`HotStore` and :class:`LocalIndex` load
   them.

:func:`recover_hot_tier` makes all of it agree:

8. The log is scanned from the recovery point, tails give back what it lost, and queues and indexes follow; index files
   that are full are sealed meanwhile (:mod:`tiering.hot.recovery` has the log's own steps).
9. What an index has of records that are lost goes.
10. The log goes on behind everything that tails may hold, and behind everything that is hidden.
11. What the indexes lack after that is derived: above what they have, then the gaps between their files.

Last come those who depend on where the log ends:

12. The committed offsets of groups are read (``groups.json``), and what they have above them (``deliveries.json``).
13. A log that ends below what is archived, by the head of step 4, is refused. Whoever has taken the archive over since
    is found by the first commit, which asks the head as every commit does.

The same steps run after every kind of stop; after a clean one they find little to do. They run in memory when a store
is only read. Beside each step is what holds if the process is killed there. ``docs/recovery.md`` has the argument for
each durable step, and the tests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from shlex import quote

from tierlog.index.format.header import chained_bytes
from tierlog.index.format.layout import TIERLOG
from tierlog.index.format.trailer import TRAILER_BYTES
from tierlog.index.local.local_index import LocalIndex
from tierlog.index.local.recovery import RecoveringIndex
from tierlog.index.rocketmq.classic_index import ClassicIndex
from tierlog.service.config.settings import Settings
from tierlog.service.engine.archive_mover import owner_of
from tierlog.service.engine.bucket_guard import BucketGuard
from tierlog.service.engine.parts import StoreDirectory
from tierlog.tiering.base.errors import (
    CorruptionError,
    DiskFullError,
    FencedError,
    ObjectNotFoundError,
    StoreError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, Tombstone
from tierlog.tiering.format.tail import TailHead
from tierlog.tiering.hot.identity import StoreIdentity, clear_traces, is_made
from tierlog.tiering.hot.store import NO_LIMIT, HotStore
from tierlog.tiering.hot.topic_deletion import leave_hidden
from tierlog.tiering.lifecycle.tail_recovery import TailRestorer
from tierlog.tiering.lifecycle.tail_store import TailMark, TailObjects
from tierlog.tiering.objects.urls import stores_below

_FIRST_LOOK_S = 3.0
#: Stores of an archive that a refusal names.
_MOST_NAMED = 5
_LEAST_SEGMENT_BYTES = 4096
#: Of an index file with four items a slot.
_INDEX_BYTES_AN_ITEM = 40


@dataclass(frozen=True, slots=True)
class ArchiveConnection:
    """A store's archive before anybody has asked it."""

    manifest: ManifestStore
    guard: BucketGuard | None
    """The guard of writes to its bucket; None where nothing needs guarding."""


class FirstStart:
    """Takes along what a first start has made if it fails; once the store is open, nothing that happens does."""

    def __init__(self, fs: FileSystem, paths: StorePaths) -> None:
        self._fs = fs
        self._paths = paths
        self._is_over = False

    def end(self) -> None:
        """Notes that the store is open: whatever is raised from now on, also where it is closed, removes nothing."""
        self._is_over = True

    def undo(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Called where the resources of the opening are let go of, with what was raised, under the store's lock."""
        if kind is not None and not self._is_over:
            with contextlib.suppress(StoreError):  # the next start does it
                clear_traces(self._fs, self._paths)


@dataclass(frozen=True, slots=True)
class Volume:
    """The identity of the store, and the answer of its archive."""

    identity: StoreIdentity
    lost: TailRestorer
    archive: ArchiveConnection | None = None
    first_contact: str | None = None
    """The reason why the archive could not be reached."""
    first_start: FirstStart | None = None
    """Of a store that is new."""

    def is_open(self) -> None:
        """Ends the first start of a store that is new."""
        if self.first_start is not None:
            self.first_start.end()

    @property
    def manifest(self) -> ManifestStore | None:
        """The manifest of the archive; None for a store that has none."""
        return None if self.archive is None else self.archive.manifest


def take_volume(
    directory: StoreDirectory,
    *,
    plan: Callable[[], StoreIdentity],
    connect: Callable[[StoreIdentity], ArchiveConnection | None],
    is_named: bool,
    resources: contextlib.ExitStack,
) -> Volume:
    """Locks the directory and records durably who opens it; ``resources`` gets the lock.

    ``is_named``: somebody chose the store's id. Raises what :func:`plan_identity`, :func:`look_at_archive` and
    :func:`look_beside` do, :class:`StoreLockedError` if another process has the directory; ``store.json`` is as it was
    then.
    """
    fs, paths = directory.fs, directory.paths
    # A new store that is refused leaves no trace. Killed here: nothing is in the directory.
    volume = None if is_made(fs, paths) else _look(directory, plan, connect, is_named=is_named)
    # From the lock on, nobody else writes here. Killed here: folders without files, as before a new store.
    fs.make_dirs(paths.root)
    resources.enter_context(fs.lock(paths.lock))
    # A first start that was killed is begun anew, and this one takes along what it made if it fails. Killed here: the
    # next start does the same.
    is_new = not is_made(fs, paths)
    first_start = FirstStart(fs, paths) if is_new and not directory.read_only else None
    if first_start is not None:
        clear_traces(fs, paths)
        resources.push(first_start.undo)
    for folder in (paths.tmp, paths.tierlog):
        fs.make_dirs(folder)
    # A directory that was new may have become somebody's meanwhile. Killed here: an open id that nobody has seen.
    if volume is None or not is_new:
        volume = _look(directory, plan, connect, is_named=is_named)
    # This open may write. Killed here: the old identity or the new one, which names all that the head may hold.
    volume.identity.save(fs, paths)
    # What the bucket's check has found is kept. Killed here: the bucket is asked again.
    if volume.archive is not None and volume.archive.guard is not None:
        volume.archive.guard.remember()
    return replace(volume, first_start=first_start)


def check_room(fs: FileSystem, root: Path, settings: Settings, segment_bytes: int) -> None:
    """Raises :class:`DiskFullError` for a new store that its volume cannot hold, with settings that it could.

    It holds two segments, the one being archived and the one being written, and an index file, below the share at which
    appends are refused.
    """
    volume = root
    while not fs.exists(volume):
        volume = volume.parent
    slots, items = settings.index.slots, settings.index.items
    index_bytes = chained_bytes(TIERLOG, slots, items) + TRAILER_BYTES
    needed = 2 * segment_bytes + index_bytes
    full_percent = settings.hot.disk_full_percent
    total = fs.total_bytes(volume)
    room = fs.free_bytes(volume) - total * (100 - full_percent) // 100
    if needed <= room:
        return
    quarter = room // 4
    smaller = {}
    if quarter >= _LEAST_SEGMENT_BYTES:
        if segment_bytes > quarter:
            smaller["hot.segment_bytes"] = 1 << (quarter.bit_length() - 1)
        if index_bytes > quarter:
            smaller["index.items"] = quarter // _INDEX_BYTES_AN_ITEM
            smaller["index.slots"] = smaller["index.items"] // 4
    fitting = "set " + " and ".join(f"{name}={value}" for name, value in smaller.items())
    raise DiskFullError(
        f"the volume is too small for a new store: two segments and an index file take {needed} bytes, and "
        f"{max(room, 0)} of {total} are left below {full_percent} % (hot.disk_full_percent)",
        path=str(root),
        hint=f"{fitting}, or use a larger volume" if smaller else "free space, or use a larger volume",
    )


def _look(
    directory: StoreDirectory,
    plan: Callable[[], StoreIdentity],
    connect: Callable[[StoreIdentity], ArchiveConnection | None],
    *,
    is_named: bool,
) -> Volume:
    """Plans the identity and looks at its archive; writes nothing into the directory."""
    is_new = not is_made(directory.fs, directory.paths)
    identity = plan()
    followed_below = NO_LIMIT if identity.followed else identity.followed_below
    mark = TailMark(directory.fs, directory.paths)
    lost = TailRestorer(mark, identity.volume_id, followed_below=followed_below)
    archive = connect(identity)
    if archive is None:
        return Volume(identity, lost)
    first_contact = None
    if is_new:
        look_beside(archive.manifest, identity, directory.paths, is_named=is_named)
    else:
        first_contact = look_at_archive(archive.manifest, identity, lost, refuse=not directory.read_only)
    if archive.guard is not None and first_contact is None:
        archive.guard.ask()
    return Volume(identity, lost, archive, first_contact)


def look_beside(manifest: ManifestStore, identity: StoreIdentity, paths: StorePaths, *, is_named: bool) -> None:
    """Refuses to make a new store where the archive has one that it may be meant to go on with; writes nothing.

    That is a store of the same id and, where nobody chose an id, any store: an empty directory with the arguments of
    a service that was there before is how a lost disk looks. A store beside others gets a name from whoever wants it.
    Raises :class:`StoreMismatchError`, which names both ways on, and the object store's error if it cannot tell: what
    could not be read counts as there.
    """
    try:
        if is_named:
            manifest.check_owner(owner_of(identity))
            return
        found = list(islice(stores_below(manifest.objects), _MOST_NAMED))
    except StoreMismatchError as error:
        raise StoreMismatchError(error.message, path=error.path, hint=_ways_on(identity, paths)) from error
    except UnavailableError as error:
        raise type(error)(
            f"a new store is made once its archive says that it is not there: {error.message}",
            path=error.path,
            hint="try again when it answers",
        ) from error
    if found:
        more = " and more" if len(found) == _MOST_NAMED else ""
        raise StoreMismatchError(
            f"no store is in this directory and no id was given, but the archive has {', '.join(found)}{more} already",
            path=identity.cold_url,
            hint=_ways_on(replace(identity, store_id=found[0] if len(found) == 1 else "ID"), paths),
        )


def _ways_on(identity: StoreIdentity, paths: StorePaths) -> str:
    command = f"tierlog serve --root {quote(str(paths.root))} --cold {quote(identity.cold_url or '')}"
    return (
        f"to go on with it after its disk was lost: `{command} --store-id {identity.store_id} --restore` (whoever "
        f"wrote there is fenced); to make a new store beside it: `{command} --store-id ANOTHER-ID`"
    )


def look_at_archive(
    manifest: ManifestStore, identity: StoreIdentity, lost: TailRestorer, *, refuse: bool
) -> str | None:
    """Refuses an archive of another volume before a store is opened; returns why it could not be reached.

    Without ``refuse``, for reading, the reason is returned too.

    A dead bucket delays the opening by seconds only: the volume that owns the archive opens without asking, and
    every commit checks again.
    """
    outcome: list[Exception | None] = []
    found: list[tuple[Head, list[TailHead]]] = []
    tails = TailObjects(manifest.objects, manifest.keys)

    def look() -> None:
        try:
            manifest.check_owner(owner_of(identity))
            if manifest.head is not None and refuse:
                found.append((manifest.head, lost.look(tails, manifest.head)))
            outcome.append(None)
        except Exception as error:  # raised again by the opener below, or told as the reason
            outcome.append(error)

    thread = threading.Thread(target=look, name="tierlog-first-look", daemon=True)
    thread.start()
    thread.join(_FIRST_LOOK_S)
    if not outcome:
        return f"the archive did not answer within {_FIRST_LOOK_S} s"
    error = outcome[0]
    if error is None:
        for head, chain in found:
            lost.saw(tails, head, chain)
        return None
    # a head that is lost or damaged takes nothing from the hot tier, and no commit goes past it
    if isinstance(error, UnavailableError | ObjectNotFoundError | CorruptionError):
        return str(error)
    if not refuse and isinstance(error, FencedError | StoreMismatchError):
        return str(error)
    raise error


def recover_hot_tier(
    directory: StoreDirectory,
    hot: HotStore,
    index: LocalIndex,
    *,
    classic: ClassicIndex | None,
    lost: TailRestorer,
    tombstones: Sequence[Tombstone],
) -> None:
    """Recovers the log and everything derived from it; seals index files that are full on the way.

    ``tombstones`` are the erasures that the archive is known to say. Raises what :meth:`HotStore.recover` does.
    """
    # what is recovered in memory only is not kept
    seal_full: Callable[[], object] = (lambda: None) if directory.read_only else index.seal_full
    following = RecoveringIndex(index, seal_full)
    # Killed here: the recovery point is where it was until the very end. Index files that were sealed meanwhile stay.
    hot.recover([following], classic, put_back=lost.put_back)
    # The disk forgot flushed records that an index file had seen. Killed here: what is left of it is too new again.
    if index.next_offset() > hot.log.end:
        index.discard_above(hot.log.end)
    if classic is not None and classic.next_offset() > hot.log.end:
        classic.restart(hot.log.begin)
    # No offset that a tail may hold is given out again: the log goes on in the next segment, or the store is read-only
    # while the bucket cannot be asked. Killed here: the next open finds the same.
    lost.settle(hot)
    # Nothing new is hidden by an old deletion or erasure. Killed here: the next open does the rest.
    if not directory.read_only:
        leave_hidden(hot, max((stone.end for stone in tombstones), default=0))
    # The indexes follow again. Killed here: what was derived lies above the checkpoints, or in files that were sealed.
    hot.dispatch()
    # Index files that were dropped have left gaps. Killed here: what is not sealed is a gap again.
    for first, end in index.gaps(hot.border, hot.log.end):
        hot.derive(RecoveringIndex(index.derive(first, end), seal_full), first, end)
    following.end()
