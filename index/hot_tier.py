"""Only the hot tier of one store: what it holds for a query, and what somebody else needs to search the rest.

Whoever reads the archive below the border, at the version named here or a newer one, has with this page every message
of the store once: the messages here are copies, so nothing that moves into the archive meanwhile is missed or twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from index.hot_search import HotSearch
from index.local_index import LocalIndex
from index.query import Coverage, Query, StoreCoverage, TierCoverage
from index.search import StoreSearch, search
from index.work import Work
from tiering.cold.manifest_store import ManifestStore
from tiering.erasing.tombstones import Erasures, ErasureSource
from tiering.format.manifest import Tombstone
from tiering.hot.store import HotStore
from tiering.message import StoredMessage
from tiering.types import TimeRange


@dataclass(frozen=True, slots=True)
class Pinned:
    """What one snapshot of a hot tier says beside its messages."""

    border: int
    end: int
    topic_id: int
    first_ms: int | None
    """Everything below the border was stored at this time or before; None if that is not known."""
    erased: Erasures


@dataclass(frozen=True, slots=True)
class HotPage:
    """Answer of one store's hot tier to a query, out of one snapshot. Physical offsets, store times in ms."""

    store_id: str
    cold_url: str | None
    border: int
    end: int
    topic_id: int
    first_ms: int | None
    #: The archive at this version covers everything below the border; None before the store has seen its archive.
    manifest_version: int | None
    #: Erasures of the topic that the store knows, deletions that its archive was not told of yet among them.
    tombstones: tuple[Tombstone, ...]
    messages: list[StoredMessage]
    #: Whether limit or bytes cut the page: then nothing behind its last message is known.
    more: bool
    coverage: Coverage


class HotTierSearch(StoreSearch):
    """Searches what is hot in a store; ``pinned`` is set as soon as the plan has begun."""

    looks_at_head = False
    pinned: Pinned

    def __init__(self, store_id: str, hot: HotStore, index: LocalIndex, known: ErasureSource) -> None:
        self.store_id = store_id
        self._hot = hot
        self._index = index
        self._known = known

    def plan(
        self, query: Query, within: TimeRange, stack: contextlib.ExitStack, covered: StoreCoverage
    ) -> Iterator[Work]:
        """Pin the hot tier and search it."""
        snapshot = stack.enter_context(self._hot.snapshot())
        topic_id = self._hot.topics.get(query.topic).topic_id
        erased, hot = self._known.current(), None
        if max(snapshot.end, snapshot.visible) > snapshot.border:
            covered.hot = claim = TierCoverage(within.from_ms, within.to_ms)
            hot = HotSearch(self.store_id, self._hot, self._index, snapshot, claim, erased)
        first_ms = hot.first_ms if hot is not None else None
        self.pinned = Pinned(snapshot.border, snapshot.end, topic_id, first_ms, erased)
        if hot is not None:
            yield from hot.plan(query, within)


def hot_page(
    tier: HotTierSearch, manifest: ManifestStore | None, cold_url: str | None, query: Query, page_bytes: int
) -> HotPage:
    """Ask a hot tier alone; :class:`TopicNotFoundError` for a topic that the store does not have."""
    answer = search([tier], query, page_bytes=page_bytes)
    pinned, head = tier.pinned, manifest.head if manifest is not None else None
    stones = tuple(stone for stone in pinned.erased.tombstones if stone.topic == query.topic)
    return HotPage(
        tier.store_id, cold_url, pinned.border, pinned.end, pinned.topic_id, pinned.first_ms,
        None if head is None else head.version, stones, answer.messages, answer.next_cursor is not None,
        answer.coverage,
    )  # fmt: skip
