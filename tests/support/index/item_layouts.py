"""Items of other systems: other order, fields that are missing, numbers of their own."""

from __future__ import annotations

from tierlog.index.format.layout import LAYOUTS, ROCKETMQ, TIERLOG, ItemLayout

#: Files of it are covered; there is no queue id, and what compaction drops lies in front.
THIRD = ItemLayout(
    "third", 77, ("offset", "previous", "size", "hash_high", "seconds", "topic_id", "hash"), covered=True
)
#: Covered, without the second hash.
NARROW = ItemLayout(
    "narrow", 79, ("topic_id", "hash", "queue_id", "seconds", "offset", "size", "previous"), covered=True
)
#: Nothing but what is required, without cover and second hash.
LEAST = ItemLayout("least", 78, ("previous", "seconds", "hash", "offset"), covered=False)

COVERED = (TIERLOG, THIRD, NARROW)
EVERY = (ROCKETMQ, *COVERED, LEAST)
BY_NUMBER = {**LAYOUTS, **{layout.number: layout for layout in EVERY}}
