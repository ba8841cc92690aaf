"""What is done to the closed directory of a store that follows a broker when the broker's log is not as it was.

:func:`rewind` drops the end of the log: the broker was killed and lost it, or goes on otherwise. A copy stays in the
quarantine, as it may be the last one of what a producer was told that it is stored. :func:`begin_again`
lets the log go on behind a gap: the broker has deleted what was not here yet. Both may be killed anywhere, and are done
again; beside each step is what holds then.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tierlog.service.engine.opening import ArchiveWriters, StoreParts, open_manifest, open_parts
from tierlog.service.engine.parts import ArchiveParts, Components
from tierlog.service.engine.restore import archive_at
from tierlog.tiering.base.errors import (
    DivergedError,
    InvalidRequestError,
    ObjectNotFoundError,
    StoreMismatchError,
    UnavailableError,
)
from tierlog.tiering.base.fs import FileSystem, replace_file
from tierlog.tiering.base.paths import StorePaths, base_offset_name
from tierlog.tiering.cold.manifest.store import ManifestChange
from tierlog.tiering.format.manifest import Head, LostRange
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.hot.identity import StoreIdentity
from tierlog.tiering.hot.store import NO_LIMIT, HotStore
from tierlog.tiering.hot.topics import TopicRegistry
from tierlog.tiering.lifecycle.last_head import read_last_head, save_last_head
from tierlog.tiering.lifecycle.tail_store import TailMark, TailObjects

_LOG = logging.getLogger("tierlog")
#: How far clocks may be apart: the broker's and this one, and a master's and that of the one before it.
_CLOCKS_APART_MS = 60_000


def rewind(root: Path, offset: int, components: Components) -> None:
    """Drops everything at or above ``offset``, where a record begins or the log ends; a copy goes to the quarantine.

    Raises :class:`DivergedError` if any of it is in a segment of the archive, and the object store's error while that
    cannot be asked and has to be. Nothing is dropped then.
    """
    with _opened(root, components) as parts:
        hot = parts.hot.store
        if offset >= hot.log.end:
            return
        _check_unpublished(parts, offset)
        # Killed in here: the log is as it was. Whoever comes here again makes copies of other names.
        _copy_to_quarantine(hot.log, offset, components.fs, parts.directory.paths)
        mark = TailMark(parts.directory.fs, parts.directory.paths)
        # Tails of it go, the first one first, and older opens can write none. Killed here: the log is as it was, and
        # whoever compares it with the broker's comes here again.
        if parts.archive is not None and parts.writers is not None and mark.end > offset:
            parts.writers.mover.claim()
            manifest = parts.archive.manifest
            TailObjects(manifest.objects, manifest.keys).remove_from(offset)
        # The log ends there. Killed in here: it ends there or further on, where a record does, and nothing is promised
        # above.
        hot.cut(offset)
        # Tails may be written again. Killed before: they are looked for in vain.
        mark.lower_to(offset)


def _copy_to_quarantine(log: CommitLog, offset: int, fs: FileSystem, paths: StorePaths) -> None:
    """Copies the log from ``offset`` on durably, a file for each segment, which ``tierlog dump`` shows."""
    fs.make_dirs(paths.quarantine)
    taken = set(fs.list_dir(paths.quarantine))
    for segment in log.segments():
        first, end = max(offset, segment.base_offset), min(segment.end, log.end)
        if first < end:
            numbered = (f"log-{base_offset_name(first)}-{number}" for number in itertools.count(1))
            path = paths.quarantine / next(name for name in numbered if name not in taken)
            replace_file(fs, path, segment.data[first - segment.base_offset : end - segment.base_offset], paths.tmp)
            _LOG.warning("[%d, %d) of the log is dropped, as the broker has it no more: %s is a copy", first, end, path)


def _check_unpublished(parts: StoreParts, offset: int) -> None:
    hot, archive = parts.hot.store, parts.archive
    seen = read_last_head(parts.directory.fs, parts.directory.paths)
    head = None if archive is None else archive.manifest.head
    published = max(hot.log.begin, seen.archived_to, 0 if head is None else head.archived_to)
    if offset < published:
        raise DivergedError(
            f"the broker's log differs from offset {offset} on, and up to {published} it is archived",
            path=str(parts.directory.paths.root),
            hint="what is archived stays; follow the broker as another store: --store-id ID with an empty --root",
        )
    if archive is not None and archive.first_contact is not None and offset < hot.log.last_base:
        raise UnavailableError(
            f"whether the archive has what the broker took back is not known: {archive.first_contact}",
            hint="try again when the bucket answers",
        )


def begin_again(root: Path, begin: int, components: Components) -> None:
    """Archives what there is to its end, declares ``[end, begin)`` a gap, and lets the log go on at ``begin``.

    ``begin`` is the base of a segment above the log's end. Answers about times at which lost messages may have been
    stored name the gap. Killed anywhere: the same again, also by the next opening. Raises the object store's error
    while the bucket does not take what is archived.
    """
    fs, paths = components.fs, StorePaths(root)
    identity = StoreIdentity.read(fs, paths)
    if identity is None or identity.gap is None:
        # What is to be done is durable first. Killed here: nothing has changed, or the next opening does it.
        with _opened(root, components) as parts:
            end, segment_bytes = parts.hot.store.log.end, parts.hot.store.log.segment_bytes
            if begin % segment_bytes or begin <= end:
                raise InvalidRequestError(f"a log that ends at {end} does not begin again at {begin}")
            writers = _writers(parts)
            writers.mover.change_identity(lambda found: replace(found, gap=(end, begin)))
    finish_gap(root, components)


def finish_gap(root: Path, components: Components) -> None:
    """Does what is left of :func:`begin_again`, if anything is."""
    fs, paths = components.fs, StorePaths(root)
    identity = StoreIdentity.read(fs, paths)
    if identity is None or identity.gap is None:
        return
    _, begin = identity.gap
    # The archive has all of it, and says what nobody has. Killed in here: done again, and what is done stays.
    if not _is_declared(identity, begin, components, paths):
        with _opened(root, components) as parts:
            _declare(parts, identity.gap, components)
    with fs.lock(paths.lock):
        _move_log(fs, paths, begin)


def _is_declared(identity: StoreIdentity, begin: int, components: Components, paths: StorePaths) -> bool:
    """Whether the archive says that the log goes on at ``begin``; ``head.json`` then does, whatever was cut off."""
    if read_last_head(components.fs, paths).archived_to >= begin:
        return True
    assert identity.cold_url is not None
    with archive_at(identity.cold_url, components) as objects:
        try:
            head = open_manifest(objects, identity.store_id, components).refresh()
        except ObjectNotFoundError:  # nothing was archived so far
            return False
    if head.volume_id != identity.volume_id or head.archived_to < begin:
        return False
    save_last_head(components.fs, paths, head, head.tombstones)
    return True


def _declare(parts: StoreParts, gap: tuple[int, int], components: Components) -> None:
    hot, writers, archive = parts.hot.store, _writers(parts), _archive(parts)
    end, begin = gap
    if hot.log.end == end and end > hot.log.last_base:
        hot.close_segment()
    hot.publish_below = NO_LIMIT
    mover, manifest = writers.mover, archive.manifest
    mover.archive(everything=True)
    head = mover.claim()
    if not head.archived_to == head.indexed_to == hot.log.end:
        raise UnavailableError("not everything before the gap is archived and indexed yet", hint="try again")
    to_ms = max(components.clock.now_ms(), head.newest_ms, 0) + _CLOCKS_APART_MS
    lost = LostRange(end, begin, max(0, _last_ms(hot, head) - _CLOCKS_APART_MS), to_ms)
    log_gaps = ((hot.log.end, begin),) if hot.log.end < begin else ()
    change = ManifestChange(archived_to=begin, indexed_to=begin, log_gaps=log_gaps, lost=(lost,))
    mover.remember(manifest.commit(change, head))


def gap_declared_ms(head: Head) -> int | None:
    """Returns when the newest gap of a broker's log was declared, as :func:`_declare` did; None if there is none."""
    return max((lost.to_ms - _CLOCKS_APART_MS for lost in head.lost), default=None)


def _last_ms(hot: HotStore, head: Head) -> int:
    """Returns a store time at or below that of the last message before a gap, all of which is archived.

    It is the newest, unless store times fall in the last segment: then no message of that one is older than its oldest.
    """
    last = head.log[-1].bounds if head.log else None
    return head.newest_ms if last is None or hot.times_fall_below < hot.log.end else last.min_store_ms


def _move_log(fs: FileSystem, paths: StorePaths, begin: int) -> None:
    """Replaces a log that is archived to its end by one that begins at ``begin``."""
    identity = StoreIdentity.read(fs, paths)
    assert identity is not None
    # Queues begin at the first offset that is seen. Killed here: their files are derived again or go.
    topics = TopicRegistry(fs, paths, 1, foreign=True)
    topics.begin_queues_anew()
    for topic in topics.all():
        for queue_id in range(topic.queues):
            folder = paths.queue(topic.name, queue_id)
            names = fs.list_dir(folder)
            for name in names:
                fs.unlink(folder / name)
            if names:
                fs.flush_dir(folder)
    # The new segment is there before the old ones go, from the front. Killed here: a log with a hole, below which all
    # is archived.
    log = CommitLog(fs, paths, identity.segment_bytes)
    if begin not in log.bases():
        try:
            log.add_first_segment(begin)
        finally:
            log.close()
    for base in log.bases():
        if base < begin:
            fs.unlink(paths.segment(base))
            fs.flush_dir(paths.commitlog)
    # Killed before: all of this is done again.
    replace(identity, gap=None).save(fs, paths)


@contextlib.contextmanager
def _opened(root: Path, components: Components) -> Iterator[StoreParts]:
    """The parts of the store, recovered; left as by a kill."""
    parts = open_parts(root, components, cold_url=None, store_id=None, read_only=False)
    try:
        yield parts
    finally:
        parts.hot.store.abandon()
        parts.resources.close()


def _writers(parts: StoreParts) -> ArchiveWriters:
    if parts.writers is None:
        raise StoreMismatchError(
            "a store without a cold tier cannot begin its log again: what it has would be gone",
            path=str(parts.directory.paths.root),
            hint="follow the broker into an empty --root, or open this store once with --cold URL",
        )
    return parts.writers


def _archive(parts: StoreParts) -> ArchiveParts:
    assert parts.archive is not None
    return parts.archive
