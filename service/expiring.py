"""Lets archived messages expire: hidden at once by a rule in the head, overwritten or dropped when it is worth it.

Every minute: the expiry of topics rises, the least kept segment rises, and segments of which half or all has expired
since are written again. ``tierlog/expiry.json`` says up to which expiries all segments were looked at.

Killed before a commit: nothing happened, or unnamed objects. After it: the rule holds, names that left the manifest
are on its removed list. Killed before ``expiry.json``: segments are looked at again, and hold fillers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import partial

from service.archiving import ColdWay
from tiering.clock import Clock
from tiering.cold.manifest_store import ManifestChange, ManifestStore
from tiering.cold_retention import ColdRetention
from tiering.erasing.rewriting import SegmentRewriter
from tiering.errors import ConflictError
from tiering.format.manifest import Head
from tiering.fs import FileSystem, replace_file
from tiering.hot.store import HotStore
from tiering.json_file import read_json
from tiering.options import RetentionOptions
from tiering.paths import StorePaths

_EVERY_S = 60.0


class Expirer:
    """Expiry of one open store's archive. For one thread; :attr:`held_at` may be read by any."""

    def __init__(
        self,
        hot: HotStore,
        manifest: ManifestStore,
        cold_way: ColdWay,
        rewriter: SegmentRewriter,
        fs: FileSystem,
        paths: StorePaths,
        clock: Clock,
        options: RetentionOptions,
        holding: threading.Lock,
    ) -> None:
        """``holding`` is held by whoever commits what a hold forbids, or changes a hold."""
        self._hot = hot
        self._manifest = manifest
        self._cold_way = cold_way
        self._rewriter = rewriter
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._options = options
        self._holding = holding
        self._retention = ColdRetention(hot, manifest, options)
        self._looked = read_json(fs, paths.expiry_json, _decode) if fs.exists(paths.expiry_json) else {}
        self._goal: dict[str, int] = {}
        self._reached = 0
        self._again_s = 0.0
        #: The segment at which a hold keeps the rest of the archive from being dropped, None if none does.
        self.held_at: int | None = None

    def round(self) -> bool:
        """One turn; whether there is more to do at once."""
        head = self._manifest.head
        if head is None or not self._is_wanted(head):
            return False
        if self._clock.monotonic_s() >= self._again_s:
            self._expire(head)
            self._again_s = self._clock.monotonic_s() + _EVERY_S
        return self._overwrite(self._manifest.head or head)

    def _is_wanted(self, head: Head) -> bool:
        options = self._options
        by_topic = any(topic.cold_retention_ms is not None for topic in self._hot.topics.all())
        return bool(options.cold_retention_ms or options.cold_max_bytes or by_topic or head.expired)

    def _expire(self, head: Head) -> None:
        now_ms = self._clock.now_ms()
        kept = self._retention.least_kept(head, now_ms)
        self.held_at = kept.held_at
        if kept.cold_min == head.cold_min and not self._retention.topics(head, now_ms):
            return
        # before anything is taken away for good: a clock that is far ahead here is not believed
        now_ms = min(now_ms, self._manifest.objects.now_ms())
        with self._holding:
            topics = self._retention.topics(head, now_ms)
            if topics:
                head = self._cold_way.commit_beside(ManifestChange(expired=topics))
            kept = self._retention.least_kept(head, now_ms)
            self.held_at = kept.held_at
            if kept.cold_min > head.cold_min:
                self._cold_way.commit_beside(ManifestChange(cold_min=kept.cold_min))

    def _overwrite(self, head: Head) -> bool:
        """One batch of segments that hold enough of what has expired."""
        goal = self._retention.expired_by_name(head)
        if goal != self._goal:
            self._goal, self._reached = goal, head.cold_min
        if all(self._looked.get(name) == below_ms for name, below_ms in goal.items()):
            return False
        unwanted = partial(self._retention.unwanted, expired=goal, looked=self._looked)
        batch = self._rewriter.batch(head, self._reached, head.archived_to, unwanted)
        if batch.replacements:
            with self._holding:
                if self._retention.expired_by_name(head) != goal:
                    raise ConflictError("a topic was put on hold meanwhile")
                self._cold_way.commit_beside(batch.change())
        self._reached = batch.reached
        if self._reached < head.archived_to:
            return True
        self._save({**self._looked, **goal})
        return False

    def _save(self, looked: Mapping[str, int]) -> None:
        with self._cold_way.local_step():
            data = (json.dumps({"format": 1, "looked": looked}) + "\n").encode()
            replace_file(self._fs, self._paths.expiry_json, data, self._paths.tmp)
        self._looked = dict(looked)


def _decode(document: dict[str, dict[str, int]]) -> dict[str, int]:
    return {str(name): int(below_ms) for name, below_ms in document["looked"].items()}
