"""Deletes a topic with everything in it: gone here at once, then from the archive, whose bytes are overwritten.

Three steps, each durable before the next: ``topics.json`` says that the topic is deleted below the log's end
(:mod:`tiering.hot.deleting`); the archive's head has the tombstone, as of an erasure; the archive's ``state`` object
lists the topic no more.

Killed before the first: nothing happened. After it: nobody here sees the topic or a message of it, also after a
restart with a dead bucket, and the background hands the tombstone over. After the second: readers of the archive see a
topic without its messages until the state is written, at most a minute later. The tombstone's id is chosen in the
first step, so that one that landed is found and not committed again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from index.query import Query
from service.erasing import Eraser
from tiering.cold.manifest_store import ManifestStore
from tiering.erasing.tombstones import refuse_too_many
from tiering.hot.deleting import DeletedTopics, delete_topic
from tiering.hot.deletion import Deletion
from tiering.hot.store import HotStore
from tiering.hot.topics import Topic
from tiering.randomness import Randomness
from tiering.store_view import refuse_held


class TopicDeleter:
    """Of one open store; one without a cold tier has no eraser. Thread safe."""

    def __init__(
        self,
        hot: HotStore,
        holding: threading.Lock,
        deleted: DeletedTopics,
        randomness: Randomness,
        manifest: ManifestStore | None,
        eraser: Eraser | None,
        tell: Callable[[], None] | None,
    ) -> None:
        """``holding`` is held while a hold is changed; ``tell`` tells the archive of topics."""
        self._hot = hot
        self._holding = holding
        self._deleted = deleted
        self._randomness = randomness
        self._manifest = manifest
        self._eraser = eraser
        self._tell = tell

    def plan(self, name: str) -> dict[str, Any]:
        """What :meth:`delete` would answer now; nothing is changed."""
        topic = self._hot.topics.get(name)
        refuse_held([topic], (name,))
        with self._hot.between_appends() as next_offset:
            begins = {queue_id: next_offset(topic, queue_id) for queue_id in range(topic.queues)}
        return {**_answer(topic, Deletion(self._hot.log.end, begins)), "deleted": False, "receipt": None}

    def delete(self, name: str) -> dict[str, Any]:
        """Delete a topic: nobody sees it or a message of it any more, and its queues go on if it is made again.

        Returns once the archive knows. Raises :class:`TopicNotFoundError`, :class:`ConflictError` for a topic on hold
        or too many open erasures, and the object store's error if it does not answer: then the topic is deleted in the
        store all the same, and the archive is told in the background, or by asking again.
        """
        owed = dict(self._deleted.owed()) if self._eraser is not None else {}
        if name in owed and self._hot.topics.find(name) is None:  # asked again, as the archive was not told yet
            topic, deletion, matched = self._hot.topics.of_log(name), owed[name], None
        else:
            matched = None if self._eraser is None else self._eraser.count(Query(name)).matched
            with self._holding:
                topic = self._hot.topics.get(name)
                refuse_held([topic], (name,))
                self._refuse_too_many(name)
                deletion = delete_topic(self._hot, name, self._randomness)
        if self._eraser is not None:
            self._eraser.carry_out_deletion(name, deletion, matched)
            if self._tell is not None:
                self._tell()
        return _answer(topic, deletion, has_receipt=self._eraser is not None)

    def tell_archive(self) -> None:
        """Hand over what the archive was not told of when it was deleted, if there is anything."""
        owed = self._deleted.owed()
        if owed and self._eraser is not None:
            for name, deletion in owed:
                self._eraser.carry_out_deletion(name, deletion)
            if self._tell is not None:
                self._tell()

    def _refuse_too_many(self, name: str) -> None:
        head = self._manifest.head if self._manifest is not None else None
        if head is not None:
            refuse_too_many(head, Deletion(0, {}).tombstone(name))


def _answer(topic: Topic, deletion: Deletion, *, has_receipt: bool = False) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "deleted": True,
        "below_offset": deletion.below,
        "queues": [
            {"queue_id": queue_id, "next_offset": offset} for queue_id, offset in sorted(deletion.begins.items())
        ],
        "tombstone_id": deletion.tombstone_id if has_receipt else None,
    }
