"""Commits of an open store that a hold forbids: none lands after a hold was acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from service.archiving import ColdWay
from tiering.cold.manifest_store import ManifestChange
from tiering.format.manifest import Head
from tiering.hot.store import HotStore
from tiering.store_view import refuse_held


@dataclass(frozen=True, slots=True)
class GuardedCommits:
    """A :class:`~tiering.store_view.Committer` of an open store. Thread safe."""

    hot: HotStore
    cold_way: ColdWay
    holding: threading.Lock
    """Held by whoever commits what a hold forbids, or changes a hold."""

    def commit(self, change: ManifestChange, topics: Collection[str]) -> Head:
        """Commit beside archiving, unless one of the topics is on hold."""
        with self.holding:
            refuse_held(self.hot.topics.all(), topics)
            return self.cold_way.commit_beside(change)
