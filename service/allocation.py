"""Which member of a consumer group reads which queue: RocketMQ's average allocation (AllocateMessageQueueAveragely)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from tiering.group_offsets import Queue


def allocate(
    queue_counts: Mapping[str, Mapping[str, int]], subscriptions: Mapping[str, Collection[str]]
) -> dict[str, list[Queue]]:
    """The queues of each member, ascending.

    ``queue_counts`` has the queues of each topic in each store, ``subscriptions`` the topics of each member. Topic by
    topic the members that named it, sorted, get consecutive queues of those of all stores, sorted by store, as many as
    the others or one more, the first ones the more. A function of its arguments as sets: whoever computes it gets the
    same.
    """
    found: dict[str, list[Queue]] = {member: [] for member in subscriptions}
    for topic in sorted(queue_counts):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        stores = sorted(queue_counts[topic].items())
        queues = [(topic, store_id, queue_id) for store_id, count in stores for queue_id in range(count)]
        at = iter(queues)
        for place, member in enumerate(members):
            share, rest = divmod(len(queues), len(members))
            found[member] += islice(at, share + (place < rest))
    return found
