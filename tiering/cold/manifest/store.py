"""Reads and commits the manifest of one store: one head, replaced by compare-and-swap, and immutable pages.

A commit keeps one id over all its tries. Whatever answer a try got, the committer reads the head and looks for its
id before it concludes anything: a lost 200, a 409 or a 412 may all hide a commit that landed.

An object that an old head names may be gone, because a newer head names another in its stead. A reader who meets a
missing object reads the head once more and goes on from there (:func:`despite_deletion`). If that head is the same, or
leads to a missing object again, the archive is damaged, and the error names the object.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeVar

from tierlog.tiering.base.backoff import Backoff, Retries
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.catalogue import ArchiveCatalogue
from tierlog.tiering.cold.manifest.change import ManifestChange, apply_change
from tierlog.tiering.cold.manifest.tree import TreeEdit
from tierlog.tiering.cold.reading.archive_reader import ArchiveCache, ArchiveReader
from tierlog.tiering.cold.reading.bill import ReadBill, RequestChain
from tierlog.tiering.format.manifest import REMEMBERED_COMMITS, Head
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore

__all__ = ["ManifestChange", "ManifestStore", "Ownership"]

_COMMIT_TRIES = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ownership:
    """A writer: a volume, its open, and the open ids that the head may still hold from before."""

    volume_id: str
    open_id: str
    head_open_ids: tuple[str, ...]


class ManifestStore(ArchiveCatalogue):
    """The manifest of one store. Thread safe; one commit at a time."""

    def __init__(
        self,
        objects: ObjectStore,
        keys: ColdKeys,
        *,
        randomness: Randomness,
        options: ColdOptions,
        cache: ArchiveCache | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.objects = objects
        self.keys = keys
        self.options = options
        self.cache = cache or ArchiveCache(options.cache_bytes)
        self._randomness = randomness
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        #: Whether this store has had an archive, as far as anybody here knows: a missing head then is a lost one.
        self.had_head = False
        self._head: Head | None = None
        self._etag: str | None = None
        self._looked_s = float("-inf")
        self._epoch: int | None = None

    def reader(self, bill: ReadBill | RequestChain | None = None, *, scan: bool = False) -> ArchiveReader:
        """Returns a reader of this archive's objects on a bill of its own; ``scan`` for one that reads much once."""
        return ArchiveReader(self.objects, self.cache, bill, scan=scan)

    # the head

    @property
    def head(self) -> Head | None:
        """The head last seen, or None before the first contact."""
        return self._head

    def refresh(self, bill: ReadBill | None = None) -> Head:
        """Returns the newest head; :class:`ObjectNotFoundError` if this store has no archive yet."""
        if bill is not None:
            bill.charge((self.keys.head, 0, 0), "head")
        with self._lock:
            return self._refresh()

    def _refresh(self) -> Head:
        try:
            found = self.objects.get_if_changed(self.keys.head, self._etag) if self._etag else self._read_head()
        except ObjectNotFoundError as error:
            if self.had_head:
                hint = "its last version must be put back; nothing else was touched"
                raise ObjectNotFoundError("the head of the archive is gone", path=self.keys.head, hint=hint) from error
            raise
        looked_s = self._clock.monotonic_s()
        if found is None:
            assert self._head is not None
            self._looked_s = looked_s
            return self._head
        data, info = found
        head = Head.decode(data, path=self.keys.head)
        if head.store_id != self.keys.store_id:
            raise CorruptionError(f"this is the head of store {head.store_id}", path=self.keys.head)
        self._head, self._etag, self.had_head, self._looked_s = head, info.etag, True, looked_s
        return head

    def recent(self, max_age_s: float) -> Head | None:
        """Returns the last head seen, if it was checked within ``max_age_s``."""
        return self._head if self._clock.monotonic_s() - self._looked_s <= max_age_s else None

    def _read_head(self) -> tuple[bytes, ObjectInfo] | None:
        return self.objects.get(self.keys.head)

    def covering(self, border: int, bill: ReadBill | None = None, *, version: int = 0) -> Head:
        """The head last seen, or the newest if that one does not cover everything below ``border`` or is too old.

        Another process may have archived and raised the border since, or have seen ``version``. Raises
        :class:`StoreMismatchError` if the newest head does not do either, :class:`ObjectNotFoundError` if this store
        has no archive yet.
        """
        head = self._head
        if head is None or head.archived_to < border or head.version < version:
            head = self.refresh(bill)
        if head.version < version:
            raise StoreMismatchError(
                f"the head has version {head.version}, and its store has seen {version}",
                path=self.keys.head,
                hint="the archive was set back, or the store has another one than this",
            )
        if head.archived_to < border:
            raise StoreMismatchError(
                f"the archive ends at {head.archived_to}, below {border}, up to which hot copies are gone",
                path=self.keys.head,
                hint="the archive is not the one that this store wrote, or was set back",
            )
        return head

    # writing

    def claim(self, owner: Ownership, *, log_begin: int, log_end: int) -> Head:
        """Makes the head, or raises its epoch, so that ``owner`` may commit; repeatable after any failure.

        ``log_begin`` is where a new archive starts, ``log_end`` the recovered end of the log. Raises
        :class:`StoreMismatchError` if another volume owns the head or the log ends below what is archived,
        :class:`FencedError` if a copy of this volume has written since.
        """
        with self._lock:
            try:
                head = self._refresh()
            except ObjectNotFoundError:
                if self.had_head:
                    raise  # a new head would make orphans of everything archived
                return self._create(owner, log_begin, ManifestChange())
            self._check_owner(head, owner, log_end)
            if head.open_id != owner.open_id:
                head = self._swap(
                    lambda seen: replace(seen, epoch=seen.epoch + 1, open_id=owner.open_id),
                    lambda seen: self._check_owner(seen, owner, log_end),
                    lambda seen: seen.open_id == owner.open_id,
                )
            self._epoch = head.epoch
            return head

    def create(self, owner: Ownership, change: ManifestChange, *, log_begin: int) -> Head:
        """Makes the archive of a new store with all that ``change`` names, by the one put that makes its head.

        Raises :class:`StoreMismatchError` if the store has an archive, the object store's error if the outcome could
        not be learnt: then nothing that ``change`` names may be deleted.
        """
        with self._lock:
            return self._create(owner, log_begin, change)

    def check_owner(self, owner: Ownership, *, log_end: int | None = None) -> None:
        """Looks whether ``owner`` may write, without writing; no archive yet is fine."""
        with self._lock:
            try:
                head = self._refresh()
            except ObjectNotFoundError:
                if self.had_head:
                    raise
                return
            self._check_owner(head, owner, log_end)

    def check_owner_seen(self, owner: Ownership, *, log_end: int) -> None:
        """Checks as :meth:`check_owner` does, by the head that was seen last and without a request.

        It does not wait for a request that is under way either, as a dead bucket keeps it so for long.
        """
        head = self._head
        if head is not None:
            self._check_owner(head, owner, log_end)

    def _check_owner(self, head: Head, owner: Ownership, log_end: int | None) -> None:
        if head.volume_id != owner.volume_id:
            if self._epoch is not None or len(owner.head_open_ids) > 1:
                raise FencedError(
                    f"volume {head.volume_id} has taken the archive of store {head.store_id} over",
                    path=self.keys.head,
                    hint="what only this volume holds is appended there by `tierlog salvage`",
                )
            raise StoreMismatchError(
                f"the archive of store {head.store_id} belongs to volume {head.volume_id}, not to {owner.volume_id}",
                path=self.keys.head,
                hint="use another store id or prefix; if that volume is lost, --restore makes a new one, and what an "
                "old one still holds comes back by `tierlog salvage`",
            )
        if head.open_id not in owner.head_open_ids:
            raise FencedError(
                "a copy of this volume has written to the archive since",
                path=self.keys.head,
                hint="what only this copy holds is appended there by `tierlog salvage`",
            )
        if log_end is not None and log_end < head.archived_to:
            raise StoreMismatchError(
                f"the log ends at {log_end}, below {head.archived_to}, up to which it was archived",
                path=self.keys.head,
                hint="the volume has lost data that the archive holds: make a new one with --restore, then `tierlog "
                "salvage` this one",
            )

    def _create(self, owner: Ownership, log_begin: int, change: ManifestChange) -> Head:
        commit_id = self._randomness.token_hex(8)
        nothing = Head(
            store_id=self.keys.store_id, volume_id=owner.volume_id, open_id=owner.open_id, epoch=1, version=0,
            commit_id=commit_id, commit_ids=(commit_id,), archived_to=log_begin, indexed_to=log_begin,
            cold_min=log_begin,
        )  # fmt: skip
        head = replace(self._apply(nothing, change), version=1)
        try:
            self._etag = self.objects.put(self.keys.head, head.encode(), if_absent=True).etag
            self._head, self.had_head = head, True
        except (PreconditionFailedError, UnavailableError) as error:
            self._etag = None
            try:
                found = self._refresh()
            except ObjectNotFoundError:
                raise error from None
            if found.commit_id != commit_id:
                raise StoreMismatchError("another volume has just made this archive", path=self.keys.head) from error
        self._epoch = 1
        return head

    def take_over(self, owner: Ownership, change: ManifestChange, expected: Head) -> Head:
        """Makes ``owner`` the volume that may write, with what ``change`` says, planned on ``expected``.

        Whoever wrote before is fenced from now on. Raises :class:`ConflictError` if anything was committed since
        ``expected`` (plan again).
        """

        def check(head: Head) -> None:
            if head.version != expected.version:
                raise ConflictError("the archive has changed since the takeover was planned", path=self.keys.head)

        def apply(head: Head) -> Head:
            head = self._apply(head, change)
            return replace(head, volume_id=owner.volume_id, open_id=owner.open_id, epoch=head.epoch + 1)

        with self._lock:
            head = self._swap(apply, check, lambda head: head.open_id == owner.open_id)
            self._epoch = head.epoch
            return head

    def commit(self, change: ManifestChange, expected: Head) -> Head:
        """Publishes what the store itself adds, planned on the watermarks and the erasures of ``expected``.

        Raises :class:`FencedError` if somebody raised the epoch, :class:`ConflictError` if a watermark has moved, an
        erasure has begun or the uploads took too long (build again), and the object store's error if the outcome
        could not be learnt (look again later: the watermarks say whether it landed).
        """

        def check(head: Head) -> None:
            self._check_epoch(head)
            if (head.archived_to, head.indexed_to) != (expected.archived_to, expected.indexed_to):
                raise ConflictError("the watermarks have moved since the commit was planned", path=self.keys.head)
            if any(tombstone not in expected.tombstones for tombstone in head.tombstones):
                raise ConflictError("an erasure has begun since the commit was planned", path=self.keys.head)
            self._check_in_time(change)

        def landed(head: Head) -> bool:
            moved = (head.archived_to, head.indexed_to) != (expected.archived_to, expected.indexed_to)
            return (moved and head.epoch == self._epoch) or self._knows(head, change)

        with self._lock:
            return self._swap(lambda head: self._apply(head, change), check, landed)

    def commit_other(
        self, change: ManifestChange, *, owned: bool = False, refuse: Callable[[Head], None] | None = None
    ) -> Head:
        """Publishes replacements and removals of named entries (merge, expiry, erasure, repair), from any process.

        Tried again from any newer head; ``refuse`` sees each of them first, and raises :class:`ConflictError` for one
        that the change was not planned on. So does this if an entry to be removed is gone or the uploads took too long;
        with ``owned``, for the store's own process, it raises :class:`FencedError` if the archive was taken over.
        """

        def check(head: Head) -> None:
            if owned:
                self._check_epoch(head)
            self._check_in_time(change)
            if refuse is not None:
                refuse(head)

        with self._lock:
            return self._swap(lambda head: self._apply(head, change), check, lambda head: self._knows(head, change))

    def begin_upload(self) -> float:
        """Returns what ``begun_s`` of a change is to be; asked before the first upload of what it will name."""
        return self._clock.monotonic_s()

    def backoff(self, *, first_s: float, most_s: float) -> Backoff:
        """Pauses for one who asks this archive again and again."""
        return Backoff(self._clock, self._randomness, first_s=first_s, most_s=most_s)

    def retries(self, *, tries: int, first_s: float, most_s: float) -> Retries:
        """Tries of a step that others may come between."""
        return Retries(self._clock, self._randomness, tries=tries, first_s=first_s, most_s=most_s)

    def _check_epoch(self, head: Head) -> None:
        if self._epoch is None or head.epoch != self._epoch:
            raise FencedError(
                "another volume, or a copy of this one, has taken the archive over",
                path=self.keys.head,
                hint="what only this one holds is appended there by `tierlog salvage`",
            )

    def _check_in_time(self, change: ManifestChange) -> None:
        """Refuses what was uploaded long ago: it may be swept as nobody's before it is named."""
        if change.begun_s is None:
            return
        if (self._clock.monotonic_s() - change.begun_s) * 1000 > self.options.grace_ms / 4:
            raise ConflictError("the upload took longer than a quarter of the grace period", path=self.keys.head)

    def _apply(self, head: Head, change: ManifestChange) -> Head:
        edit = TreeEdit(self.objects, self.keys, self._randomness, self.options, head.version + 1)
        return apply_change(head, change, edit)

    def _knows(self, head: Head, change: ManifestChange) -> bool:
        """Whether the names of a change ever came into the manifest: they are there, or on the removed list."""
        names = set(change.names)
        reader = self.reader()
        if not names.isdisjoint(entry.key for entry in self.log_entries(reader, head)):
            return True
        if not names.isdisjoint(entry.key for entry in self.all_index_entries(reader, head)):
            return True
        return not names.isdisjoint(key for key, _ in self.removed_names(reader, head))

    def _swap(
        self, apply: Callable[[Head], Head], check: Callable[[Head], None], landed: Callable[[Head], bool]
    ) -> Head:
        """Replaces the head by what ``apply`` makes of it, once.

        After a try without a clear answer its id among those that the head remembers says that it landed. When more
        commits than that have followed, ``landed`` looks for its traces. A try that got no answer may still land as
        long as nobody else has replaced the head that it is for, so that a refusal is not certain either.
        """
        commit_id = self._randomness.token_hex(8)
        tried_on: int | None = None
        unanswered: tuple[int, UnavailableError] | None = None
        for _ in range(_COMMIT_TRIES):
            # what is there now, and whether an earlier try has landed
            seen = self._refresh()  # a dead bucket raises here: the outcome of an earlier try stays unknown
            if self._has_landed(seen, commit_id, tried_on, landed):
                return seen
            try:
                check(seen)
            except (ConflictError, FencedError):
                self._raise_if_open(unanswered, seen)
                raise
            # the next head, put on the condition that nobody else was faster
            head = replace(
                apply(seen),
                version=seen.version + 1,
                commit_id=commit_id,
                commit_ids=(*seen.commit_ids, commit_id)[-REMEMBERED_COMMITS:],
            )
            tried_on = seen.version if tried_on is None else tried_on
            try:
                info = self.objects.put(self.keys.head, head.encode(), if_match=self._etag)
            except PreconditionFailedError:
                continue
            except UnavailableError as error:
                unanswered = seen.version, error
                continue
            self._head, self._etag = head, info.etag
            return head
        # no try got through: the last one may still have landed
        seen = self._refresh()
        if self._has_landed(seen, commit_id, tried_on, landed):
            return seen
        self._raise_if_open(unanswered, seen)
        raise ConflictError(f"the head kept changing over {_COMMIT_TRIES} tries", path=self.keys.head)

    @staticmethod
    def _raise_if_open(unanswered: tuple[int, UnavailableError] | None, seen: Head) -> None:
        """Raises the error of a try that may still land."""
        if unanswered is not None and unanswered[0] == seen.version:
            raise unanswered[1]

    @staticmethod
    def _has_landed(head: Head, commit_id: str, tried_on: int | None, landed: Callable[[Head], bool]) -> bool:
        if tried_on is None:
            return False
        if commit_id in head.commit_ids:
            return True
        return head.version > tried_on + REMEMBERED_COMMITS and landed(head)


def newer_head(manifest: ManifestStore, head: Head, error: ObjectNotFoundError) -> Head:
    """Returns the head that has replaced ``head``; raises ``error`` if none has."""
    newer = manifest.refresh()
    if newer.version == head.version:
        raise error
    return newer


def despite_deletion(manifest: ManifestStore, head: Head, work: Callable[[Head], T]) -> T:
    """Returns what ``work`` makes of the head, or of the one that has replaced it."""
    try:
        return work(head)
    except ObjectNotFoundError as error:
        newer = newer_head(manifest, head, error)
    return work(newer)


def items_despite_deletion(
    manifest: ManifestStore, head: Head, read: Callable[[Head, int], Generator[tuple[int, T]]], offset: int
) -> Generator[tuple[int, T]]:
    """Yields numbered items in order, from ``offset`` on.

    A reader of the new head goes on behind the last that was read.
    """
    try:
        with contextlib.closing(read(head, offset)) as items:
            for number, item in items:
                offset = number + 1
                yield number, item
        return
    except ObjectNotFoundError as error:
        newer = newer_head(manifest, head, error)
    yield from read(newer, offset)
