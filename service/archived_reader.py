"""One store that has an archive below the prefixes of a querier and no service: what it answers when it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from index.query import Answer, Query
from index.results import PAGE_BYTES
from service.archives import ArchivedStore
from service.catalogue import FileInfo, TopicInfo
from service.groups import every_topic
from tiering.errors import ObjectNotFoundError, TopicNotFoundError

if TYPE_CHECKING:
    from service.querier_engine import QuerierEngine


class ArchivedReader:
    """Thread safe. Every call raises :class:`NotFoundError` if no archive of the store is known, and
    :class:`UnavailableError` as long as it may have a service."""

    def __init__(self, querier: QuerierEngine, store_id: str) -> None:
        """Asks nothing yet."""
        self._querier = querier
        self._store_id = store_id

    def query(self, query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """Search the archive; what may be hot somewhere is neither searched nor claimed."""
        return self._querier.query(query, page_bytes=page_bytes, store_id=self._store_id)

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Topics as far as they are archived, without those that ``shows`` denies."""
        return archived_topics(self._querier.only_archived(self._store_id), shows)

    def topic(self, name: str) -> TopicInfo:
        """One of them; :class:`TopicNotFoundError`."""
        for topic in self.topics(name.__eq__):
            return topic
        raise TopicNotFoundError(f"the archive of store {self._store_id!r} has no topic {name!r}")

    def files(self) -> list[FileInfo]:
        """Published segments and index objects."""
        return self._querier.files(self._store_id)

    def stats(self) -> dict[str, object]:
        """The querier's, with the watermarks of this store alone."""
        return self._querier.stats(self._store_id)


def archived_topics(store: ArchivedStore, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
    """Topics of one store as far as they are archived, without those that ``shows`` denies; its id at each queue."""
    try:
        return store.topics(shows, named=True)
    except ObjectNotFoundError:
        return []  # nothing is archived yet
