"""The least offset of each queue over both tiers, which a pull tells although it reads only one of them."""

from __future__ import annotations

import contextlib
import itertools
import threading

from tiering.cold.manifest_store import ManifestStore
from tiering.errors import StoreError

_PATIENCE_S = 0.2


class FirstOffsets:
    """Asks the archive once a queue and remembers: what is archived later lies behind. Thread safe."""

    def __init__(self, manifest: ManifestStore) -> None:
        self._manifest = manifest
        self._known: dict[tuple[int, int], int] = {}
        self._asking = threading.Lock()

    def find(self, topic_id: int, queue_id: int, border: int, hot_first: int) -> int:
        """The least offset of a queue whose first offset at or above ``border`` is ``hot_first``.

        Raises the object store's error if it has to be asked and does not answer.
        """
        found = self._known.get((topic_id, queue_id))
        if found is None:
            head = self._manifest.covering(border)
            pieces = self._manifest.queue_row_pieces(self._manifest.reader(), head, topic_id, queue_id)
            archived = [int(rows["first_queue_offset"][0]) for rows in itertools.islice(pieces, 1)]
            found = self._known[topic_id, queue_id] = min([hot_first, *archived])
        return found

    def find_without_waiting(self, topic_id: int, queue_id: int, border: int, hot_first: int) -> int:
        """The same, or ``hot_first`` until the archive has answered.

        It is asked beside the caller, who waits a moment only, and by one caller at a time: a bucket that does not
        answer delays nobody. An archive that was not even there when the store was opened is not asked.
        """
        key = topic_id, queue_id
        if key not in self._known and self._manifest.head is not None and self._asking.acquire(blocking=False):
            thread = threading.Thread(
                target=self._ask, args=(*key, border, hot_first), name="tierlog-first-offset", daemon=True
            )
            thread.start()
            thread.join(_PATIENCE_S)
        return self._known.get(key, hot_first)

    def _ask(self, topic_id: int, queue_id: int, border: int, hot_first: int) -> None:
        try:
            with contextlib.suppress(StoreError):
                self.find(topic_id, queue_id, border, hot_first)
        finally:
            self._asking.release()
