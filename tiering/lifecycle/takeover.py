"""A new volume takes a store over: who is fenced, where its log and queues begin, and the gaps that are declared.

Whatever the volume before it may have given out since the archive last heard of it lies below the new beginnings: a
physical offset within 16 TiB of what was archived, a queue offset within 2^32 and a topic id within 2^16 of the last
known ones. So nothing that anybody has seen is ever given out twice.

Two commits, both of the head alone. Killed before the first: the volume before goes on. Between them: it is fenced,
nothing is lost, and :func:`take_over` of the same volume goes on. After the second: the state object names the volume
that begins the log, and everything local follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tierlog.tiering.base.errors import ConflictError, StoreMismatchError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.cold.reading.archive_reader import ArchiveReader
from tierlog.tiering.format.manifest import Head, ObjectRef, QueueGap, encode_gaps
from tierlog.tiering.format.store_state import StoreState, Takeover, TopicState
from tierlog.tiering.objects.transfer import put_verified

#: How far beyond what is known a new volume begins.
LOG_STEP = 1 << 44
QUEUE_STEP = 1 << 32
TOPIC_ID_STEP = 1 << 16
#: A generation fences members of a group: those that the old volume began and the archive never heard of stay below.
GENERATION_STEP = 1 << 16

_TRIES = 10
_NO_END = (1 << 63) - 1


def take_over(manifest: ManifestStore, owner: Ownership, fenced_volume: str) -> Head:
    """Makes ``owner`` the volume that may write, in the place of ``fenced_volume``; repeatable by the same volume.

    Raises :class:`StoreMismatchError` if a third volume has taken the store over meanwhile.
    """
    for _ in range(_TRIES):
        head = manifest.refresh()
        if head.volume_id == owner.volume_id:
            return manifest.claim(owner, log_begin=0, log_end=_NO_END)
        if head.volume_id != fenced_volume:
            raise StoreMismatchError(
                f"volume {head.volume_id} has taken the store over since this restore began",
                path=manifest.keys.head,
                hint="to take it over again, restore into an empty directory",
            )
        try:
            return manifest.take_over(owner, ManifestChange(), head)
        except ConflictError:
            continue
    raise ConflictError("the archive kept changing during the takeover", path=manifest.keys.head, hint="try again")


def begins_log(manifest: ManifestStore, head: Head, volume_id: str) -> StoreState | None:
    """Returns the state that the log of a volume begins with, None before :func:`begin_log`."""
    state = manifest.state(manifest.reader(), head)
    return state if state.volume_id == volume_id else None


def begin_log(
    manifest: ManifestStore, head: Head, *, volume_id: str, fenced: Takeover, segment_bytes: int, randomness: Randomness
) -> Head:
    """Commits where the log and the queues of ``volume_id``, the owner, begin; everything archived is indexed.

    ``fenced`` is the volume whose log ends here, ``segment_bytes`` what an archive without a segment does not say.
    Watermarks jump over the range in which no segment ever was.
    """
    reader = manifest.reader()
    before = manifest.state(reader, head)
    segment_bytes = before.segment_bytes or segment_bytes
    seen = max(head.archived_to, before.log_end, fenced.lacks_from)
    begin = ((seen + LOG_STEP) // segment_bytes + 1) * segment_bytes
    planned = [_plan_topic(manifest, reader, head, before, topic) for topic in before.topics]
    state = replace(
        before,
        topics=tuple(plan.topic for plan in planned),
        groups=tuple(replace(group, generation=group.generation + GENERATION_STEP) for group in before.groups),
        volume_id=volume_id,
        log_end=begin,
        next_topic_id=before.next_topic_id + TOPIC_ID_STEP,
        first_offset=before.first_offset + QUEUE_STEP,
        segment_bytes=segment_bytes,
        takeovers=(*before.takeovers, fenced),
    )
    gaps = merged_gaps(manifest.gaps(reader, head), [gap for plan in planned for gap in plan.gaps])
    begun_s = manifest.begin_upload()
    data = state.encode()
    key = manifest.keys.state(randomness.token_hex(8))
    change = ManifestChange(
        archived_to=begin,
        indexed_to=begin,
        log_gaps=((head.archived_to, begin),),
        state=ObjectRef(key, len(data), put_verified(manifest.objects, key, data), len(data)),
        gaps=store_gaps(manifest, head, gaps, randomness) if gaps else None,
        begun_s=begun_s,
    )
    return manifest.commit(change, head)


def go_on_with_log(
    manifest: ManifestStore, head: Head, *, volume_id: str, fenced: Takeover, segment_bytes: int, randomness: Randomness
) -> Head:
    """Commits that the log of ``volume_id``, which follows a broker, begins where the archive ends; it jumps nowhere.

    Offsets are given by the broker: whatever the volume before it had at an offset, its successor gets there too.
    """
    reader = manifest.reader()
    before = manifest.state(reader, head)
    topics = []
    for topic in before.topics:
        archived = _archived_ends(manifest, reader, head, before, topic)
        queues = max(topic.queues, *(each + 1 for each in archived), 0)
        ends = tuple(archived.get(queue_id, before.first_offset) for queue_id in range(queues))
        topics.append(replace(topic, queues=queues, ends=ends))
    state = replace(
        before, topics=tuple(topics), volume_id=volume_id, log_end=head.archived_to, log_begin=head.archived_to,
        next_topic_id=before.next_topic_id + TOPIC_ID_STEP, segment_bytes=before.segment_bytes or segment_bytes,
        takeovers=(*before.takeovers, fenced), followed=True,
    )  # fmt: skip
    begun_s = manifest.begin_upload()
    data = state.encode()
    key = manifest.keys.state(randomness.token_hex(8))
    ref = ObjectRef(key, len(data), put_verified(manifest.objects, key, data), len(data))
    return manifest.commit(ManifestChange(state=ref, begun_s=begun_s), head)


def store_gaps(manifest: ManifestStore, head: Head, gaps: list[QueueGap], randomness: Randomness) -> ObjectRef:
    """Stores all declared gaps; whoever commits the reference names them."""
    data = encode_gaps(gaps)
    key = manifest.keys.page("gaps", head.version + 1, randomness.token_hex(4))
    return ObjectRef(key, len(data), put_verified(manifest.objects, key, data), len(data))


@dataclass(frozen=True, slots=True)
class _TopicPlan:
    topic: TopicState
    gaps: list[QueueGap]


def _plan_topic(
    manifest: ManifestStore, reader: ArchiveReader, head: Head, state: StoreState, topic: TopicState
) -> _TopicPlan:
    """Returns where a topic's queues begin, and the gap before each that anybody may have seen a message of."""
    known = dict(enumerate(topic.ends))
    archived = _archived_ends(manifest, reader, head, state, topic)
    ends, gaps = [], []
    for queue_id in range(max(topic.queues, *(each + 1 for each in archived), 0)):
        end = max(known.get(queue_id, state.first_offset), archived.get(queue_id, 0))
        ends.append(end + QUEUE_STEP)
        if end > state.first_offset:
            first = archived.get(queue_id, state.first_offset)
            gaps.append(QueueGap(topic.topic_id, queue_id, first, end + QUEUE_STEP))
    begins = tuple(ends) if topic.deleted else topic.begins  # made again, it begins behind the jump
    return _TopicPlan(replace(topic, queues=len(ends), ends=tuple(ends), begins=begins), gaps)


def _archived_ends(
    manifest: ManifestStore, reader: ArchiveReader, head: Head, state: StoreState, topic: TopicState
) -> dict[int, int]:
    """Offset after the last archived message of each queue that has one.

    The state counted everything below its ``log_end``. Later segments are looked through, earlier ones only as far
    back as a queue that had a message then is not found.
    """
    found: dict[int, int] = {}

    def look(from_offset: int) -> Iterator[None]:
        for rows in manifest.queue_row_pieces(
            reader, head, topic.topic_id, backwards=True, from_offset=from_offset
        ):  # fmt: skip
            for queue_id, first, count in rows[["queue_id", "first_queue_offset", "count"]].tolist():
                found[queue_id] = max(found.get(queue_id, 0), first + count)
            yield

    for _ in look(state.log_end):
        pass
    wanted = {queue_id for queue_id, end in enumerate(topic.ends) if end > state.first_offset}
    if not wanted <= found.keys():
        for _ in look(0):
            if wanted <= found.keys():
                break
    return found


def merged_gaps(before: tuple[QueueGap, ...], added: list[QueueGap]) -> list[QueueGap]:
    """Returns all gaps; one that begins inside or right after the last of its queue makes that one longer."""
    gaps = {(gap.topic_id, gap.queue_id, gap.first_missing): gap for gap in before}
    last = {(gap.topic_id, gap.queue_id): gap for gap in sorted(before)}
    for gap in added:
        old = last.get((gap.topic_id, gap.queue_id))
        if old is not None and gap.first_missing <= old.next_present:
            gap = gap._replace(first_missing=old.first_missing)
        gaps[gap.topic_id, gap.queue_id, gap.first_missing] = gap
    return sorted(gaps.values())
