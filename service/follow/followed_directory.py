"""Where the store of one broker lies, and how it is opened: again and again in one process, as its log may be changed
while it is closed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tierlog.service.config.settings import Settings
from tierlog.service.engine.followed.changes import begin_again, rewind
from tierlog.service.engine.followed.store import FollowedStore
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.hot.identity import StoreIdentity, is_made
from tierlog.tiering.objects.object_store import ObjectStore

_ILLEGAL = re.compile("[^a-z0-9-]+")
_LONGEST = 63


def store_id_of(broker: str) -> str:
    """Returns the id of a broker's store: its name in lower case, with ``-`` for what no id may have."""
    found = _ILLEGAL.sub("-", broker.lower()).strip("-")[:_LONGEST].strip("-")
    if not found:
        raise InvalidRequestError(
            f"broker {broker!r} has a name that gives no store id", hint="name one with --store-id ID"
        )
    return found


@dataclass(frozen=True, slots=True)
class FollowedDirectory:
    """The directory of the store of one broker, its archive and its seams."""

    store_id: str
    root: Path
    cold_url: str | None
    settings: Settings
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=SystemRandomness)
    fs: FileSystem = field(default_factory=LocalFileSystem)
    objects: ObjectStore | None = None
    tracer: Tracer = NO_TRACER

    @property
    def paths(self) -> StorePaths:
        """The files of the store."""
        return StorePaths(self.root)

    def identity(self) -> StoreIdentity | None:
        """Returns who the store is; None where none was made yet."""
        return StoreIdentity.read(self.fs, self.paths) if is_made(self.fs, self.paths) else None

    def open(self, segment_bytes: int | None, begin: int, *, restore: bool = False) -> FollowedStore:
        """Opens the store, and makes it where there is none; see :meth:`FollowedStore.open`."""
        return FollowedStore.open(
            self.root, cold_url=self.cold_url, store_id=self.store_id, segment_bytes=segment_bytes, begin=begin,
            settings=self.settings, tail_interval_ms=self.settings.follow.tail_interval_ms, restore=restore,
            clock=self.clock, randomness=self.randomness, fs=self.fs, objects=self.objects, tracer=self.tracer,
        )  # fmt: skip

    def open_promoted(self) -> Store:
        """Opens a store that was promoted: an ordinary one."""
        return Store.open(
            self.root, cold_url=self.cold_url, store_id=self.store_id, settings=self.settings.unsized(),
            clock=self.clock, randomness=self.randomness, fs=self.fs, objects=self.objects, tracer=self.tracer,
        )  # fmt: skip

    def rewind(self, segment_bytes: int, offset: int) -> None:
        """Drops the log at or above ``offset``; the store is closed."""
        rewind(self.root, offset, self._components(segment_bytes))

    def begin_again(self, segment_bytes: int, begin: int) -> None:
        """Lets the log go on at ``begin``, behind a gap; the store is closed."""
        begin_again(self.root, begin, self._components(segment_bytes))

    def _components(self, segment_bytes: int) -> Components:
        return Components(
            self.settings.with_segments_of(segment_bytes), self.clock, self.fs, self.randomness, self.objects,
            tracer=self.tracer, follow_from=0,
        )  # fmt: skip
