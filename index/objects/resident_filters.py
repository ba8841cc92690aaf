"""Key filters of index objects in memory: use decides which are there, and no query ever waits for one.

A filter that is not there is not fetched for a look-up, because a page answers the same question for less. Each
look-up in vain counts as a use of the filter that would have spared it. Once it has cost as much as the filter, and
there is room or others are used less (``tiering.cold.reading.memory_cache``), the filter is fetched in the
background. On the local disk lies a copy of what is in memory, so that a restart fetches nothing again.

A filter that is damaged or cannot be fetched is as if there were none; it is asked for again now and then.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tierlog.index.format.key_filter import KeyFilter
from tierlog.index.format.layout import LAYOUTS
from tierlog.index.format.object_sections import FILTER
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError, StoreError, UnsupportedFormatError
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.cold.reading.disk_cache import DiskCache
from tierlog.tiering.cold.reading.memory_cache import AdmissionByUse, ForgottenKeys, LayerCounters
from tierlog.tiering.format.manifest import Head, IndexEntry
from tierlog.tiering.format.section import SectionRef
from tierlog.tiering.objects.object_store import ObjectStore

_LOG = logging.getLogger("tierlog")
_THREADS = 2
_MOST_WAITING = 64
_ENTRY_BYTES = 1024
"""What a filter in memory costs beside its bits: its objects, its key and its counts."""
_PAUSE_S, _MOST_PAUSE_S = 60.0, 3600.0

#: Runs work some time later, on another thread.
Submit = Callable[[Callable[[], None]], object]


@dataclass(frozen=True, slots=True)
class FilterCounters(LayerCounters):
    """``hits`` are look-ups answered without a request, ``misses`` those in vain that had no filter.

    ``false_positives`` are those in vain despite one.
    """

    false_positives: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    failures: int = 0
    """Fetches that failed or brought a damaged filter, and damaged copies on disk."""


@dataclass(frozen=True, slots=True)
class _Kept:
    place: tuple[int, int, int]
    """Start, end and CRC-32 of the section."""
    filter: KeyFilter


class ResidentFilters:
    """Filters of the index objects of one archive, ``limit_bytes`` at most. Thread safe."""

    def __init__(
        self,
        objects: ObjectStore,
        limit_bytes: int,
        clock: Clock,
        *,
        disk: DiskCache | None = None,
        submit: Submit | None = None,
    ) -> None:
        """``disk`` holds filters only. ``submit`` takes the place of two threads that live while there is work."""
        self._objects = objects
        self._clock = clock
        self._disk = disk
        self._submit = submit or WorkerPool(_THREADS, "tierlog-filters").submit
        self._lock = threading.Lock()
        self._uses = AdmissionByUse(limit_bytes)
        self._filters: dict[str, _Kept] = {}
        self._forgotten = ForgottenKeys()
        self._waiting: set[str] = set()
        self._not_before_s: dict[str, float] = {}
        self._seen: dict[str, frozenset[str]] = {}
        self._pause_s, self._paused_until_s = 0.0, float("-inf")
        self._is_warm = self._is_closed = False
        self._hits = self._misses = self._evictions = self._false_positives = 0
        self._fetched = self._fetched_bytes = self._failures = 0

    # asking

    def __contains__(self, key: str) -> bool:
        """Whether the filter of an object is in memory."""
        return key in self._filters

    def rules_out(self, entry: IndexEntry, hash_low: int, hash_high: int) -> bool:
        """Whether the filter of an index object is in memory and says that the object lacks a key."""
        ref = _filter_of(entry)
        if ref is None:
            return False
        self.warm()
        with self._lock:
            kept = self._filters.get(entry.key)
            if kept is None:
                return False
            if kept.place == _place(ref):
                if kept.filter.may_contain(hash_low, hash_high if _HAS_HIGH[entry.layout] else 0):
                    return False
                self._hits += 1
                self._uses.use(entry.key)
                return True
        self._lost(entry.key, "the copy on disk is of another filter")
        self._drop(entry.key)
        return False

    def looked_up(self, entry: IndexEntry, *, found: bool) -> None:
        """Takes note of a look-up in the object itself; one in vain may have its filter fetched."""
        ref = _filter_of(entry)
        if found or ref is None:
            return
        with self._lock:
            if entry.key in self._filters:
                self._false_positives += 1
                return
            self._misses += 1
            self._uses.use(entry.key)
            if not self._is_wanted(entry.key, ref):
                return
            self._waiting.add(entry.key)
        self._later(partial(self._load, entry.key, ref), lambda: self._waiting.discard(entry.key))

    def _is_wanted(self, key: str, ref: SectionRef) -> bool:
        if self._is_closed or key in self._waiting or len(self._waiting) >= _MOST_WAITING or key in self._forgotten:
            return False
        return not self._is_paused(key) and self._uses.to_go_for(key, ref.length + _ENTRY_BYTES) is not None

    def _is_paused(self, key: str) -> bool:
        """Whether it is too early after a failure."""
        return self._clock.monotonic_s() < max(self._paused_until_s, self._not_before_s.get(key, float("-inf")))

    # bringing

    def _load(self, key: str, ref: SectionRef) -> None:
        """Fetches a filter if it is still worth it, after reserving room for it."""
        try:
            with self._lock:
                evicted = None
                if not self._is_closed and key not in self._forgotten and not self._is_paused(key):
                    evicted = self._uses.to_go_for(key, ref.length + _ENTRY_BYTES)
            if evicted is None:
                return
            for each in evicted:
                self._drop(each, evicted=True)
            with self._lock:
                if not self._uses.reserve(key, ref.length + _ENTRY_BYTES):
                    return  # another one took the room
            try:
                self._bring(key, ref)
            finally:
                with self._lock:
                    if key not in self._filters:
                        self._uses.drop(key)
        finally:
            with self._lock:
                self._waiting.discard(key)

    def _bring(self, key: str, ref: SectionRef) -> None:
        start, end = ref.position, ref.position + ref.length
        data = self._disk.get(key, start, end) if self._disk else None
        if data is not None:
            with contextlib.suppress(StoreError):
                self._keep(key, ref, data)
                return
            self._drop_on_disk(key, ref)
        try:
            data = self._objects.get_range(key, start, end)
            with self._lock:
                self._fetched += 1
                self._fetched_bytes += len(data)
            self._keep(key, ref, data)
        except Exception as error:  # whatever it is, nobody waits for this thread's outcome
            self._failed(key, error)
            return
        with self._lock:
            self._pause_s = 0.0
            self._not_before_s.pop(key, None)
        self._to_disk(key, ref, data)

    def _keep(self, key: str, ref: SectionRef, data: bytes) -> None:
        """Checks a filter whose room is reserved, and uses it from now on."""
        kept = _Kept(_place(ref), KeyFilter.decode(ref.check(data, path=key)))
        with self._lock:
            if not self._is_closed and key not in self._forgotten and self._uses.keep(key):
                self._filters[key] = kept

    def _failed(self, key: str, error: Exception) -> None:
        is_its_own = not isinstance(error, OSError | StoreError) or isinstance(
            error, CorruptionError | UnsupportedFormatError | ObjectNotFoundError
        )
        with self._lock:
            now_s = self._clock.monotonic_s()
            if is_its_own:
                self._not_before_s[key] = now_s + _MOST_PAUSE_S
            else:  # the archive's: no other filter would do better
                self._pause_s = min(2 * self._pause_s or _PAUSE_S, _MOST_PAUSE_S)
                self._paused_until_s = now_s + self._pause_s
        self._lost(key, str(error))

    def _lost(self, key: str, reason: str) -> None:
        with self._lock:
            self._failures += 1
        _LOG.warning("key filter of %s is not used: %s", key, reason)

    def offer(self, key: str, ref: SectionRef, read: Callable[[], bytes]) -> None:
        """Keeps a filter that is at hand, as while its object is published, if there is room.

        Its section is ``read`` then. Never raises for what ``read`` brings.
        """
        if not ref.length:
            return
        self.warm()
        with self._lock:
            if self._is_closed or key in self._forgotten or not self._uses.reserve(key, ref.length + _ENTRY_BYTES):
                return
        data = b""
        try:
            data = read()
            self._keep(key, ref, data)
        except StoreError as error:
            self._lost(key, str(error))
        finally:
            with self._lock:
                is_kept = key in self._filters
                if not is_kept:
                    self._uses.drop(key)
        if is_kept:
            self._later(partial(self._to_disk, key, ref, data))

    def see(self, manifest: ManifestStore, head: Head) -> None:
        """Lets go, soon, of the filters of objects that have left the manifest."""
        names = {page.ref.key: page for page in head.removed}
        with self._lock:
            new = names.keys() - self._seen.get(manifest.keys.head, frozenset())
            self._seen[manifest.keys.head] = frozenset(names)
            if not new or not self._filters:
                return
        self._later(partial(self._let_go, manifest, replace(head, removed=tuple(names[key] for key in sorted(new)))))

    def _let_go(self, manifest: ManifestStore, head: Head) -> None:
        """Drops filters of objects that left the manifest; readers of an older head do without."""
        try:
            for key, _ in manifest.removed_names(manifest.reader(), head):
                if key in self._filters:
                    self._drop(key)
        except (StoreError, OSError) as error:
            _LOG.warning("key filters of objects that left stay for now: %s", error)

    # the disk

    def warm(self) -> None:
        """Takes what an earlier process left on disk into memory, soon and once."""
        if self._is_warm:
            return
        with self._lock:
            is_first, self._is_warm = not self._is_warm, True
        if is_first and self._disk is not None:
            self._later(self._adopt)

    def _adopt(self) -> None:
        assert self._disk is not None
        for (key, start, end), data in self._disk.kept():
            with self._lock:
                if self._is_closed or key in self._uses:
                    continue
                has_room = key not in self._forgotten and self._uses.reserve(key, end - start + _ENTRY_BYTES)
            ref = SectionRef(start, end - start, end - start, zlib.crc32(data))
            if has_room:
                try:
                    self._keep(key, ref, data)
                except StoreError as error:
                    self._lost(key, str(error))
                with self._lock:
                    has_room = key in self._filters
                    if has_room:
                        self._uses.count_as_paid(key, ref.length)
                    else:
                        self._uses.drop(key)
            if not has_room:
                self._drop_on_disk(key, ref)

    def _to_disk(self, key: str, ref: SectionRef, data: bytes) -> None:
        if self._disk is None:
            return
        self._disk.put(key, ref.position, ref.position + ref.length, data, replace=False)
        with self._lock:
            is_kept = key in self._filters
        if not is_kept:  # it went meanwhile
            self._drop_on_disk(key, ref)

    def _drop_on_disk(self, key: str, ref: SectionRef) -> None:
        if self._disk is not None and not self._is_closed:
            self._disk.drop(key, ref.position, ref.position + ref.length)

    # letting go

    def _drop(self, key: str, *, evicted: bool = False) -> None:
        with self._lock:
            kept = self._filters.pop(key, None)
            self._uses.drop(key)
            self._evictions += evicted
        if kept is not None and self._disk is not None:
            self._disk.drop(key, *kept.place[:2])

    def forget(self, key: str) -> None:
        """Drops an object's filter for good; :class:`DiskFailedError` if its copy cannot be removed."""
        self._forgotten.add(key)
        with self._lock:
            self._filters.pop(key, None)
            self._uses.forget(key)
            self._not_before_s.pop(key, None)
        if self._disk is not None:
            self._disk.forget(key)

    def counters(self) -> FilterCounters:
        """Returns all numbers at one moment."""
        with self._lock:
            return FilterCounters(
                hits=self._hits, misses=self._misses, evictions=self._evictions, bytes=self._uses.used_bytes,
                entries=len(self._filters), limit_bytes=self._uses.limit_bytes, false_positives=self._false_positives,
                fetched=self._fetched, fetched_bytes=self._fetched_bytes, failures=self._failures,
            )  # fmt: skip

    def close(self) -> None:
        """Fetches and keeps nothing more; a fetch that is under way ends by itself, and its filter is dropped."""
        with self._lock:
            self._is_closed = True
        if self._disk is not None:
            self._disk.close()

    def _later(self, work: Callable[[], None], refused: Callable[[], None] = lambda: None) -> None:
        try:
            self._submit(work)
        except RuntimeError:  # no thread can be started: the process is ending, or out of them
            refused()


_HAS_HIGH = {layout.name: layout.has_hash_high for layout in LAYOUTS.values()}


def _filter_of(entry: IndexEntry) -> SectionRef | None:
    ref = entry.sections.get(FILTER)
    return ref if ref is not None and ref.length and entry.layout in _HAS_HIGH else None


def _place(ref: SectionRef) -> tuple[int, int, int]:
    return ref.position, ref.position + ref.length, ref.crc32
