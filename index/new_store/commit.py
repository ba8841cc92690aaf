"""The commit that makes a new store's archive visible, all of it at once, and what becomes of objects nobody names.

Killed before the head is put: there is no such store, and its objects cost only their space. After it: the store is
there, complete. Between the two nobody else can have put the head, because it is put only if absent: of two jobs one
wins, and the other is refused.

What earlier attempts left below the store's prefix was listed before the head was put; whoever wrote it can no longer
name it, so it is deleted after the commit. What comes later is for the sweep of the volume that takes the store over.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tierlog.index.new_store.part import BuiltPart, NewStore, PartQueue
from tierlog.tiering.base.errors import (
    CorruptionError,
    InvalidRequestError,
    ObjectNotFoundError,
    StoreError,
    StoreMismatchError,
)
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.cold.manifest.sweep import NameSet
from tierlog.tiering.format.generation import is_numbered
from tierlog.tiering.format.manifest import Head, ObjectRef, QueueGap, encode_gaps
from tierlog.tiering.format.store_state import GroupRecord, StoreState, TopicState
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.objects.object_store import PendingUpload
from tierlog.tiering.objects.transfer import put_verified

_BITS = 30


def topic_id_of(name: str) -> int:
    """Returns the id of a topic in an archive that is written without a list of its topics; at least 1.

    Tasks that do not know of each other all say the same id. It is 30 bits of a hash of the name, so that half of the
    31-bit ids is left to what comes later. Of 1,000 topics two have the same id in 1 of 2,000 archives, of 100 in 1 of
    200,000: the commit finds it out and makes nothing visible.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "big") >> (32 - _BITS)) + 1


def check_ids(names: Iterable[str]) -> None:
    """Raises :class:`InvalidRequestError` if two topics have the same id."""
    seen: dict[int, str] = {}
    for name in sorted(names):
        other = seen.setdefault(topic_id_of(name), name)
        if other != name:
            raise InvalidRequestError(
                f"topics {other!r} and {name!r} have the same id in an archive that is written by tasks alone",
                hint="write them to two stores, or use the job ingest, which numbers topics",
            )


def find_head(store: NewStore) -> Head | None:
    """Returns the head of the store, None if there is none; raises the object store's error if that is unknown."""
    try:
        return store.manifest.refresh()
    except ObjectNotFoundError:
        return None


def refuse_existing(store: NewStore) -> None:
    """Raises :class:`StoreMismatchError` if the store is there already."""
    if find_head(store) is not None:
        raise exists_already(store)


def exists_already(store: NewStore) -> StoreMismatchError:
    """Returns the error for a store that has an archive."""
    return StoreMismatchError(
        f"store {store.store_id!r} has an archive here already", path=store.url,
        hint="history goes to a store of its own: name another id",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewTopics:
    """Topics as the head's state has them: ids, queues and queue ends; and the gaps in their queues."""

    topics: tuple[TopicState, ...]
    gaps: tuple[QueueGap, ...]

    @classmethod
    def of(
        cls, topics: Sequence[Topic], runs: Iterable[PartQueue], *, whole_log: bool = True, is_brokers: bool = False
    ) -> NewTopics:
        """Follows every queue through ``runs``, which are in the order of the log.

        With ``whole_log`` a queue that does not begin at 0 has a gap there; else nobody knows what was before. A
        topic's floors count where nothing follows them. Raises :class:`CorruptionError` for offsets that step back,
        unless a broker wrote them: then those that came before have no place. A generation's queues begin at 0.
        """
        ids = {topic.name: topic.topic_id for topic in topics}
        ends: dict[str, dict[int, int]] = {topic.name: {} for topic in topics}
        gaps = []
        for run in runs:
            queues = ends[run.topic]
            reached = queues.get(run.queue_id, 0 if whole_log or is_numbered(run.topic) else run.first)
            if run.next <= reached and is_brokers:
                continue
            if run.first < reached and not is_brokers:
                raise CorruptionError(
                    f"queue {run.topic}/{run.queue_id} steps back from offset {reached} to {run.first}"
                )
            if run.first > reached:
                gaps.append(QueueGap(ids[run.topic], run.queue_id, reached, run.first))
            queues[run.queue_id] = run.next
        states = []
        for topic in sorted(topics, key=lambda each: each.topic_id):
            queues = ends[topic.name]
            count = max(topic.queues, *(queue_id + 1 for queue_id in queues), 1)
            found = tuple(queues.get(queue_id, topic.floor(queue_id)) for queue_id in range(count))
            states.append(TopicState(topic.topic_id, topic.name, count, ends=found))
        return cls(tuple(states), tuple(sorted(gaps)))


def publish(
    store: NewStore, parts: Sequence[BuiltPart], topics: NewTopics, randomness: Randomness, *, volume_id: str,
    log_begin: int = 0, groups: tuple[GroupRecord, ...] = (),
) -> Head:  # fmt: skip
    """Makes the store's head, which names every part; what nobody names below its prefix goes.

    Parts that hold nothing are left out. ``volume_id`` is who the head says wrote the log. Raises
    :class:`StoreMismatchError` if the store is there by now, the object store's error if the outcome is unknown.
    """
    manifest = store.manifest
    parts = sorted((part for part in parts if part.log), key=lambda part: part.first)
    end = parts[-1].next if parts else log_begin
    # listed before the head is put: whoever wrote these can no longer name them afterwards
    leftovers = _Leftovers.below(manifest)
    # objects that the head will name
    state = StoreState(
        topics=topics.topics, groups=groups, volume_id=volume_id, log_end=end,
        next_topic_id=max((topic.topic_id for topic in topics.topics), default=0) + 1, first_offset=0,
        segment_bytes=store.segment_bytes,
    )  # fmt: skip
    state_ref = _put(manifest, manifest.keys.state(randomness.token_hex(8)), state.encode())
    gaps_ref = None
    if topics.gaps:
        gaps_ref = _put(manifest, manifest.keys.page("gaps", 1, randomness.token_hex(4)), encode_gaps(topics.gaps))
    # the head, put only if there is none
    open_id = randomness.token_hex(8)
    change = ManifestChange(
        log=tuple(entry for part in parts for entry in part.log),
        index=tuple(sorted((entry for part in parts for entry in part.index), key=lambda entry: entry.first)),
        archived_to=end,
        indexed_to=end,
        log_gaps=tuple(_log_gaps(parts, log_begin)),
        state=state_ref,
        gaps=gaps_ref,
    )
    try:
        head = manifest.create(Ownership(volume_id, open_id, (open_id,)), change, log_begin=log_begin)
    except StoreMismatchError as error:
        discard(store, [name for part in parts for name in part.names])
        with contextlib.suppress(StoreError):
            for ref in (state_ref, gaps_ref):
                if ref is not None:
                    manifest.objects.delete(ref.key)
        raise exists_already(store) from error
    with contextlib.suppress(StoreError):  # they cost their space only
        leftovers.delete(manifest, head)
    return head


def discard(store: NewStore, names: Iterable[str]) -> None:
    """Deletes objects that were stored for a commit that certainly never came; what fails is left to the next job."""
    objects = store.manifest.objects
    for name in names:
        with contextlib.suppress(StoreError):
            objects.delete(name)


def _put(manifest: ManifestStore, key: str, data: bytes) -> ObjectRef:
    return ObjectRef(key, len(data), put_verified(manifest.objects, key, data), len(data))


def _log_gaps(parts: Sequence[BuiltPart], log_begin: int) -> Iterable[tuple[int, int]]:
    """Physical ranges that no part holds; :class:`CorruptionError` for parts that overlap."""
    reached = log_begin
    for part in parts:
        if part.first < reached:
            raise CorruptionError(f"two parts hold {part.first}", path="log")
        if part.first > reached:
            yield reached, part.first
        reached = part.next


@dataclass(frozen=True, slots=True)
class _Leftovers:
    """The objects below a store's prefix before its head was put, this job's own among them."""

    names: tuple[str, ...]
    uploads: tuple[PendingUpload, ...]

    @classmethod
    def below(cls, manifest: ManifestStore) -> _Leftovers:
        names: list[str] = []
        uploads: list[PendingUpload] = []
        for prefix in manifest.keys.swept:
            names += (info.key for info in manifest.objects.list(prefix))
            uploads += manifest.objects.list_uploads(prefix)
        return cls(tuple(names), tuple(uploads))

    def delete(self, manifest: ManifestStore, head: Head) -> None:
        reader = manifest.reader(scan=True)
        named = NameSet(
            [
                *(ref.key for ref in manifest.pages(reader, head)),
                *(entry.key for entry in manifest.log_entries(reader, head)),
                *(entry.key for entry in manifest.all_index_entries(reader, head)),
                *(name for name, _ in manifest.removed_names(reader, head)),
            ]
        )
        for pending in self.uploads:
            manifest.objects.abort_upload(pending)
        for name in self.names:
            if name not in named:
                manifest.objects.delete(name)
