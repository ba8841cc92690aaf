"""What takes messages away before their time or for good, and what forbids it: erasures, expiry, holds."""

from __future__ import annotations

import threading
from typing import Any, TypedDict, Unpack

from index.local_index import LocalIndex
from index.query import Answer, Query
from index.search import search
from index.store_search import TieredStoreSearch
from service.erasing import Eraser, Progress
from service.opening import StoreParts
from service.receipts import Receipts, plan_of
from tiering.clock import Clock
from tiering.disk_space import DiskSpace
from tiering.erasure import Erasures, FixedErasures
from tiering.errors import InvalidRequestError, ReadOnlyError
from tiering.hot.store import HotStore
from tiering.options import RetentionOptions
from tiering.randomness import Randomness
from tiering.retention import due_border


def remove_due(hot: HotStore, index: LocalIndex, retention: RetentionOptions, disk: DiskSpace, now_ms: int) -> None:
    """Remove by retention alone: what happens to old segments of a store without a cold tier.

    What is not dispatched stays: queues and index follow the log, and must not begin above a hole of their own.
    """
    dispatched = hot.dispatch()
    due = due_border(hot, retention, now_ms, disk.excess_bytes())
    border = min(due, dispatched - dispatched % hot.log.segment_bytes)
    if border > hot.border:
        hot.remove_below(border, forget=index.remove_below)


class TopicChanges(TypedDict, total=False):
    """Options of a topic; what is not named stays."""

    archive: bool
    cold_retention_ms: int | None
    hold: bool


class Removal:
    """Of one open store. Thread safe; a store without a cold tier has neither eraser nor receipts."""

    def __init__(
        self,
        hot: HotStore,
        holding: threading.Lock,
        eraser: Eraser | None,
        receipts: Receipts | None,
        *,
        read_only: bool,
    ) -> None:
        """``holding`` is held while something is committed that a hold forbids."""
        self._hot = hot
        self._holding = holding
        self._eraser = eraser
        self._receipts = receipts
        self._read_only = read_only

    def erase(
        self, query: Query, *, dry_run: bool = False, wait: bool = False, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Hide for ever what the query matches in the log now; the receipt.

        Rewriting follows in the background, or before the answer with ``wait``, as far as the log is archived. A dry
        run tells what would match. Raises :class:`InvalidRequestError` without a cold tier.
        """
        self._check_writable()
        receipts = self._cold()
        self._hot.topics.get(query.topic)
        eraser = self._eraser
        assert eraser is not None
        if dry_run:
            return plan_of(eraser.count(query), receipts.store_id)
        receipt = eraser.begin(query)
        while wait and eraser.round(progress):
            pass
        return receipts.get(receipt.tombstone.tombstone_id)

    def round(self) -> bool:
        """One turn in the background: a batch of rewriting, if there is any; whether there is more to do at once."""
        return self._eraser is not None and self._eraser.round()

    def receipts(self) -> list[dict[str, Any]]:
        """Receipts of all erasures, the oldest first."""
        return self._cold().all()

    def receipt(self, tombstone_id: str) -> dict[str, Any]:
        """The receipt of one; :class:`NotFoundError`."""
        return self._cold().get(tombstone_id)

    def configure(self, name: str, **changes: Unpack[TopicChanges]) -> None:
        """Change options of a topic, durably.

        A hold that begins waits for the commit of an erasure or of expiry that is under way; after it returned there
        is none until it ends.
        """
        self._check_writable()
        with self._holding:
            topic = self._hot.topics.get(name)
            with self._hot.writing("changing a topic"):
                self._hot.topics.set_options(
                    topic,
                    archive=changes.get("archive", topic.archive),
                    cold_retention_ms=changes.get("cold_retention_ms", topic.cold_retention_ms),
                    hold=changes.get("hold", topic.hold),
                )

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyError("the store was opened read-only")

    def _cold(self) -> Receipts:
        if self._receipts is None:
            raise InvalidRequestError(
                "this store has no cold tier, where an erasure is written down",
                hint="open it once with --cold URL, or let hot.retention_ms remove the messages",
            )
        return self._receipts


def make_removal(parts: StoreParts, clock: Clock, randomness: Randomness, *, read_only: bool) -> Removal:
    """The removal of an opened store."""
    hot, manifest, cold_way, holding = parts.hot, parts.manifest, parts.cold_way, threading.Lock()
    eraser = receipts = None
    if manifest is not None:
        receipts = Receipts(hot, manifest, parts.identity.volume_id)
        if cold_way is not None:

            def find(query: Query, erased: Erasures) -> Answer:
                store_id = parts.identity.store_id
                return search([TieredStoreSearch(store_id, hot, parts.index, manifest, FixedErasures(erased))], query)

            eraser = Eraser(hot, manifest, cold_way, parts.known, clock, randomness, holding, find)
    return Removal(hot, holding, eraser, receipts, read_only=read_only)
