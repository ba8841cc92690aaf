"""Lets archived messages of an open store expire, every minute, by the rules that are set.

``tierlog/expiry.json`` says up to which expiries all segments were looked at. Killed before it was written: segments
are looked at again, and hold fillers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from service.archiving import ColdWay
from tiering.clock import Clock
from tiering.cold.manifest_store import ManifestStore
from tiering.erasing.rewriting import BatchMaker
from tiering.expiring.course import ExpiryCourse
from tiering.expiring.retention import ColdRetention
from tiering.expiring.rules import SetRules
from tiering.format.manifest import Head
from tiering.fs import FileSystem
from tiering.hot.store import HotStore
from tiering.json_file import read_json, replace_json
from tiering.options import RetentionOptions
from tiering.paths import StorePaths
from tiering.store_view import Committer, HotView

_EVERY_S = 60.0


class Expirer:
    """Expiry of one open store's archive. For one thread; :attr:`held_at` may be read by any."""

    def __init__(
        self,
        hot: HotStore,
        manifest: ManifestStore,
        cold_way: ColdWay,
        committer: Committer,
        maker: BatchMaker,
        fs: FileSystem,
        paths: StorePaths,
        clock: Clock,
        options: RetentionOptions,
    ) -> None:
        self._hot = hot
        self._manifest = manifest
        self._cold_way = cold_way
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._options = options
        view = HotView(hot)
        retention = ColdRetention(view, manifest, SetRules(options))
        self._course = ExpiryCourse(manifest, view, retention, committer, maker)
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
            self.held_at = self._course.raise_marks(head, self._clock.now_ms()).held_at
            self._again_s = self._clock.monotonic_s() + _EVERY_S
        return self._overwrite(self._manifest.head or head)

    def _is_wanted(self, head: Head) -> bool:
        options = self._options
        by_topic = any(topic.cold_retention_ms is not None for topic in self._hot.topics.all())
        return bool(options.cold_retention_ms or options.cold_max_bytes or by_topic or head.expired)

    def _overwrite(self, head: Head) -> bool:
        """One batch of segments that hold enough of what has expired."""
        goal = self._course.goal(head)
        if goal != self._goal:
            self._goal, self._reached = goal, head.cold_min
        if all(self._looked.get(name) == below_ms for name, below_ms in goal.items()):
            return False
        self._reached = self._course.overwrite(head, self._reached, goal, self._looked).reached
        if self._reached < head.archived_to:
            return True
        self._save({**self._looked, **goal})
        return False

    def _save(self, looked: Mapping[str, int]) -> None:
        with self._cold_way.local_step():
            data = (json.dumps({"format": 1, "looked": looked}) + "\n").encode()
            replace_json(self._fs, self._paths.expiry_json, data, self._paths.tmp)
        self._looked = dict(looked)


def _decode(document: dict[str, dict[str, int]]) -> dict[str, int]:
    return {str(name): int(below_ms) for name, below_ms in document["looked"].items()}
