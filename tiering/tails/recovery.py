"""Publishes what the tails in the bucket hold of a lost volume: the way back for appends acknowledged as ``archived``.

For the volume that has taken the store over, before it begins a log of its own. ``docs/formats/tail.md`` has the
protocol. Killed anywhere: the next call goes on, because any fence ends the chain as well as a fresh one, and
``archived_to`` says what is published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from tiering.archive import upload_segment
from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.cold.publishing import put_verified
from tiering.cold.segment.reader import SegmentReader
from tiering.cold.tail_objects import TailObjects
from tiering.errors import ConflictError, FencedError, TornRecordError
from tiering.format.manifest import Head, ObjectRef
from tiering.format.record import BLANK, MAGIC_BLANK
from tiering.format.store_state import StoreState, TopicState
from tiering.format.tail import TailHead, TailKind
from tiering.fs import FileSystem
from tiering.hot.commit_log import Segment
from tiering.hot.topics import Topic
from tiering.kernels.scan import TopicTable, scan_all
from tiering.paths import base_offset_name
from tiering.randomness import Randomness

#: New topics get ids above all that the lost volume may have given: it made some that the archive never heard of.
TOPIC_ID_STEP = 1 << 16
_TRIES = 10


@dataclass(frozen=True, slots=True)
class RecoveredTails:
    """The head that names everything that was in tails, and what of the old log was there."""

    head: Head
    lacks_from: int
    """First physical offset of the old log that the archive lacks."""


def recover_tails(
    manifest: ManifestStore, head: Head, fs: FileSystem, folder: Path, randomness: Randomness
) -> RecoveredTails:
    """Fence the chain of tails from ``archived_to`` on and publish all segments that it reaches into.

    ``head`` is one in which the calling volume is the owner. The last segment is closed behind its last record.
    ``folder`` holds one segment at a time meanwhile. Raises :class:`FencedError` if the store was taken over again,
    :class:`CorruptionError` for a damaged tail; nothing of its segment is published then.
    """
    tails = TailObjects(manifest.objects, manifest.keys)
    chain = _fenced_chain(tails, head, randomness)
    fs.make_dirs(folder)
    for base, found in groupby(chain, lambda tail: tail.first - tail.first % tail.segment_bytes):
        try:
            segment = _assemble(tails, [*found], base, fs, folder)
        except TornRecordError as error:
            _raise_if_fenced(manifest, head, error)
            raise
        head = _publish(manifest, head, segment, _topics_in(chain, base), randomness)
        fs.unlink(folder / base_offset_name(base))
    return RecoveredTails(head, _lacks_from(manifest, head))


def _fenced_chain(tails: TailObjects, head: Head, randomness: Randomness) -> list[TailHead]:
    """The chain, ended by a fence: ours, or that of a restore before.

    The old writer may put tails ahead of us again and again; it stops when it next looks at the head.
    """
    chain: list[TailHead] = []
    position = head.archived_to
    while True:
        found = tails.describe(position)
        if found is None:
            nonce = randomness.token_hex(8)
            fence = TailHead(
                head.store_id, head.volume_id, head.epoch, nonce, TailKind.FENCE, position, position, 0
            )  # fmt: skip
            found = tails.create(fence)
        if found.head.kind is TailKind.FENCE:
            return chain
        chain.append(found.head)
        position = found.head.end


def _assemble(tails: TailObjects, chain: Sequence[TailHead], base: int, fs: FileSystem, folder: Path) -> Segment:
    """The segment as a file: the tails' bytes, and a blank record behind them unless its own is among them."""
    path, size = folder / base_offset_name(base), chain[0].segment_bytes
    if chain[0].first != base:
        raise TornRecordError(f"the tails of segment {base} begin at {chain[0].first}", path="tail")
    fs.unlink(path)  # of an attempt that was cut off
    fs.create(path, size, prewrite=False)
    file = fs.open(path)
    try:
        for said in chain:
            tail = tails.read(said.first)
            if tail is None or tail.head != said:
                raise TornRecordError("a tail was replaced while it was read", path="tail", position=said.first)
            file.write_at(said.first - base, tail.payload)
        end = chain[-1].end - base
        if chain[-1].kind is not TailKind.ROLL:
            file.write_at(end, BLANK.pack(size - end, MAGIC_BLANK))
        file.flush()
    finally:
        file.close()
    return Segment(base, fs.map_read(path))


def _raise_if_fenced(manifest: ManifestStore, head: Head, error: TornRecordError) -> None:
    """A restore that slept finds tails gone that another has published since: nothing is damaged."""
    if manifest.refresh().epoch > head.epoch:
        raise FencedError(
            "another volume has taken this store over while it was restored", path=manifest.keys.head,
            hint="to take it over again, restore into an empty directory",
        ) from error  # fmt: skip


def _topics_in(chain: Sequence[TailHead], base: int) -> dict[str, int]:
    """Queue counts of the topics in one segment's tails; the last one knows best."""
    mine = (tail for tail in chain if tail.first - tail.first % tail.segment_bytes == base)
    return {name: queues for tail in mine for name, queues in tail.topics.items()}


def _made_again(state: StoreState, used: dict[str, int], segment: Segment) -> set[str]:
    """Deleted topics of which a segment holds a record behind their deletion."""
    deleted = {topic.name: topic.deleted_below for topic in state.topics if topic.deleted and topic.name in used}
    if not deleted:
        return set()
    table = TopicTable(list(used))
    rows = scan_all(segment.data, len(segment.data), segment.base_offset, table).rows
    last = ((name, rows["physical_offset"][rows["topic_number"] == table.names.index(name)]) for name in deleted)
    return {name for name, offsets in last if len(offsets) and offsets[-1] >= deleted[name]}


def _publish(
    manifest: ManifestStore, head: Head, segment: Segment, used: dict[str, int], randomness: Randomness
) -> Head:
    """The head that names the segment; planned again where an erasure came in between."""
    for _ in range(_TRIES):
        state = manifest.state(manifest.reader(), head)
        known = _with_topics(state, used, _made_again(state, used, segment), len(segment.data))
        topics = [
            Topic(each.topic_id, each.name, each.queues, archive=each.archive, hold=each.hold) for each in known.topics
        ]
        begun_s = manifest.begin_upload()
        entry = upload_segment(manifest, randomness, topics, segment, head.epoch, head.tombstones)
        ref = None if known == state else _store_state(manifest, known, randomness)
        try:
            return manifest.commit(
                ManifestChange(log=(entry,), archived_to=segment.end, state=ref, begun_s=begun_s), head
            )
        except ConflictError:
            newer = manifest.refresh()
            if newer.archived_to != head.archived_to:
                raise
            head = newer
    raise ConflictError("the archive kept changing", path=manifest.keys.head, hint="try again")


def _with_topics(
    state: StoreState, used: dict[str, int], made_again: set[str], segment_bytes: int
) -> StoreState:  # fmt: skip
    """The state with the topics of some tails, their queues counted; what it says of volumes stays."""
    known = {topic.name for topic in state.topics}
    new = [name for name in used if name not in known]
    first_id = state.next_topic_id + TOPIC_ID_STEP
    topics = [
        replace(
            topic,
            queues=max(topic.queues, used.get(topic.name, 0)),
            deleted=topic.deleted and topic.name not in made_again,
        )
        for topic in state.topics
    ]
    topics += [TopicState(first_id + number, name, used[name]) for number, name in enumerate(new)]
    next_id = first_id + len(new) if new else state.next_topic_id
    return replace(
        state, topics=tuple(topics), next_topic_id=next_id, segment_bytes=state.segment_bytes or segment_bytes
    )


def _store_state(manifest: ManifestStore, state: StoreState, randomness: Randomness) -> ObjectRef:
    data = state.encode()
    key = manifest.keys.state(randomness.token_hex(8))
    return ObjectRef(key, len(data), put_verified(manifest.objects, key, data), len(data))


def _lacks_from(manifest: ManifestStore, head: Head) -> int:
    """Where the records of the last archived segment end: read off the archive, so that a second call says the same."""
    if head.log and head.log[-1].next == head.archived_to:
        return head.log[-1].base + SegmentReader(manifest.reader(), head.log[-1]).blank_position
    return head.archived_to
