"""Messages that wait in a topic of the system's, for their time or their producer's word, before they go to their own.

They belong to the topic that they are for, which a property names: with it they are erased, however long they have lain
there, and so are the records of those that have gone on.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Where delayed messages wait; its only queue is 0. RocketMQ's name, so that a broker goes on with them.
TIMER_TOPIC = "rmq_sys_wheel_timer"
#: Where a broker of RocketMQ's keeps messages with a delay level, a queue for each.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: Where half messages of transactions wait; its only queue is 0.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
#: Where RocketMQ and we write what ended a transaction; its only queue is 0, and nothing waits there.
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
WAITING_TOPICS = frozenset((TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC))

#: The topic and the queue that a message is really for (RocketMQ's names).
REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
#: The unique key of a delayed message that is called back.
RECALLED = "TIMER_DEL_UNIQKEY"


def real_topic(topic: str, properties: Mapping[str, str]) -> str | None:
    """Returns the topic that a message of this one belongs to as well; None if it does not wait for one.

    A call back does not: it is a word about a message and has none of it, and as long as that waits, it must be found.
    """
    if topic not in WAITING_TOPICS or RECALLED in properties:
        return None
    found = properties.get(REAL_TOPIC)
    return None if found in WAITING_TOPICS else found
