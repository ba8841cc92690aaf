"""Gets back what the tails in the bucket hold of a log: for a new volume, and for one that has lost its end.

:func:`recover_tails` publishes the tails of a lost volume: the way back for appends acknowledged as ``archived``. It is
for the volume that has taken the store over, before it begins a log of its own. ``docs/formats/tail.md`` has the
protocol. Killed anywhere: the next call goes on, because any fence ends the chain as well as a fresh one, and
``archived_to`` says what is published.

:class:`TailRestorer` puts back what a volume has lost of its own log. A tail holds flushed bytes only, so a log that
ends before them was cut short by damage, or by a disk that forgot what it had flushed. Messages in there may have been
acknowledged as archived: they come back under their old offsets, and nothing else may ever get these. How far tails may
reach is known from ``tierlog/tails.json``, and from the bucket where it answers, which also sees that the volume is an
old copy of itself. Killed in there: the log ends where it did, or further on, and the next opening does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from tierlog.tiering.base.errors import ConflictError, CorruptionError, FencedError, TornRecordError, UnavailableError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.paths import base_offset_name
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.format.manifest import Head, ObjectRef
from tierlog.tiering.format.record import BLANK, MAGIC_BLANK
from tierlog.tiering.format.store_state import StoreState, TopicState
from tierlog.tiering.format.tail import TailHead, TailKind
from tierlog.tiering.hot.commit_log import CommitLog, Segment
from tierlog.tiering.hot.store import NO_LIMIT, HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.kernels.scan import TopicTable, scan_all
from tierlog.tiering.lifecycle.archiver import upload_segment
from tierlog.tiering.lifecycle.tail_store import TailMark, TailObjects
from tierlog.tiering.objects.transfer import put_verified

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
    """Fences the chain of tails from ``archived_to`` on and publishes all segments that it reaches into.

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
    """Returns the chain, ended by a fence: ours, or that of a restore before.

    The old writer may put tails ahead of us again and again; it stops when it next looks at the head.
    """
    chain: list[TailHead] = []
    position = head.archived_to
    while True:
        found = tails.describe(position)
        if found is None:
            nonce = randomness.token_hex(8)
            fence = TailHead(
                store_id=head.store_id, volume_id=head.volume_id, epoch=head.epoch, nonce=nonce, kind=TailKind.FENCE,
                first=position, end=position, segment_bytes=0,
            )  # fmt: skip
            found = tails.create(fence)
        if found.head.kind is TailKind.FENCE:
            return chain
        chain.append(found.head)
        position = found.head.end


def _assemble(tails: TailObjects, chain: Sequence[TailHead], base: int, fs: FileSystem, folder: Path) -> Segment:
    """Assembles the segment as a file: the tails' bytes, and a blank record behind them unless one is among them."""
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
    """Queue counts of the topics in one segment's tails; the last tail wins."""
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
    """Returns the head that names the segment; planned again where an erasure came in between."""
    for _ in range(_TRIES):
        state = manifest.state(manifest.reader(), head)
        known = _with_topics(state, used, _made_again(state, used, segment), len(segment.data))
        topics = [
            Topic(each.topic_id, each.name, each.queues, archive=each.archive, hold=each.hold) for each in known.topics
        ]
        begun_s = manifest.begin_upload()
        entry = upload_segment(
            manifest, randomness, topics=topics, segment=segment, epoch=head.epoch, tombstones=head.tombstones
        )
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
    """Returns the state with the topics of some tails, their queues counted; what it says of volumes stays."""
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
    """Returns where the records of the last archived segment end.

    Read off the archive, so that a second call says the same.
    """
    if head.log and head.log[-1].next == head.archived_to:
        return head.log[-1].base + SegmentReader(manifest.reader(), head.log[-1]).blank_position
    return head.archived_to


class TailRestorer:
    """The tails of one volume, as far as they are known while it is opened; used by one thread at a time."""

    def __init__(self, mark: TailMark, volume_id: str, *, followed_below: int = 0) -> None:
        """A log that follows a broker, or did below an offset, has the same bytes whoever wrote its tails there."""
        self._mark = mark
        self._followed_below = followed_below
        self._volume_id = volume_id
        self._tails: TailObjects | None = None
        self._archived_to = 0
        self._chain: list[TailHead] = []

    def look(self, tails: TailObjects, head: Head) -> list[TailHead]:
        """Follows the chain from where it is known to lead; one request where there is nothing new."""
        return [*tails.follow(max(head.archived_to, self._mark.confirmed))]

    def saw(self, tails: TailObjects, head: Head, chain: list[TailHead]) -> None:
        """Takes what a look has found; without it the bucket counts as unreachable."""
        self._archived_to, self._tails, self._chain = head.archived_to, tails, chain

    def put_back(self, log: CommitLog, end: int) -> bool:
        """Writes what tails have from ``end`` on into the log; returns whether there was any."""
        if self._tails is None or end >= self._reach():
            return False
        try:
            return self._put_back_from(self._tails, log, end)
        except UnavailableError:
            self._tails = None
            return True  # some of it may have been written

    def put_back_all(self, tails: TailObjects, head: Head, log: CommitLog) -> None:
        """Writes what tails have behind the archive's end into an empty log that begins there; all or an error."""
        chain = self.look(tails, head)
        self.saw(tails, head, chain)
        self._put_back_from(tails, log, head.archived_to)
        self._mark.raise_to(self._reach(), head.archived_to)

    def _put_back_from(self, tails: TailObjects, log: CommitLog, end: int) -> bool:
        chain = self._chain
        if not chain or chain[0].first > end:
            chain = [*tails.follow(self._archived_to)]
        found = False
        for said in chain:
            if said.kind is TailKind.FENCE or not self._is_own(said):
                break
            if said.end > end:
                if not self._put_back_one(tails, log, said, end):
                    break
                found = True
        return found

    def _put_back_one(self, tails: TailObjects, log: CommitLog, said: TailHead, end: int) -> bool:
        """Returns whether the log goes on with it; a followed one does not with what its broker took back."""
        tail = tails.read(said.first)
        if tail is None or tail.head != said:
            raise CorruptionError("a tail was replaced while it was read", path="tail", position=said.first)
        if said.first < end:
            segment = log.segment_of(said.first)
            kept = bytes(segment.data[said.first - segment.base_offset : end - segment.base_offset])
            if tail.payload[: len(kept)] != kept:
                if self._followed_below == NO_LIMIT:
                    return False
                raise CorruptionError(
                    "a tail in the bucket holds other bytes than the log", path="commitlog", position=said.first
                )
        log.put_back(said.first, tail.payload, said.end)
        return True

    def _is_own(self, said: TailHead) -> bool:
        return said.volume_id == self._volume_id or said.first < self._followed_below

    def settle(self, hot: HotStore) -> None:
        """Makes sure, after recovery, that no offset which a tail may have is given out again.

        What no tail has up to the mark was never acknowledged as archived, but may still arrive in the bucket: the
        log goes on in the next segment. Where the bucket could not be asked, the store stays read-only. A log that
        follows a broker gives out no offsets.
        """
        if hot.is_followed:
            return
        end, reach = hot.log.end, self._reach()
        if end >= reach:
            return
        if self._tails is not None:
            hot.roll()
        else:
            hot.guard.turn_read_only(
                f"the log ends at {end}, and messages up to {reach} may be in the bucket: "
                "open the store again when the bucket can be reached"
            )

    def _reach(self) -> int:
        last = max((said.end for said in self._chain if self._is_own(said)), default=0)
        return max(self._mark.end, last)
