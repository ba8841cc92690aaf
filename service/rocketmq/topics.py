"""Names of topics that RocketMQ keeps for itself, and what clients may do with them; the same at both doors."""

from __future__ import annotations

from tierlog.service.delivery.group_topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tierlog.tiering.base.errors import ForbiddenError

#: The topic whose route clients ask for where their own does not exist: "make it like this one".
AUTO_CREATE_TOPIC = "TBW102"
#: What the store itself keeps timers and half messages in.
TIMER_TOPIC, HALF_TOPIC, HALF_OP_TOPIC = (
    "rmq_sys_wheel_timer",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
)
#: Where clients of RocketMQ write their traces, if they are told to.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_SYSTEM = frozenset(
    (
        AUTO_CREATE_TOPIC, "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", HALF_TOPIC, HALF_OP_TOPIC, TRACE_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC",
    )
)  # fmt: skip
_SYSTEM_PREFIX = "rmq_sys_"
#: System topics that clients write to all the same.
_WRITABLE = frozenset((TRACE_TOPIC, "SELF_TEST_TOPIC", "BenchmarkTest"))


def is_system_topic(name: str) -> bool:
    """Whether RocketMQ keeps the name for itself."""
    return name in _SYSTEM or name.startswith(_SYSTEM_PREFIX)


def may_write(name: str) -> bool:
    """Whether clients write to the topic themselves."""
    return name in _WRITABLE or not is_system_topic(name)


def check_may_write(name: str) -> None:
    """Raises :class:`ForbiddenError` for a topic that no client writes to."""
    if not may_write(name):
        raise ForbiddenError(f"topic {name!r} is a system topic, which clients do not write to")


def is_group_topic(name: str) -> bool:
    """Whether it belongs to one group: its messages to deliver again, or its dead letters."""
    return name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
