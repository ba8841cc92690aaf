"""A broker's log becomes the archive of a new store, in this process: survey, archive each segment, one commit.

The same as the Spark job ``ingest`` does on many machines, one segment after the other. Killed anywhere before the
commit: there is no such store, and running it again starts over. After it: the store is complete, and running it again
says so and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tierlog.index.new_store.broker_log import BrokerLog, LogPlan, survey_segment
from tierlog.index.new_store.commit import discard, exists_already, find_head, publish
from tierlog.index.new_store.part import BuiltPart, NewStore
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.format.manifest import Head

#: Told how many steps are done, and how many there are.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class AdoptedLog:
    """The archive of a broker's log."""

    head: Head
    plan: LogPlan
    is_new: bool


def adopt_log(store: NewStore, log: BrokerLog, randomness: Randomness, progress: Progress) -> AdoptedLog:
    """Makes the archive; raises :class:`StoreMismatchError` if another log's is there under this id."""
    steps = 2 * len(log.segments)
    surveys = []
    for number, segment in enumerate(log.segments, 1):
        surveys.append(survey_segment(segment))
        progress(number, steps)
    plan = LogPlan.of(log, surveys)
    if (made := made_before(store, plan.fingerprint)) is not None:
        return AdoptedLog(made, plan, is_new=False)
    topics, parts = plan.new_topics(), list[BuiltPart]()
    with discarding(store, parts):
        for number, task in enumerate(plan.tasks(store), 1):
            parts.append(task.run())
            progress(len(log.segments) + number, steps)
    head = publish(
        store, parts, topics, randomness, volume_id=plan.fingerprint, log_begin=plan.begin, groups=plan.groups
    )
    return AdoptedLog(head, plan, is_new=True)


@contextlib.contextmanager
def discarding(store: NewStore, parts: Sequence[BuiltPart]) -> Iterator[None]:
    """Deletes what was stored if the commit cannot be tried."""
    try:
        yield
    except StoreError:
        discard(store, [name for part in parts for name in part.names])
        raise


def made_before(store: NewStore, fingerprint: str) -> Head | None:
    """Returns the head if this input was ingested before; :class:`StoreMismatchError` for another store of the id."""
    head = find_head(store)
    if head is None:
        return None
    state = store.manifest.state(store.manifest.reader(), head)
    if fingerprint not in (head.volume_id, *(each.volume_id for each in state.takeovers)):
        raise exists_already(store)
    return head


def summary_of(store: NewStore, head: Head, *, is_new: bool) -> dict[str, object]:
    """Returns what a new archive holds, for people."""
    manifest = store.manifest
    reader = manifest.reader(scan=True)
    segments = list(manifest.log_entries(reader, head))
    objects = list(manifest.all_index_entries(reader, head))
    return {
        "store": store.store_id,
        "already_there": not is_new,
        "messages": sum(entry.records for entry in segments),
        "segments": len(segments),
        "index_objects": len(objects),
        "bytes_raw": sum(entry.raw_bytes for entry in segments),
        "bytes_stored": sum(entry.size_bytes for entry in segments) + sum(entry.size_bytes for entry in objects),
    }


def cut_off_of(plan: LogPlan) -> dict[str, object]:
    """Returns how many messages lie behind damage; the archive lacks them, as the broker would after a recovery."""
    if not plan.cut_off:
        return {}
    return {"log_end": plan.end, "cut_off": plan.cut_off, "findings": plan.cut_off}
