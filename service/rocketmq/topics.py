"""Names of topics that RocketMQ keeps for itself, and what clients may do with them; the same at both doors."""

from __future__ import annotations

from tierlog.service.delivery.transactions import DROPPED_TOPIC
from tierlog.tiering.base.errors import ForbiddenError
from tierlog.tiering.message.waiting import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC

#: The topic whose route clients ask for where their own does not exist: "make it like this one".
AUTO_CREATE_TOPIC = "TBW102"
#: Where clients of RocketMQ write their traces, if they are told to.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_SYSTEM = frozenset(
    (
        AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, "BenchmarkTest", HALF_TOPIC, OP_TOPIC, TRACE_TOPIC,
        DROPPED_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC",
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
