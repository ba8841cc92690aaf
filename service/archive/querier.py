"""A process without a store that answers for many: their archives are read, and their services asked what is hot.

It keeps nothing but caches: any number of queriers may run beside each other, and be killed at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Self, TypeVar

from tierlog.index.search.counts import CountedStore, CountQuery, IntervalCounts, sum_counts, unanswered_counts
from tierlog.index.search.hot_search import HotPage
from tierlog.index.search.query import Answer, Coverage, Query
from tierlog.index.search.remote_search import RemoteSearch, UnansweredSearch, UnknownTopicSearch
from tierlog.index.search.results import PAGE_BYTES
from tierlog.index.search.searcher import StoreSearch
from tierlog.index.search.store_search import ArchiveSearch
from tierlog.service.access.caller import every_topic
from tierlog.service.archive.archived_stores import ArchivedStore, ArchiveRoot
from tierlog.service.archive.local_stores import LocalStores
from tierlog.service.archive.readers import MessageReader
from tierlog.service.cluster.fan_out import StoreAnswer, StoreFanOut, StoresAsked, StoreService
from tierlog.service.cluster.static_view import StaticView
from tierlog.service.cluster.table_view import TableView
from tierlog.service.cluster.view import ClusterView
from tierlog.service.config.cluster import ClusterSettings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.catalogue import FileInfo, TopicInfo
from tierlog.service.engine.opening import open_archive
from tierlog.service.engine.read_path import answer, count, make_searcher, with_hint
from tierlog.service.engine.stats import ReadinessProblem
from tierlog.service.observing.counts import StoreCounts, facts_of
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    MessageNotFoundError,
    NotFoundError,
    ObjectNotFoundError,
    StoreError,
    StoreMismatchError,
    TopicNotFoundError,
    UnavailableError,
)
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.telemetry import NO_TRACER, Histogram, Tracer
from tierlog.tiering.base.worker_pool import WorkerPool
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.urls import canonical_url
from tierlog.tiering.remote.endpoint import ServiceAddress

# Topics that several stores have, merged into one.


def merged(one: TopicInfo | None, other: TopicInfo) -> TopicInfo:
    """Merges two entries of one topic: the queues of both, and every option that either has. The id is the first
    store's.

    Of two retentions the longer is told, of which None, for ever, is the longest.
    """
    if one is None:
        return other
    kept = (one.cold_retention_ms, other.cold_retention_ms)
    return replace(
        one,
        queues=[*one.queues, *other.queues],
        archive=one.archive or other.archive,
        cold_retention_ms=None if None in kept else max(each for each in kept if each is not None),
        hold=one.hold or other.hold,
    )


# The stores below the prefixes that a querier reads; listed while there are requests, and no more often.


class KnownArchives:
    """Thread safe. A prefix is listed (two LIST requests a store) at most once in ``cluster.refresh_ms``."""

    def __init__(self, archives: Sequence[ArchiveRoot], settings: ClusterSettings, clock: Clock) -> None:
        self.archives = tuple(archives)
        self._refresh_s = settings.refresh_ms / 1000
        self._retry_s = settings.retry_ms / 1000
        self._clock = clock
        self._pool = WorkerPool(1, "tierlog-discover")
        self._lock = threading.Lock()
        self._looked_s: dict[str, float] = {}
        self._failed: dict[str, tuple[float, StoreError]] = {}

    def begin(self) -> None:
        """Starts to list the prefixes in the background."""
        for archive in self.archives:
            self._pool.submit(partial(self._look_first, archive))

    def find(self, store_id: str, cold_url: str | None = None) -> ArchivedStore | None:
        """Returns the archive of a store if it is known which one that is; ``cold_url`` is the address the store
        reported."""
        said = [archive for archive in self.archives if archive.url == cold_url]
        for archive in said or [archive for archive in self.archives if store_id in archive.listed]:
            return archive.store(store_id)
        return self.archives[0].store(store_id) if len(self.archives) == 1 else None

    def unserved(self, served: Container[str]) -> list[ArchivedStore]:
        """Returns archived stores except ``served``; where two prefixes have the same id, the first wins.

        The first time the answer of the object store is waited for; later its listing is renewed in the background.
        """
        found: dict[str, ArchivedStore] = {}
        for archive in self.archives:
            looked_s, now_s = self._looked_s.get(archive.url), self._clock.monotonic_s()
            if looked_s is None:
                self._look_first(archive)
            elif now_s - looked_s >= self._refresh_s:
                self._looked_s[archive.url] = now_s
                self._pool.submit(partial(self._look, archive))
            for store_id in archive.listed:
                if store_id not in served:
                    found.setdefault(store_id, archive.store(store_id))
        return [found[store_id] for store_id in sorted(found)]

    @property
    def errors(self) -> dict[str, StoreError]:
        """The errors of prefixes that could not be listed, by URL."""
        return {url: error for url, (_, error) in list(self._failed.items())}

    @property
    def unknown(self) -> dict[str, StoreError | None]:
        """Prefixes that could not be listed even once, and why; None: nobody has tried."""
        errors = self.errors
        return {archive.url: errors.get(archive.url) for archive in self.archives if archive.url not in self._looked_s}

    def close(self) -> None:
        """Closes all archives."""
        for archive in self.archives:
            archive.close()

    def _look_first(self, archive: ArchiveRoot) -> None:
        with self._lock:
            failed = self._failed.get(archive.url)
            is_soon = failed is not None and self._clock.monotonic_s() - failed[0] < self._retry_s
            if archive.url not in self._looked_s and not is_soon:
                self._look(archive)

    def _look(self, archive: ArchiveRoot) -> None:
        try:
            archive.discover()
        except StoreError as error:
            self._failed[archive.url] = self._clock.monotonic_s(), error
        else:
            self._failed.pop(archive.url, None)
            self._looked_s[archive.url] = self._clock.monotonic_s()


# The reader of one store that has an archive below the prefixes of a querier, and no service.


class ArchivedReader:
    """Thread safe. Every call raises :class:`NotFoundError` if no archive of the store is known, and
    :class:`UnavailableError` as long as it may have a service."""

    def __init__(self, querier: Querier, store_id: str) -> None:
        """Asks nothing yet."""
        self._querier = querier
        self._store_id = store_id

    def query(self, query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """Searches the archive; what may be hot somewhere is neither searched nor claimed."""
        return self._querier.query(query, page_bytes=page_bytes, store_id=self._store_id)

    def counts(self, query: CountQuery) -> IntervalCounts:
        """Counts what is archived."""
        return self._querier.counts(query, store_id=self._store_id)

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Returns archived topics, without those that ``shows`` denies."""
        return self._querier.only_archived(self._store_id).named_topics(shows)

    def topic(self, name: str) -> TopicInfo:
        """Returns one archived topic; raises :class:`TopicNotFoundError`."""
        for topic in self._querier.only_archived(self._store_id).named_topic(name):
            return topic
        raise TopicNotFoundError(f"the archive of store {self._store_id!r} has no topic {name!r}")

    def files(self) -> list[FileInfo]:
        """Returns published segments and index objects."""
        return self._querier.files(self._store_id)

    def stats(self) -> dict[str, object]:
        """Returns the querier's statistics, with the watermarks of this store alone."""
        return self._querier.stats(self._store_id)


T = TypeVar("T")
_Timed = TypeVar("_Timed", Query, CountQuery)


class Querier:
    """Thread safe. :meth:`start` begins looking at the cluster table, if that is where the stores stand."""

    store_id = None

    def __init__(
        self,
        archives: Sequence[ArchiveRoot],
        services: Sequence[str],
        settings: Settings,
        clock: Clock,
        *,
        has_table: bool,
        meter: Meter | None = None,
        tracer: Tracer = NO_TRACER,
        local: LocalStores | None = None,
    ) -> None:
        """Use :meth:`open`. ``has_table``: the first archive's prefix is that of a cluster."""
        self._archives = KnownArchives(archives, settings.cluster, clock)
        self._settings = settings
        self._clock = clock
        self.tracer = tracer
        self._table: TableView | None = None
        if has_table:
            self._table = TableView(
                archives[0].objects, clock, SystemRandomness(), refresh_ms=settings.cluster.refresh_ms
            )
        http = StoreFanOut(settings.cluster, clock) if local is None else None
        self._static: StaticView | None = None
        if http is not None and (services or not has_table):
            self._static = StaticView(services, partial(_learn, http), self._table)
        self._local = local
        #: Asks the stores.
        self.fan_out: StoresAsked = http if http is not None else _known(local)
        self._searcher = make_searcher(settings, clock)
        self._staleness_s = settings.cluster.staleness_ms / 1000
        self.counted = StoreCounts(meter or Meter(), Histogram())

    @classmethod
    def over(
        cls,
        local: LocalStores,
        cold_urls: Sequence[str],
        *,
        settings: Settings,
        clock: Clock | None = None,
        objects: ObjectStore | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> Querier:
        """Opens a querier of the stores that this process has open, and of their archives, which others may be in."""
        clock, meter = clock or SystemClock(), Meter()
        archives = _archive_roots(cold_urls, settings, clock, objects, meter=meter, tracer=tracer)
        return cls(archives, (), settings, clock, has_table=False, meter=meter, tracer=tracer, local=local)

    @classmethod
    def open(
        cls,
        cold_url: str | None,
        sources: Sequence[str] = (),
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        objects: ObjectStore | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> Querier:
        """Opens a querier of ``sources``, which are services of stores, and archives; asks nobody yet.

        Without a service, those of the cluster table of ``cold_url`` are asked. Without ``settings`` they are those of
        the environment, as on the command line (:meth:`Settings.load`). ``objects`` replaces the object store of every
        URL. Raises :class:`InvalidRequestError` for a URL that is neither, or if there is nothing to read.
        """
        clock, settings = clock or SystemClock(), settings or Settings.load()
        urls = [source for source in sources if source.lower().startswith(("http://", "https://"))]
        folders = [*([cold_url] if cold_url else []), *(source for source in sources if source not in urls)]
        if not urls and not folders:
            raise InvalidRequestError(
                "a querier needs something to read", hint="give --cold URL, or --stores with services and archives"
            )
        meter = Meter()
        archives = _archive_roots(folders, settings, clock, objects, meter=meter, tracer=tracer)
        return cls(
            archives, [str(ServiceAddress.parse(url)) for url in dict.fromkeys(urls)], settings, clock,
            has_table=cold_url is not None, meter=meter, tracer=tracer,
        )  # fmt: skip

    @property
    def cluster(self) -> ClusterView:
        """The view of where stores are."""
        view = self._static or self._table
        assert view is not None
        return view

    def start(self) -> None:
        """Watches the cluster table from now on; asks nothing else until somebody asks."""
        if self._table is not None:
            self._table.start()
        self._archives.begin()

    # queries

    def query(self, query: Query, *, page_bytes: int = PAGE_BYTES, store_id: str | None = None) -> Answer:
        """Searches all stores: what is hot as they answer, what is archived below that here; see the decision 0017.

        ``store_id`` names one without a service, of which only the archive is searched.
        """
        begun_s = self._clock.monotonic_s()
        if query.timeout_ms is None and self._settings.query.timeout_ms and not query.dry_run:
            query = replace(query, timeout_ms=self._settings.query.timeout_ms)
        ask = partial(self._answer, page_bytes=page_bytes, store_id=store_id)
        with self.tracer.span("query", by="time" if query.key is None else "key", limit=query.limit) as span:
            found = with_hint(ask, query, self._settings, self._clock)
            span.annotate(**facts_of(found))
        self.counted.answered(query, found, self._clock.monotonic_s() - begun_s)
        return found

    def _answer(self, query: Query, *, page_bytes: int, store_id: str | None) -> Answer:
        begun_s = self._clock.monotonic_s()
        if store_id is None:
            stores = self._searches(self.fan_out.hot_pages(self._services(), query, page_bytes))
        else:
            stores = [self._search_archive(self.only_archived(store_id))]
        if not stores:
            raise UnavailableError("no store is known yet", hint="is there an archive of any store, or a service?")
        return answer(self._searcher, stores, self._for_rest(query, begun_s), self._settings, page_bytes)

    def _for_rest(self, query: _Timed, begun_s: float) -> _Timed:
        """Returns the query with the time that is left of its own since it was begun."""
        if query.timeout_ms is None:
            return query
        spent_ms = round((self._clock.monotonic_s() - begun_s) * 1000)
        return replace(query, timeout_ms=max(1, query.timeout_ms - spent_ms))

    def _searches(self, pages: Sequence[StoreAnswer[HotPage]]) -> list[StoreSearch]:
        """Returns one search for each store, in the order of their ids, without stores that do not have the topic."""
        found: dict[str, StoreSearch] = {}
        for outcome in pages:
            service, page = outcome.service, outcome.value
            store_id = page.store_id if page is not None else service.store_id or service.url
            error = outcome.error
            if store_id in found:
                store_id, page = service.url, None
                error = StoreMismatchError(f"{service.url} answers for a store that another service answers for")
            if page is not None:
                archived = self._archives.find(store_id, page.cold_url)
                found[store_id] = RemoteSearch(page, service.url, None if archived is None else archived.index)
                continue
            assert error is not None
            if isinstance(error, StoreMismatchError) and self._static is not None:
                self._static.forget(service.url)
            if isinstance(error, TopicNotFoundError):
                found[store_id] = UnknownTopicSearch(store_id, error)
                continue
            archived = self._archives.find(store_id) if service.store_id == store_id else None
            found[store_id] = UnansweredSearch(
                store_id, service.url, error, None if archived is None else archived.index, max_age_s=self._staleness_s
            )
        for archived in self._archives.unserved(found):
            found[archived.store_id] = self._search_archive(archived)
        for url, failed in self._archives.unknown.items():  # a prefix that was listed before only lacks new stores
            if failed is not None:
                found[url] = UnansweredSearch(url, url, failed, None, max_age_s=0)
        return [found[store_id] for store_id in sorted(found)]

    def _search_archive(self, archived: ArchivedStore) -> StoreSearch:
        return ArchiveSearch(archived.store_id, archived.index, max_age_s=self._staleness_s)

    # counts

    def counts(self, query: CountQuery, *, store_id: str | None = None) -> IntervalCounts:
        """Adds what all stores count, each of both its tiers; archives without a service are counted here.

        Where an end of the range is open, all stores are first asked for theirs. A store that gives no answer makes the
        answer incomplete; what it has archived is counted.
        """
        if query.timeout_ms is None and self._settings.query.timeout_ms:
            query = replace(query, timeout_ms=self._settings.query.timeout_ms)
        begun_s = self._clock.monotonic_s()
        spent: list[Coverage] = []
        if query.from_ms is None or query.to_ms is None:
            whole = self._counts(replace(query, buckets=1, interval_ms=None), store_id)
            span = query.range_of([(each.from_ms, each.to_ms - 1) for each in whole if each.from_ms < each.to_ms])
            if span.from_ms >= span.to_ms:
                return sum_counts(query, span, whole, ())
            spent = [each.coverage for each in whole]
            query = self._for_rest(replace(query, from_ms=span.from_ms, to_ms=span.to_ms), begun_s)
        query = replace(query, interval_ms=query.width_ms(query.within))
        return sum_counts(query, query.within, self._counts(query, store_id, spent), spent)

    def _counts(self, query: CountQuery, store_id: str | None, spent: Sequence[Coverage] = ()) -> list[IntervalCounts]:
        """Asks every store with a service, then counts the archives of the others."""
        begun_s, found, unknown = self._clock.monotonic_s(), list[IntervalCounts](), list[TopicNotFoundError]()
        silent: dict[str, StoreError] = {}
        if store_id is not None:
            archives = [self.only_archived(store_id)]
        else:
            archives = []
            services, asked = self._services(), set[str]()
            for outcome in self.fan_out.counts(services, query.with_less(spent, share_of=max(1, len(services)))):
                name = outcome.service.store_id or outcome.service.url
                asked.add(name)
                if outcome.value is not None:
                    found.append(outcome.value)
                elif isinstance(outcome.error, TopicNotFoundError):
                    unknown.append(outcome.error)
                elif outcome.error is not None:
                    silent[name] = outcome.error
                    archived = self._archives.find(name) if outcome.service.store_id == name else None
                    archives += [] if archived is None else [archived]
            archives += self._archives.unserved(asked)
            silent |= {url: error for url, error in self._archives.unknown.items() if error is not None}
        query = self._for_rest(query.with_less([*spent, *(each.coverage for each in found)]), begun_s)
        stores = [CountedStore(each.store_id, None, each.manifest, self._staleness_s) for each in archives]
        try:
            found += [count(stores, query, self._searcher, self._settings, self._clock)] if stores else []
        except TopicNotFoundError as error:
            unknown.append(error)
        if silent:
            found.append(unanswered_counts(query, silent))
        if not found:
            raise unknown[0] if unknown else UnavailableError("no store is known yet")
        return found

    def only_archived(self, store_id: str) -> ArchivedStore:
        """Returns the archive of a store that has no service. May wait for the object store.

        Raises :class:`NotFoundError` if there is none, :class:`UnavailableError` while it may have a service.
        """
        services = self._services()
        if any(service.store_id in (None, store_id) for service in services):
            raise UnavailableError(f"where store {store_id!r} answers is not known yet", hint="try again in a moment")
        for archived in self._archives.unserved(()):
            if archived.store_id == store_id:
                return archived
        self._refuse_if_silent({}, "")
        raise NotFoundError(f"there is neither a service nor an archive of a store {store_id!r}")

    # what there is

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Returns the topics of all stores that ``shows`` permits; a topic in several stores lists the queues of all of
        them."""
        found, silent, unserved = self._everywhere(self.fan_out.topics)
        listed = [topic for topics in found for topic in topics]
        for store in (*silent.values(), *unserved):
            listed += store.named_topics(shows)
        by_name: dict[str, TopicInfo] = {}
        for topic in sorted((one for one in listed if shows(one.name)), key=lambda topic: topic.name):
            by_name[topic.name] = merged(by_name.get(topic.name), topic)
        return list(by_name.values())

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic with its queues on all stores.

        Raises :class:`TopicNotFoundError` only if every store was asked, else :class:`UnavailableError`.
        """
        found, silent, unserved = self._everywhere(lambda services: self.fan_out.topic(services, name))
        listed = [topic for topics in found for topic in topics]
        for store in (*silent.values(), *unserved):
            listed += store.named_topic(name)
        if listed:
            return reduce(merged, listed)
        self._refuse_if_silent(silent, f"whether there is a topic {name!r}")
        raise TopicNotFoundError(f"no store has a topic {name!r}")

    def stores_with_topic(self, topic: str) -> Sequence[str]:
        """Ids of the stores with a service that have a topic, or had one when they answered last."""
        found = []
        for outcome in self.fan_out.topic(self._services(), topic):
            store_id = outcome.service.store_id
            if store_id is None or isinstance(outcome.error, NotFoundError):
                continue
            if outcome.value is not None or self._has_archived(store_id, topic):
                found.append(store_id)
        return sorted(found)

    def _has_archived(self, store_id: str, topic: str) -> bool:
        archived = self._archives.find(store_id)
        return archived is not None and archived.has_topic(topic, self._staleness_s)

    def shown_message(
        self, message_id: str, show: Callable[[StoredMessage], Json], store_id: str | None = None
    ) -> Json:
        """Returns one message by its id: the JSON it got from the store, or what ``show`` makes of an archived one.

        Raises :class:`InvalidRequestError` if several have one with this id, :class:`MessageNotFoundError` only if
        every store was asked, else :class:`UnavailableError`.
        """
        found, silent, unserved = self._everywhere(
            lambda services: self.fan_out.messages(services, message_id, show), store_id
        )
        messages = [message for answers in found for message in answers]
        for store in (*silent.values(), *unserved):
            if store_id not in (None, store.store_id):
                continue
            try:
                messages.append(show(store.fetcher.message(message_id)))
            except MessageNotFoundError:
                continue
            except InvalidRequestError:
                raise
            except ObjectNotFoundError:
                continue  # nothing is archived yet
            except StoreError:
                silent[store.store_id] = store
        if len(messages) > 1:
            named = ", ".join(sorted(str(message["store_id"]) for message in messages))
            raise InvalidRequestError(f"several stores have a message of this id: {named}", hint="name one by store_id")
        if messages:
            return messages[0]
        self._refuse_if_silent(silent, "whether there is such a message")
        raise MessageNotFoundError(f"no message has the id {message_id}")

    def files(self, store_id: str | None = None) -> list[FileInfo]:
        """Lists what is published in the archives, or in that of a store without a service; of hot files a store tells
        itself."""
        return [info for store in self._archived(store_id) for info in store.files(self._staleness_s)]

    def stats(self, store_id: str | None = None) -> dict[str, object]:
        """Watermarks of each archive, or of that of a store without a service, and how many stores gave no answer when
        they were asked last."""
        stores = {store.store_id: store.watermarks(self._staleness_s) for store in self._archived(store_id)}
        return {
            "role": "querier",
            "archives": [archive.url for archive in self._archives.archives],
            "cache": {archive.url: archive.cache_stats() for archive in self._archives.archives},
            "stores": stores,
            "services": [{"url": one.url, "store_id": one.store_id} for one in self._services()],
            "silent": self.fan_out.silent,
        }

    def _archived(self, store_id: str | None) -> list[ArchivedStore]:
        return self._archives.unserved(()) if store_id is None else [self.only_archived(store_id)]

    # how it is

    @property
    def cold_error(self) -> str | None:
        """The reason why the archives or the cluster table cannot be read, None if all is well."""
        failed = next(iter(self._archives.errors.values()), None)
        if failed is not None:
            return str(failed)
        return self._table.error if self._table is not None else None

    #: A querier has no index that could lag behind a log, and no store.
    index_error: None = None
    damage: None = None
    own_store: None = None

    @property
    def finder(self) -> Self:
        """The finder of the stores of a topic: the querier."""
        return self

    def reader_of(self, store_id: str) -> MessageReader:
        """Returns the reader of a store that has an archive and no service: others are sent what is for them."""
        return ArchivedReader(self, store_id)

    @property
    def readiness_problem(self) -> ReadinessProblem | None:
        """The reason why there is nothing to answer from yet; None if there is."""
        reason = self._unready_reason()
        part, hint = "an archive or the cluster table has not answered yet", "it goes on asking; see to the archive"
        return None if reason is None else ReadinessProblem(reason, part, hint)

    def _unready_reason(self) -> str | None:
        """Returns what the cluster table, or an archive, said instead of a first answer; None if all have answered."""
        if self._table is not None and self._static is None and self._table.age_ms is None:
            return f"the cluster table was not read yet: {self._table.error or 'it is being asked'}"
        for url, error in self._archives.unknown.items():
            self._archives.begin()  # a process that is not ready gets no queries, so nothing else would look
            return f"{url} has not answered yet: {error or 'it is being asked'}"
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops watching the cluster and closes its connections."""
        if self._table is not None:
            self._table.stop()
        self.fan_out.close()
        self._archives.close()

    # who is asked

    def _services(self) -> list[StoreService]:
        if self._local is not None:
            return self._local.services()
        if self._static is not None:
            return self._static.services()
        assert self._table is not None
        if self._table.age_ms is None:
            raise UnavailableError(
                "the cluster table was not read yet", hint=self._table.error or "it is being asked; try again"
            )
        return [StoreService(place.url, place.store_id) for place in self._table.stores()]

    def _everywhere(
        self, ask: Callable[[Sequence[StoreService]], list[StoreAnswer[list[T]]]], only: str | None = None
    ) -> tuple[list[list[T]], dict[str, ArchivedStore], list[ArchivedStore]]:
        """Returns what the services answered, archives of those that did not answer, and archives of stores without a
        service."""
        services = self._services()
        if only is not None:  # until its service is known, it may be behind any URL whose store is not known
            known = [service for service in services if service.store_id == only]
            services = known or [service for service in services if service.store_id is None]
        outcomes = ask(services)
        found: list[list[T]] = []
        silent: dict[str, ArchivedStore] = {}
        asked: set[str] = set()
        for outcome in outcomes:
            store_id = outcome.service.store_id
            if store_id is not None:
                asked.add(store_id)
            if outcome.value is not None and store_id is not None:
                found.append(outcome.value)
            elif not isinstance(outcome.error, NotFoundError):
                archived = self._archives.find(store_id) if store_id is not None else None
                if archived is None:
                    raise outcome.error or UnavailableError(f"{outcome.service.url} gave no answer")
                silent[archived.store_id] = archived
        return found, silent, self._archives.unserved(asked)

    def _refuse_if_silent(self, silent: dict[str, ArchivedStore], what: str) -> None:
        if silent:
            raise UnavailableError(
                f"it cannot be told {what}: no answer from store {', '.join(sorted(silent))}",
                hint="its archive does not have it; what is hot there is not known",
            )
        for error in self._archives.unknown.values():
            if error is not None:
                raise error


def _archive_roots(
    folders: Sequence[str],
    settings: Settings,
    clock: Clock,
    objects: ObjectStore | None,
    *,
    meter: Meter,
    tracer: Tracer,
) -> list[ArchiveRoot]:
    """Opens each archive once, whatever it is called; asks nothing."""
    found = []
    for url in dict.fromkeys(canonical_url(folder) for folder in folders):
        inner = objects or open_archive(url, settings, clock, make=False)
        found.append(ArchiveRoot(url, settings, clock, MeteredObjectStore(inner, meter, clock, tracer)))
    return found


def _learn(asking: StoreFanOut, urls: Sequence[str]) -> dict[str, str]:
    """Asks services which stores they are."""
    outcomes = asking.each(
        [StoreService(url, None) for url in urls],
        lambda service: str(asking.client.get(service.url, "/v1/stats")["store_id"]),
    )
    return {outcome.service.url: outcome.value for outcome in outcomes if outcome.value is not None}


def _known(local: LocalStores | None) -> LocalStores:
    assert local is not None
    return local
