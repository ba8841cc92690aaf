"""A store as removals see it: topics with the rules and holds that decide what may go, and who commits under them.

A store that is open sees its own topics and log; a job that has only the archive sees the ``state`` object. Both plan
and commit erasures and expiry by the same code, through this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from tierlog.tiering.base.errors import InvalidRequestError, TopicHeldError, TopicNotFoundError
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.format.generation import begin_of, record_topic
from tierlog.tiering.format.manifest import Head
from tierlog.tiering.format.store_state import StoreState
from tierlog.tiering.hot.store import HotStore


class RetainedTopic(Protocol):
    """A topic, as far as keeping it is concerned."""

    @property
    def topic_id(self) -> int:
        """Its id."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def cold_retention_ms(self) -> int | None:
        """Archived messages that are older count as expired; None: kept for ever."""
        ...

    @property
    def hold(self) -> bool:
        """Whether nothing of it may expire or be erased."""
        ...


class StoreView(Protocol):
    """One store, as far as keeping its messages is concerned."""

    def topics(self) -> Iterable[RetainedTopic]:
        """Returns every topic as it is now."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Size of a log segment."""
        ...

    @property
    def log_begin(self) -> int:
        """Offset at which the hot log begins, or began a while ago: it only rises.

        Nothing from there on leaves the archive.
        """
        ...


class Committer(Protocol):
    """A committer of changes that a hold forbids."""

    def commit(self, change: ManifestChange, topics: Collection[str]) -> Head:
        """Commits, unless one of the topics is on hold when it lands.

        Raises :class:`TopicHeldError` for a hold, :class:`ConflictError` if what the change removes is gone, the object
        store's error if the outcome is unknown.
        """
        ...


def names_of(topic: RetainedTopic) -> set[str]:
    """Returns the names by which a removal may mean a topic: that of its entry, and that of all its generations."""
    return {topic.name, record_topic(topic.name)}


def refuse_held(topics: Iterable[RetainedTopic], names: Collection[str]) -> None:
    """Raises :class:`TopicHeldError` if one of the named topics is on hold."""
    for topic in topics:
        if topic.hold and not names_of(topic).isdisjoint(names):
            raise TopicHeldError(
                f"topic {record_topic(topic.name)!r} is on hold: nothing of it may be erased or expire",
                hint=f"`tierlog hold {record_topic(topic.name)} off` ends it",
            )


def is_held(view: StoreView, name: str) -> bool:
    """Whether a topic is on hold; one that is unknown is not."""
    return any(topic.hold for topic in view.topics() if name in names_of(topic))


@dataclass(frozen=True, slots=True)
class HotView:
    """A store that is open here."""

    hot: HotStore

    def topics(self) -> Iterable[RetainedTopic]:
        return self.hot.topics.all()

    @property
    def segment_bytes(self) -> int:
        return self.hot.log.segment_bytes

    @property
    def log_begin(self) -> int:
        return self.hot.log.begin


class ArchiveView:
    """An archive alone, as its ``state`` object says; beside a running store, which tells of every hold there first.

    Commits by whom the store allows it: each try reads the state that its head names, so that a hold which was
    acknowledged before the commit lands refuses it.
    """

    def __init__(self, manifest: ManifestStore, *, has_volume: bool = True) -> None:
        """``has_volume`` False is the operator's word that no volume of the store exists."""
        self._manifest = manifest
        self.has_volume = has_volume
        self._reader = manifest.reader()

    @property
    def head(self) -> Head:
        return self._manifest.head or self._manifest.refresh()

    def state(self, head: Head | None = None) -> StoreState:
        """Returns what the state of a head, or of the one last seen, says."""
        return self._manifest.state(self._reader, head or self.head)

    def topics(self) -> Iterable[RetainedTopic]:
        return self.state().topics

    def topic(self, name: str) -> RetainedTopic:
        """Returns the topic of this name; raises :class:`TopicNotFoundError`."""
        found = [topic for topic in self.topics() if name in names_of(topic)]
        if found:
            return max(found, key=lambda topic: begin_of(topic.name))
        raise TopicNotFoundError(f"no such topic {name!r} in the archive")

    @property
    def segment_bytes(self) -> int:
        """Segment size that the state or the newest segment says."""
        size = self.state().segment_bytes
        for entry in () if size else self._manifest.log_entries(self._reader, self.head):
            return entry.segment_bytes
        if not size:
            raise InvalidRequestError("the archive is empty")
        return size

    @property
    def log_begin(self) -> int:
        """The begin of the log as the volume last said it, 0 if it never did; without a volume all is archived."""
        return (self.state().log_begin or 0) if self.has_volume else self.head.archived_to

    def commit(self, change: ManifestChange, topics: Collection[str]) -> Head:
        """Beside the store's owner; see :class:`Committer`."""
        return self._manifest.commit_other(change, refuse=lambda head: refuse_held(self.state(head).topics, topics))
