"""Deletes what nobody names any more, a grace period later: names on the removed list, orphans, and stale uploads.

Only the owner of a store sweeps it. All times are the server's. What is safe to delete, and why, is in
``docs/formats/manifest.md``, Sweep. Killed anywhere: what is left is found again by the next sweep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.format.manifest import Head, RemovedPage, decode_removed

#: Orphans found in one sweep; the rest is left to the next.
_MAX_ORPHANS = 10_000
#: What a restart may make a sweep delete again, in vain.
_MAX_EMPTIED_PAGES = 8
_MAX_EMPTIED_NAMES = 1_000


def overdue_ms(grace_ms: int) -> int:
    """Returns how long what nobody names may be there.

    That is a grace period, a quarter to the next sweep, and a quarter that it takes.
    """
    return grace_ms + grace_ms // 2


@dataclass(slots=True)
class SweepReport:
    """The outcome of one sweep."""

    removed: int = 0
    """Names of the removed list that were deleted."""
    orphans: int = 0
    """Objects deleted that nobody named."""
    uploads: int = 0
    """Unfinished uploads that were aborted."""
    kept: tuple[str, ...] = ()
    """Names on the removed list that the manifest names all the same; a defect, and they are not touched."""
    is_whole: bool = True
    """Whether everything that was due is gone; otherwise sweep again."""


class NameSet:
    """A set of names that takes 8 bytes each. Two names may be taken for one, in 1 of 2^64 pairs."""

    def __init__(self, names: Iterable[str]) -> None:
        self._prints = np.unique(np.fromiter((_print(name) for name in names), np.uint64))

    def __contains__(self, name: str) -> bool:
        wanted = np.uint64(_print(name))
        place = int(np.searchsorted(self._prints, wanted))
        return place < len(self._prints) and bool(self._prints[place] == wanted)


def _print(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


class Sweep:
    """Sweeps one store's part of the bucket; one at a time."""

    def __init__(self, manifest: ManifestStore, clock: Clock, going_on: Callable[[], None]) -> None:
        """``going_on`` is asked before every change and raises once the store is closing or no longer ours."""
        self.manifest = manifest
        self._clock = clock
        self._going_on = going_on
        self._emptied: dict[str, RemovedPage] = {}
        """Pages of the removed list all of whose names are deleted; dropped together, as dropping makes a page too."""

    def run(self, claim: Callable[[], object]) -> SweepReport:
        """Deletes what is due. ``claim`` is called before the first change, and makes this process the owner.

        Raises :class:`FencedError` if the archive was taken over, before an orphan is deleted, and the object store's
        errors.
        """
        manifest, grace_ms = self.manifest, self.manifest.options.grace_ms
        report = SweepReport()
        until_s = self._clock.monotonic_s() + grace_ms / 4000
        long_ago_ms = manifest.objects.now_ms() - grace_ms
        self._abort_uploads(long_ago_ms, report)
        head = manifest.refresh()
        orphans = self._unknown(head, long_ago_ms, report)
        if orphans:
            claim()
            # A commit prepared before this one fails, checks the time again, and names nothing about to be deleted.
            head = self._drop_emptied()
        due = [page for page in head.removed if page.at_ms <= long_ago_ms and page.ref.key not in self._emptied]
        if orphans or due:
            claim()
            named = NameSet(self._names(head))
            leaving = NameSet(key for key, _ in manifest.removed_names(manifest.reader(scan=True), head))
            report.orphans = self._delete((key for key in orphans if key not in named and key not in leaving), until_s)
            self._emptied |= {page.ref.key: page for page in due if self._empty(page, named, until_s, report)}
            emptied = self._emptied.values()
            if len(emptied) >= _MAX_EMPTIED_PAGES or sum(page.count for page in emptied) > _MAX_EMPTIED_NAMES:
                self._drop_emptied()
        report.is_whole = report.is_whole and self._clock.monotonic_s() < until_s
        return report

    def _drop_emptied(self) -> Head:
        """Commits without the pages that are done, or just a new version."""
        head = self.manifest.commit_other(ManifestChange(deleted=tuple(self._emptied.values())), owned=True)
        self._emptied.clear()
        return head

    def _abort_uploads(self, long_ago_ms: int, report: SweepReport) -> None:
        for prefix in self.manifest.keys.swept:
            for pending in self.manifest.objects.list_uploads(prefix):
                if pending.started_ms <= long_ago_ms:
                    self._going_on()
                    self.manifest.objects.abort_upload(pending)
                    report.uploads += 1

    def _unknown(self, head: Head, long_ago_ms: int, report: SweepReport) -> list[str]:
        """Old names in the bucket that ``head`` does not know; whether they are orphans is for a later head to say."""
        removed = self.manifest.removed_names(self.manifest.reader(scan=True), head)
        known = NameSet(name for names in (self._names(head), (key for key, _ in removed)) for name in names)
        found: list[str] = []
        for prefix in self.manifest.keys.swept:
            for info in self.manifest.objects.list(prefix):
                if info.modified_ms <= long_ago_ms and info.key not in known:
                    if len(found) == _MAX_ORPHANS:
                        report.is_whole = False
                        return found
                    found.append(info.key)
        return found

    def _names(self, head: Head) -> Iterator[str]:
        """Everything the head leads to, but for what is on the removed list."""
        manifest, reader = self.manifest, self.manifest.reader(scan=True)
        yield from (ref.key for ref in manifest.pages(reader, head))
        yield from (entry.key for entry in manifest.log_entries(reader, head))
        yield from (entry.key for entry in manifest.all_index_entries(reader, head))

    def _empty(self, page: RemovedPage, named: NameSet, until_s: float, report: SweepReport) -> bool:
        """Deletes all names of a page; False if some are left."""
        reader = self.manifest.reader(scan=True)
        data = reader.fetch(page.ref.key, 0, page.ref.size_bytes, "removed names")
        keys = decode_removed(data, path=page.ref.key)
        report.kept += tuple(key for key in keys if key in named)
        doomed = [key for key in keys if key not in named]
        deleted = self._delete(doomed, until_s)
        report.removed += deleted
        return deleted == len(keys)

    def _delete(self, keys: Iterable[str], until_s: float) -> int:
        deleted = 0
        for key in keys:
            if self._clock.monotonic_s() >= until_s:
                break
            self._going_on()
            self.manifest.objects.delete(key)
            deleted += 1
        return deleted
