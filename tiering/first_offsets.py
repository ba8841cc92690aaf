"""The least offset of each queue over both tiers, which a pull tells although it reads only one of them."""

from __future__ import annotations

import itertools
import threading

from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reloading import despite_deletion
from tiering.cold.time_search import archived_offset_by_time
from tiering.errors import StoreError
from tiering.format.manifest import Head
from tiering.types import Boundary

_PATIENCE_S = 0.2
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0
#: What an answer depends on: ``cold_min`` and the topic's expiry.
_Expired = tuple[int, int | None]


class FirstOffsets:
    """Asks the archive once a queue, and again after something of it has expired. Thread safe.

    What is archived later lies behind.
    """

    def __init__(self, manifest: ManifestStore) -> None:
        self._manifest = manifest
        self._known: dict[tuple[int, int], tuple[_Expired, int]] = {}
        self._asking = threading.Lock()
        self._pause = manifest.backoff(first_s=_PAUSE_S, most_s=_LONGEST_PAUSE_S)

    def find(self, topic: str, topic_id: int, queue_id: int, border: int, hot_first: int) -> int:
        """The least offset of a queue whose first offset at or above ``border`` is ``hot_first``.

        Raises the object store's error if it has to be asked and does not answer.
        """
        head = self._manifest.covering(border)
        expired = _expired(head, topic_id)
        found = self._known.get((topic_id, queue_id))
        if found is None or found[0] != expired:
            manifest = self._manifest
            first = despite_deletion(
                manifest, head, lambda newest: first_archived(manifest, newest, border, topic_id, topic, queue_id)
            )
            found = self._known[topic_id, queue_id] = expired, hot_first if first is None else min(hot_first, first)
        return found[1]

    def find_without_waiting(self, topic: str, topic_id: int, queue_id: int, border: int, hot_first: int) -> int:
        """The same, or what was known before, or ``hot_first``, until the archive has answered.

        It is asked beside the caller, who waits a moment only, by one caller at a time, and less and less often while
        it fails: a bucket that does not answer delays nobody and is not stormed by those who read what is hot. An
        archive that was not even there when the store was opened is not asked.
        """
        key, head = (topic_id, queue_id), self._manifest.head
        found = self._known.get(key)
        is_known = found is not None and head is not None and found[0] == _expired(head, topic_id)
        if not is_known and head is not None and self._pause.is_over and self._asking.acquire(blocking=False):
            thread = threading.Thread(
                target=self._ask, args=(topic, *key, border, hot_first), name="tierlog-first-offset", daemon=True
            )
            thread.start()
            thread.join(_PATIENCE_S)
            found = self._known.get(key)
        return hot_first if found is None else found[1]

    def _ask(self, topic: str, topic_id: int, queue_id: int, border: int, hot_first: int) -> None:
        try:
            self.find(topic, topic_id, queue_id, border, hot_first)
            self._pause.succeeded()
        except StoreError:
            self._pause.failed()
        finally:
            self._asking.release()


def first_archived(
    manifest: ManifestStore, head: Head, border: int, topic_id: int, topic: str, queue_id: int
) -> int | None:
    """The offset of a queue's first archived message that has not expired, None if there is none."""
    present_from_ms = dict(head.expired).get(topic_id)
    if present_from_ms is not None:
        return archived_offset_by_time(
            manifest, head, border, topic_id, topic, queue_id, present_from_ms, Boundary.LOWER
        )
    for rows in itertools.islice(manifest.queue_row_pieces(manifest.reader(), head, topic_id, queue_id), 1):
        return int(rows["first_queue_offset"][0])
    return None


def _expired(head: Head, topic_id: int) -> _Expired:
    return head.cold_min, dict(head.expired).get(topic_id)
