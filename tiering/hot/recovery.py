"""The hot half of recovery: which units of queues count, and where the log ends, after any kind of stop.

Two functions, in this order: :func:`load_queues` only reads, :func:`recover_log` writes. Nothing that is derived is
trusted above the recovery point, and that moves only once all of this is done: killed anywhere in here, the next open
begins at the same point and comes to the same end. ``docs/recovery.md`` has the whole argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.hot.commit_log import CommitLog, PutBack
from tierlog.tiering.hot.consume_queue import ConsumeQueues
from tierlog.tiering.hot.dispatch import Dispatcher


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The state that the last stop left for certain."""

    durable: int
    """First physical offset that is not known to be durable in log and queues."""
    stopped_cleanly: bool
    """Whether nothing lies behind the ends of log and queues."""


def load_queues(
    queues: ConsumeQueues, log: CommitLog, checkpoint: Checkpoint, *, stopped_cleanly: bool
) -> RecoveryPoint:
    """Takes units of records below the checkpoint as they are, unless something says that the checkpoint is wrong.

    Then units are lost that it counts on, or it was damaged and is where no record ends: the log would be cut off
    there. So all of them are derived again.
    """
    durable = max(checkpoint.confirm_offset, log.begin)
    queues.load(durable, log)
    if queues.is_below_floors() or not _is_record_end(queues, log, durable):
        queues.forget(log.begin)
        stopped_cleanly = False
    queues.last_store_ms = checkpoint.physic_ms
    return RecoveryPoint(durable, stopped_cleanly)


def _is_record_end(queues: ConsumeQueues, log: CommitLog, position: int) -> bool:
    """Whether the recovery point is where the queues say that a record ends, or a segment begins."""
    return position % log.segment_bytes == 0 or queues.has_end_at(position)


def recover_log(
    log: CommitLog,
    queues: ConsumeQueues,
    dispatcher: Dispatcher,
    point: RecoveryPoint,
    *,
    published_below: int,
    put_back: PutBack | None,
) -> int:
    """Finds the log's end, derives what is missing below it, and positions the log there; returns the end.

    Raises :class:`CorruptionError` if the log ends where no crash explains it, :class:`StoreMismatchError` if it ends
    below ``published_below``, up to which the archive has it; nothing is cut off then.
    """
    # Units behind each queue's last one become zero. Killed here: those left are above the point, and do not count.
    if not point.stopped_cleanly:
        queues.discard_tails()
    # What a killed process left in the page cache becomes durable. Killed here: it is flushed again.
    log.flush_files(point.durable)
    # Records are checked one by one and handed on; the first that is not whole is the log's end. Killed here: the
    # units and items written meanwhile lie above their checkpoints, and are derived again.
    end = _scan(log, dispatcher)
    # What the disk forgot may be in the bucket. Killed here: the log ends where it did, or further on.
    if put_back is not None and put_back(log, end):
        end = _scan(log, dispatcher)
    # Only a torn tail may be cut off. Nothing was so far, and only a tail's own bytes were added.
    log.check_end(end, point.durable, published_below)
    # The tail becomes zero, and segments behind it go. Killed here: the scan ends at the same place.
    log.start_at(end, tail_is_zero=point.stopped_cleanly and end == point.durable)
    return end


def _scan(log: CommitLog, dispatcher: Dispatcher) -> int:
    return dispatcher.recover(log.last_base + log.segment_bytes)
