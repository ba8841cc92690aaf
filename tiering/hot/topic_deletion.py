"""Deletes a topic of an open store: one change of ``topics.json``, between two appends.

Everything of the topic that was appended before lies below the end that the log has then, flushed; what is appended
after makes the topic again. So an append is before the deletion, and gone, or behind it, and there. Killed before the
file is replaced: nothing happened. After it: there is no such topic, and no record of it below that end is shown.
"""

from __future__ import annotations

from dataclasses import replace

from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.format.generation import record_topic
from tierlog.tiering.format.manifest import Tombstone
from tierlog.tiering.hot.store import HotStore
from tierlog.tiering.hot.topics import TopicDeletion


def delete_topic(hot: HotStore, name: str, randomness: Randomness) -> TopicDeletion:
    """Deletes a topic with all that was appended to it, durably; :class:`TopicNotFoundError`."""
    with hot.between_appends() as next_offset:
        topic = hot.topics.get(name)
        with hot.guard.writing("deleting a topic"):
            deletion = TopicDeletion(hot.flush(), {}, randomness.token_hex(8), randomness.token_hex(16))
            deletions = [
                (each, replace(deletion, begins={number: next_offset(each, number) for number in range(each.queues)}))
                for each in hot.topics.generations(topic.name)
                if not each.is_deleted
            ]
            hot.topics.set_deletions(deletions)
    return deletions[-1][1]


def leave_hidden(hot: HotStore, hidden_below: int) -> None:
    """Makes the log go on behind all that is declared gone, after a recovery; ``hidden_below`` comes from erasures.

    A deletion covers a log that was flushed. Where the disk forgot some of that log, new records would lie below the
    deletion's end and be hidden. What was forgotten lay in the segment in which the log ends now; otherwise recovery
    would have refused it.
    Queues go on where they end now, which is where a topic that is made again begins. Killed anywhere: the next
    opening does the rest.
    """
    if hot.guard.read_only_reason is not None:
        return
    for name, deletion in hot.topics.deletions:
        topic = hot.topics.of_log(name)
        with hot.between_appends() as next_offset:
            ends = {queue_id: next_offset(topic, queue_id) for queue_id in deletion.begins}
        if any(begin > ends[queue_id] for queue_id, begin in deletion.begins.items()):
            with hot.guard.writing("lowering where queues begin"):
                hot.topics.lower_begins(topic, ends)
    reach = max((each.below for _, each in hot.topics.deletions), default=0)
    if hot.log.end < max(reach, hidden_below):
        hot.roll()


class DeletedTopics:
    """Tombstones of deletions that readers of an open store need: what the archive lacks or the log still holds."""

    def __init__(self, hot: HotStore) -> None:
        self._hot = hot
        self._made: tuple[object, int, tuple[Tombstone, ...]] | None = None

    def current(self) -> tuple[Tombstone, ...]:
        """Returns the tombstones; the same tuple until something changes."""
        deletions, begin = self._hot.topics.deletions, self._hot.log.begin
        made = self._made
        if made is None or made[0] is not deletions or made[1] != begin:
            made_of = {each.tombstone_id: each.tombstone(name) for name, each in deletions if self._is_due(each, begin)}
            tombstones = tuple(made_of.values())
            made = self._made = deletions, begin, tombstones
        return made[2]

    @staticmethod
    def _is_due(deletion: TopicDeletion, log_begin: int) -> bool:
        return not deletion.is_archived or deletion.below > log_begin

    def unarchived(self) -> list[tuple[str, TopicDeletion]]:
        """Deletions with their topics that the archive was not told of yet."""
        found = {record_topic(name): each for name, each in self._hot.topics.deletions if not each.is_archived}
        return list(found.items())
