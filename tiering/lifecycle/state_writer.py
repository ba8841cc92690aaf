"""Writes the ``state`` object of the archive: topics, consumer groups and queue ends as they are now.

A commit that publishes a new topic carries a new one; everything else is written on change, at most once a minute.
Killed before the commit: an object that nobody names, and the state before is still in force.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, ObjectNotFoundError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Head, ObjectRef
from tierlog.tiering.format.store_state import (
    CommittedOffset,
    GroupRecord,
    OffsetElsewhere,
    QueueDeliveryState,
    StoreState,
    TopicState,
)
from tierlog.tiering.hot.consumer_groups import GroupOffsets, GroupState
from tierlog.tiering.hot.delivery_states import DeliveryStates
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import Topic
from tierlog.tiering.objects.transfer import put_verified

#: How old what the archive knows of groups and queue ends may get.
STATE_INTERVAL_S = 60.0


class StateWriter:
    """Tells the archive of one store what its records do not say; used after a claim, by one thread at a time.

    Whoever asks for a state object holds ``publishing`` until it is named, so that none replaces a newer one.
    """

    def __init__(
        self,
        hot: HotStore,
        groups: GroupOffsets,
        deliveries: DeliveryStates,
        *,
        volume_id: str,
        manifest: ManifestStore,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._hot = hot
        self._groups = groups
        self._deliveries = deliveries
        self._volume_id = volume_id
        self._manifest = manifest
        self._clock = clock
        self._randomness = randomness
        self.publishing = threading.Lock()
        self._look_at_s = 0.0
        self._is_doubted = False
        #: The last state object seen and what it says, so that a look costs no request.
        self._known: tuple[ObjectRef | None, StoreState] = (None, StoreState())

    def doubt(self) -> None:
        """Has the next state object written although nothing has changed: the last is not sound in the bucket."""
        self._is_doubted = True

    def with_topics(self, head: Head) -> ObjectRef | None:
        """Returns a new state object if a topic is not in the last one as it is now."""
        known = self._last(head)
        topics = [_topic_state(topic, ()) for topic in self._hot.topics.all()]
        if topics == [replace(topic, ends=()) for topic in known.topics]:
            return None
        return self._store(self._current(known))

    def if_due(self, head: Head) -> ObjectRef | None:
        """Returns a new state object if anything has changed, None otherwise and within a minute of the last look."""
        if self._clock.monotonic_s() < self._look_at_s:
            return None
        self._look_at_s = self._clock.monotonic_s() + STATE_INTERVAL_S
        return self.if_changed(head)

    def if_changed(self, head: Head) -> ObjectRef | None:
        """Returns a new state object if anything has changed; a store that has nothing to tell needs none."""
        known = self._last(head)
        current = self._current(known)
        is_new = self._is_doubted or not current.tells_as_much(known)
        if not is_new or not (known.topics or current.topics or current.groups):
            return None
        ref = self._store(current)
        self._is_doubted = False
        return ref

    def _last(self, head: Head) -> StoreState:
        if self._known[0] != head.state:
            try:
                self._known = head.state, self._manifest.state(self._manifest.reader(), head)
            except (CorruptionError, ObjectNotFoundError):
                self._known = head.state, StoreState()  # what is lost is written anew, but for earlier takeovers
        return self._known[1]

    def _current(self, known: StoreState) -> StoreState:
        """Returns the state now. An end read after a committed offset is never below it."""
        store_id = self._manifest.keys.store_id
        deliveries = self._deliveries.all()  # looked at first: no offset that they begin with is above the group's
        groups = tuple(
            _group_record(name, group, store_id, deliveries.get(name, ()))
            for name, group in sorted(self._groups.all().items())
        )
        hot = self._hot
        log_end = hot.dispatch()
        topics = tuple(
            _topic_state(topic, tuple(hot.next_offset(topic, queue_id) for queue_id in range(topic.queues)))
            for topic in hot.topics.all()
        )
        return StoreState(
            topics=topics, groups=groups, volume_id=self._volume_id, log_end=log_end, next_topic_id=hot.topics.next_id,
            first_offset=hot.topics.first_offset, segment_bytes=hot.log.segment_bytes, takeovers=known.takeovers,
            log_begin=hot.log.begin, followed=hot.is_followed,
            was_followed=not hot.is_followed and (known.followed or known.was_followed or hot.followed_below > 0),
        )  # fmt: skip

    def _store(self, state: StoreState) -> ObjectRef:
        data = state.encode()
        key = self._manifest.keys.state(self._randomness.token_hex(8))
        return ObjectRef(key, len(data), put_verified(self._manifest.objects, key, data), len(data))


def _group_record(
    name: str, group: GroupState, store_id: str, deliveries: tuple[QueueDeliveryState, ...]
) -> GroupRecord:
    offsets = [(*queue, offset) for queue, offset in sorted(group.offsets.items())]
    own = tuple(CommittedOffset(topic, number, at) for topic, store, number, at in offsets if store == store_id)
    elsewhere = tuple(OffsetElsewhere(*each) for each in offsets if each[1] != store_id)
    return GroupRecord(name, group.generation, own, elsewhere, deliveries)


def _topic_state(topic: Topic, ends: tuple[int, ...]) -> TopicState:
    """Returns what the archive learns of a topic.

    Of a deletion only once it has the tombstone, so that it hides all or nothing.
    """
    state = TopicState(
        topic_id=topic.topic_id, name=topic.name, queues=topic.queues, archive=topic.archive,
        cold_retention_ms=topic.cold_retention_ms, hold=topic.hold, ends=ends,
    )  # fmt: skip
    deletion = topic.deletion
    if deletion is None or not deletion.is_archived or not (deletion.in_force or deletion.below):
        return state
    begins = tuple(topic.begin(queue_id) for queue_id in range(topic.queues))
    return replace(state, deleted=deletion.in_force, deleted_below=deletion.below, begins=begins)
