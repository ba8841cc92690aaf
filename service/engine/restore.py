"""Makes a volume from the archive alone: ``serve --restore`` on an empty directory, after a disk was lost.

In order, each step durable before the next: ``store.json`` says that a restore has begun; the new volume takes the
archive over, which fences the old one; what tails hold is published; what is archived but not indexed is indexed; the
head says where the new log and its queues begin; topics, groups and the first segment are made from that;
``store.json`` says that it is done.

Killed before the takeover: the old volume goes on. Killed anywhere after it: the same command goes on, with the same
end, because every step reads what is done off the head or makes a file that it makes alike again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tierlog.index.objects.derivation import IndexSizes, index_from_archive
from tierlog.service.engine.opening import guard_bucket, open_archive, open_manifest
from tierlog.service.engine.parts import Components
from tierlog.service.engine.recovery import check_room
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, ObjectNotFoundError, StoreMismatchError
from tierlog.tiering.base.fs import FileSystem, replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.cold.manifest.store import ManifestStore, Ownership
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.store_state import GroupRecord, StoreState, Takeover, TopicState
from tierlog.tiering.hot.commit_log import CommitLog
from tierlog.tiering.hot.consumer_groups import GroupState, groups_file
from tierlog.tiering.hot.delivery_states import DELIVERIES_FILE
from tierlog.tiering.hot.identity import (
    DEFAULT_QUEUE_FILE_UNITS,
    DEFAULT_SEGMENT_BYTES,
    StoreIdentity,
    validate_known_store_id,
)
from tierlog.tiering.hot.store import NO_LIMIT
from tierlog.tiering.hot.topics import TOPICS_FILE, KnownTopics, Topic, TopicDeletion
from tierlog.tiering.lifecycle.last_head import save_last_head
from tierlog.tiering.lifecycle.tail_recovery import RecoveredTails, TailRestorer, recover_tails
from tierlog.tiering.lifecycle.tail_store import TailMark, TailObjects
from tierlog.tiering.lifecycle.takeover import begin_log, begins_log, go_on_with_log, take_over
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.urls import canonical_url, stores_below

_LOG = logging.getLogger("tierlog")
#: Names that an empty directory may have: leftovers of a refused or cut off opening, and a file system's own.
_NOTHING = {"lock", "tmp", "tierlog", "lost+found"}


def restore_volume(
    root: Path, components: Components, *, cold_url: str | None, store_id: str | None
) -> Components:  # fmt: skip
    """Makes a complete, closed store at ``root``, which must be empty or of a restore that was cut off.

    A directory that holds a complete store with this archive is left as it is, so that ``--restore`` may stay in a
    service's arguments: opening it then refuses a volume that was fenced, as it always does.

    Returns what it is to be opened with: the size of a segment is the archive's, whatever the settings say. Raises
    :class:`NotFoundError` if there is nothing to restore, :class:`InvalidRequestError` for a directory that is not
    empty and where several stores lie below the URL, the object store's error if it cannot be asked. Nothing is
    written anywhere then.
    """
    if cold_url is None:
        raise InvalidRequestError("a restore needs the archive", hint="name it with --cold URL")
    url = canonical_url(cold_url)
    fs, paths = components.fs, StorePaths(root)
    if _is_done(fs, paths, url):
        return replace(components, settings=components.settings.unsized())
    begun = _begun(fs, paths)
    with archive_at(url, components) as objects:
        store_id = begun.store_id if begun else _which_store(objects, url, store_id)
        manifest = open_manifest(objects, store_id, components)
        head = _head(manifest, url)
        _check_follower(manifest, head, components)
        fs.make_dirs(root)
        with fs.lock(paths.lock):
            for folder in (paths.tmp, paths.tierlog):
                fs.make_dirs(folder)
            identity = _begin(fs, paths, components=components, url=url, manifest=manifest, head=head)
            guard = guard_bucket(objects, identity, fs, paths, components)
            if guard is not None:
                guard.ask()
                manifest = open_manifest(guard.guarded, store_id, components)
            _restore(fs, paths, components, manifest, identity)
    return replace(components, settings=components.settings.unsized())


def _is_done(fs: FileSystem, paths: StorePaths, url: str) -> bool:
    """Whether there is nothing to restore, because a volume with this archive is here; opening asks which store's."""
    identity = StoreIdentity.read(fs, paths)
    if identity is None or identity.restoring_from is not None or identity.cold_url != url:
        return False
    _LOG.info("nothing to restore: store %s is here already, volume %s", identity.store_id, identity.volume_id)
    return True


def _begun(fs: FileSystem, paths: StorePaths) -> StoreIdentity | None:
    """Returns the identity of a restore that was cut off, None for an empty directory."""
    identity = StoreIdentity.read(fs, paths)
    if identity is None:
        found = set(fs.list_dir(paths.root)) - _NOTHING
        found |= {f"tierlog/{name}" for name in fs.list_dir(paths.tierlog)}
        if found:
            raise InvalidRequestError(
                f"a restore needs an empty directory; this one holds {min(found)}", path=str(paths.root)
            )
    elif identity.restoring_from is None:
        raise InvalidRequestError(
            f"store {identity.store_id}, with {identity.cold_url or 'no archive'}, is in this directory already",
            path=str(paths.root),
            hint="open it without --restore, or restore into an empty directory",
        )
    return identity


@contextmanager
def archive_at(url: str, components: Components) -> Iterator[ObjectStore]:
    """The object store of an archive that is there, for as long as the context lasts."""
    if components.objects is not None:
        yield components.objects
        return
    scheme, _, path = url.partition("://")
    if scheme == "file" and not components.fs.is_dir(Path(path)):  # opening it would make it
        raise NotFoundError("there is no archive here, so nothing to restore", path=url)
    objects = open_archive(url, components.settings, components.clock)
    try:
        yield objects
    finally:
        objects.close()


def _which_store(objects: ObjectStore, url: str, store_id: str | None) -> str:
    if store_id is not None:
        return validate_known_store_id(store_id)
    found = list(stores_below(objects))
    if not found:
        raise NotFoundError("no archive of any store here, so nothing to restore", path=url)
    if len(found) > 1:
        raise InvalidRequestError(
            f"{len(found)} stores lie here: {', '.join(found[:10])}", path=url, hint="name one with --store-id"
        )
    return found[0]


def _head(manifest: ManifestStore, url: str) -> Head:
    try:
        return manifest.refresh()
    except ObjectNotFoundError as error:
        raise NotFoundError(
            f"store {manifest.keys.store_id} has no archive here, so nothing to restore",
            path=url,
            hint="without --restore a new store is made",
        ) from error


def _check_follower(manifest: ManifestStore, head: Head, components: Components) -> None:
    """Lets only a follower go on with a log that follows a broker, and with no other."""
    state = manifest.state(manifest.reader(), head)
    if not state.volume_id or state.followed == (components.follow_from is not None):
        return
    if state.followed:
        raise StoreMismatchError(
            f"store {manifest.keys.store_id} follows a RocketMQ broker",
            path=manifest.keys.head,
            hint="`tierlog follow --restore` goes on with it, and with --promote makes it a store that takes messages",
        )
    raise StoreMismatchError(
        f"store {manifest.keys.store_id} takes messages itself, and follows no broker",
        path=manifest.keys.head,
        hint="give the follower another --store-id",
    )


def _begin(
    fs: FileSystem, paths: StorePaths, *, components: Components, url: str, manifest: ManifestStore, head: Head
) -> StoreIdentity:
    """Makes durable that this volume restores the store; of one that was cut off, that it goes on."""
    begun = _begun(fs, paths)
    open_id = components.randomness.token_hex(8)
    if begun is not None:
        if begun.cold_url != url:
            raise StoreMismatchError(
                f"the restore that was cut off was from {begun.cold_url}, not from {url}", path=str(paths.root)
            )
        identity = replace(begun, open_id=open_id, head_open_ids=(*begun.head_open_ids, open_id))
    else:
        asked = components.settings.hot
        segment_bytes = _segment_bytes(manifest, head) or asked.segment_bytes or DEFAULT_SEGMENT_BYTES
        if asked.segment_bytes not in (None, segment_bytes):
            _LOG.warning(
                "the archive has segments of %d bytes, which holds; leave the setting of %d out from now on",
                segment_bytes, asked.segment_bytes,
            )  # fmt: skip
        check_room(fs, paths.root, components.settings, segment_bytes)
        identity = StoreIdentity(
            store_id=manifest.keys.store_id, volume_id=components.randomness.token_hex(8), open_id=open_id,
            head_open_ids=(open_id,), cold_url=url, segment_bytes=segment_bytes,
            queue_file_units=asked.queue_file_units or DEFAULT_QUEUE_FILE_UNITS, restoring_from=head.volume_id,
            followed=components.follow_from is not None,
        )  # fmt: skip
    identity.save(fs, paths)
    return identity


def _segment_bytes(manifest: ManifestStore, head: Head) -> int:
    reader = manifest.reader()
    found = manifest.state(reader, head).segment_bytes
    found = found or next((entry.segment_bytes for entry in manifest.log_entries(reader, head)), 0)
    if not found:  # a store so young that only tails know it
        tail = TailObjects(manifest.objects, manifest.keys).describe(head.archived_to)
        found = 0 if tail is None else tail.head.segment_bytes
    return found


def _restore(
    fs: FileSystem, paths: StorePaths, components: Components, manifest: ManifestStore, identity: StoreIdentity
) -> None:
    assert identity.restoring_from is not None
    owner = Ownership(identity.volume_id, identity.open_id, identity.head_open_ids)
    head = take_over(manifest, owner, identity.restoring_from)
    if begins_log(manifest, head, identity.volume_id) is None:
        folder, sizes = (
            paths.root / "restore",
            IndexSizes(components.settings.index.slots, components.settings.index.items),
        )
        if identity.followed:  # the tails go back into the log, which goes on behind them
            recovered = RecoveredTails(head, head.archived_to)
        else:
            recovered = recover_tails(manifest, head, fs, folder, components.randomness)
        head = index_from_archive(
            manifest, recovered.head, sizes=sizes, fs=fs, folder=folder, randomness=components.randomness
        )
        before = manifest.state(manifest.reader(), head)
        if head.archived_to == head.cold_min and not before.topics:
            _LOG.warning("store %s has archived nothing: there is nothing to restore but its id", identity.store_id)
        fenced = Takeover(before.volume_id or identity.restoring_from, recovered.lacks_from)
        begin = go_on_with_log if identity.followed else begin_log
        head = begin(
            manifest,
            head,
            volume_id=identity.volume_id,
            fenced=fenced,
            segment_bytes=identity.segment_bytes,
            randomness=components.randomness,
        )
    state = begins_log(manifest, head, identity.volume_id)
    assert state is not None
    _make_local(fs, paths, identity, state, head=head, tails=TailObjects(manifest.objects, manifest.keys))
    fenced = state.takeovers[-1]
    _LOG.warning(
        "store %s is restored: volume %s, fenced, had archived everything below %d; the log goes on at %d, "
        "with %d topics and %d groups", identity.store_id, fenced.volume_id, fenced.lacks_from,
        state.log_end, len(state.topics), len(state.groups),
    )  # fmt: skip


def _deletion_of(topic: TopicState) -> TopicDeletion | None:
    if not topic.has_deletion:
        return None
    begins = dict(enumerate(topic.begins))
    return TopicDeletion(topic.deleted_below, begins, in_force=topic.deleted, is_archived=True)


def _group_state(group: GroupRecord, store_id: str) -> GroupState:
    """Returns all offsets of groups, those in queues of other stores too."""
    own = {(each.topic, store_id, each.queue_id): each.offset for each in group.offsets}
    elsewhere = {(each.topic, each.store_id, each.queue_id): each.offset for each in group.elsewhere}
    return GroupState(group.generation, {**own, **elsewhere})


def _make_local(
    fs: FileSystem, paths: StorePaths, identity: StoreIdentity, state: StoreState, *, head: Head, tails: TailObjects
) -> None:
    """Writes what head and state say into the directory, the identity last.

    Store times go on from those of the newest archived message: the new machine's clock may be behind.
    """
    topics = [
        Topic(
            topic_id=each.topic_id, name=each.name, queues=each.queues, floors={}, archive=each.archive,
            cold_retention_ms=each.cold_retention_ms, hold=each.hold,
            starts={queue_id: end for queue_id, end in enumerate(each.ends) if end != state.first_offset},
            first_offset=state.first_offset, deletion=_deletion_of(each),
        )
        for each in state.topics
    ]  # fmt: skip
    known = KnownTopics(topics, state.next_topic_id, state.first_offset)
    TOPICS_FILE.replace(fs, paths.topics_json, known, paths.tmp)
    groups = {group.name: _group_state(group, identity.store_id) for group in state.groups}
    groups_file(identity.store_id).replace(fs, paths.groups_json, groups, paths.tmp)
    deliveries = {group.name: group.deliveries for group in state.groups if group.deliveries}
    if deliveries:
        DELIVERIES_FILE.replace(fs, paths.deliveries_json, deliveries, paths.tmp)
    save_last_head(fs, paths, head, head.tombstones)
    replace_file(fs, paths.checkpoint, Checkpoint(physic_ms=max(0, head.newest_ms)).encode(), paths.tmp)
    fs.make_dirs(paths.commitlog)
    log = CommitLog(fs, paths, identity.segment_bytes)
    try:
        log.load()
        if log.is_empty:
            log.add_first_segment(state.log_end)
        if identity.followed:
            restorer = TailRestorer(TailMark(fs, paths), identity.volume_id, followed_below=NO_LIMIT)
            restorer.put_back_all(tails, head, log)
            # nobody knows whether the times of those records rise
            identity = replace(identity, times_fall_below=log.last_base + identity.segment_bytes)
    finally:
        log.close()
    replace(identity.published(), restoring_from=None).save(fs, paths)
