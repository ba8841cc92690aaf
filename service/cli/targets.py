"""The targets of commands: a store opened here, an archive read directly, or a running service. All answer as JSON.

Commands about a cluster have one of two (:func:`open_cluster`): a running service, or the archive's prefix alone, which
needs no node. For all others :func:`open_reader` and :func:`open_writer` choose by the flags. :class:`LocalReader` and
:class:`LocalWriter` are a store or an archive opened in the process of the command; they answer as a running service
does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tierlog.service.cli.arguments import overrides
from tierlog.service.wire.documents import (
    Json,
    answer_json,
    file_json,
    group_json,
    pull_json,
    report_json,
    topic_json,
    whole_message_json,
)
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.types import Boundary, Durability

if TYPE_CHECKING:
    from tierlog.index.search.counts import CountQuery
    from tierlog.index.search.query import Query
    from tierlog.service.archive.archive import Archive
    from tierlog.service.archive.readers import StoreReader
    from tierlog.service.cluster.table import ClusterTable, ClusterTableStore
    from tierlog.service.config.settings import Settings
    from tierlog.service.engine.groups import ResetQueues, ResetTo
    from tierlog.service.engine.store import Store
    from tierlog.service.wire.paged_query import FollowedQuery
    from tierlog.tiering.hot.consumer_groups import Queue
    from tierlog.tiering.message.batch import Message
    from tierlog.tiering.remote.endpoint import ServiceAccess

_PAGE_BYTES = 4 << 20
"""Messages of a query that is followed to its end, as they are in memory at a time."""


class Reader(Protocol):
    """The interface of a target to commands that only look."""

    def query(self, query: Query) -> Json:
        """Returns a page of results."""
        ...

    def follow(self, query: Query, most_rows: int | None) -> FollowedQuery:
        """Returns a query that is followed to its end, in pages of so many rows, or as many as are best."""
        ...

    def counts(self, query: CountQuery) -> Json:
        """Returns messages per interval of time."""
        ...

    def message(self, message_id: str) -> Json:
        """Returns one message; raises :class:`MessageNotFoundError`."""
        ...

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, *, wait_ms: int = 0, tag: str | None = None,
        backward: bool = False,
    ) -> Json:  # fmt: skip
        """Reads messages of a queue in order, with ``tag`` those it lets through; only a running service waits.

        ``backward``: those below ``offset``, the last one first.
        """
        ...

    def offset_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Returns the offset of a queue's first message stored at or after a time, its end if there is none."""
        ...

    def topics(self) -> list[Json]:
        """Returns topics with their queues."""
        ...

    def topic(self, name: str) -> Json:
        """Returns one topic with its queues."""
        ...

    def files(self) -> list[Json]:
        """Returns segments and index files."""
        ...

    def stats(self) -> Json:
        """Returns sizes and lags."""
        ...

    def check(self, *, deep: bool, progress: Progress | None) -> Json:
        """Returns findings and notes; only a target opened in this process reports progress."""
        ...


class Writer(Reader, Protocol):
    """The interface of a target to commands that change something."""

    def only_store(self, store_id: str) -> None:
        """Asks this store from now on, whichever is the home of a topic's new messages."""
        ...

    def append(self, messages: Sequence[Message], durability: Durability, key: str | None = None) -> int:
        """Appends a batch and returns when it is as durable as asked for: the store time of the last message.

        With ``key``, an ``Idempotency-Key``, what the store has of the batch already is not appended again.
        """
        ...

    def home_of(self, topic: str) -> str:
        """Returns the store that takes new messages of a topic."""
        ...

    def queues_of(self, topic: str) -> int | None:
        """Returns the number of queues of a topic, None if there is no such topic."""
        ...

    def create_topic(self, name: str, queues: int) -> None:
        """Makes a topic or gives it more queues."""
        ...

    def archive(self, *, until_ms: int | None, everything: bool, drop_hot: bool, progress: Progress | None) -> Json:
        """Archives now; only a store opened in this process reports progress."""
        ...

    def flush(self) -> None:
        """Makes everything durable now."""
        ...

    def committed_offsets(self, group: str) -> dict[Queue, int]:
        """Returns the offsets that a consumer group has committed; raises :class:`NotFoundError` for an unknown one."""
        ...

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commits, durably, for a group without members."""
        ...

    def erase(self, query: Query, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Erases what the query matches; returns the receipt."""
        ...

    def delete_topic(self, topic: str, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Deletes a topic with all its messages; returns where its queues ended, and the receipt."""
        ...

    def hold(self, topic: str, *, hold: bool) -> None:
        """Puts a topic on hold, or ends that."""
        ...

    def receipts(self) -> list[Json]:
        """Returns receipts of all erasures."""
        ...

    def receipt(self, tombstone_id: str) -> Json:
        """Returns one receipt."""
        ...


class Groups(Protocol):
    """The interface of a target to a command about consumer groups."""

    def groups(self) -> list[Json]:
        """Returns every group in numbers; of a service in a cluster those of all its stores."""
        ...

    def group(self, name: str) -> Json:
        """Returns one group with its members and queues; raises :class:`NotFoundError` for an unknown one."""
        ...

    def reset_group(self, name: str, to: ResetTo, queues: ResetQueues, *, dry_run: bool) -> list[Json]:
        """Moves a group without members, durably and all or nothing; returns what that changed, or would."""
        ...

    def remove_group(self, name: str) -> None:
        """Forgets a group without members, and its offsets."""
        ...


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Loads the settings of file, environment and flags."""
    from tierlog.service.config.settings import Settings

    return Settings.load(arguments.config, overrides(arguments))


def access_of(arguments: argparse.Namespace) -> ServiceAccess:
    """Returns the credentials for a service: from flags, else from the environment."""
    from tierlog.tiering.remote.endpoint import ServiceAccess

    return ServiceAccess.of(token_file=arguments.token_file, ca_file=arguments.ca_file)


def _store_of(arguments: argparse.Namespace) -> str | None:
    """Returns the store meant in the service's cluster; None for the one that is asked, or whose topic it is."""
    store_id: str | None = getattr(arguments, "store_id", None)
    return store_id


@contextmanager
def open_reader(arguments: argparse.Namespace, *, read_only: bool = False) -> Iterator[Reader]:
    """Opens the target of a command that only looks; a store that does not exist is not made."""
    _one_target(arguments)
    if arguments.url is not None:
        from tierlog.service.cli.remote import RemoteTarget

        with _topic_hints(remote := RemoteTarget(arguments.url, access_of(arguments), _store_of(arguments)), arguments):
            yield remote
        return
    pass

    if arguments.root is not None:
        with (
            _engine(arguments, make=False, read_only=read_only or arguments.read_only) as engine,
            _topic_hints(local := LocalReader(engine), arguments),
        ):
            yield local
    else:
        from tierlog.service.archive.archive import Archive

        check_archive(arguments.cold)
        cold = Archive.open(arguments.cold, settings=settings_of(arguments), store_id=arguments.store_id)
        try:
            with _topic_hints(archive := LocalReader(cold), arguments):
                yield archive
        finally:
            cold.close()


@contextmanager
def open_archives(arguments: argparse.Namespace) -> Iterator[Archive]:
    """Opens the archive that a command names, or that the store in --root remembers; the store is not opened."""
    from tierlog.service.archive.archive import Archive
    from tierlog.tiering.base.fs import LocalFileSystem
    from tierlog.tiering.base.paths import StorePaths
    from tierlog.tiering.hot.identity import StoreIdentity

    cold_url, store_id = arguments.cold, arguments.store_id
    if arguments.root is not None:
        identity = StoreIdentity.read(LocalFileSystem(), StorePaths(arguments.root.absolute()))
        if identity is None:
            raise InvalidRequestError("there is no store in this directory", path=str(arguments.root))
        cold_url, store_id = cold_url or identity.cold_url, store_id or identity.store_id
    if cold_url is None:
        raise InvalidRequestError("no archive", hint="give --cold URL, or --root DIR of a store that has one")
    check_archive(cold_url)
    archives = Archive.open(cold_url, settings=settings_of(arguments), store_id=store_id)
    try:
        yield archives
    finally:
        archives.close()


@contextmanager
def open_store(arguments: argparse.Namespace, *, read_only: bool) -> Iterator[Store]:
    """Opens the store itself, which must be there."""
    with _engine(arguments, make=False, read_only=read_only) as engine:
        yield engine


@contextmanager
def open_writer(arguments: argparse.Namespace, *, make: bool = False, start: bool = False) -> Iterator[Writer]:
    """Opens the target of a command that changes something; ``make`` allows a new store, ``start`` runs its threads."""
    _one_target(arguments, writes=True)
    if arguments.url is not None:
        from tierlog.service.cli.remote import RemoteTarget

        with _topic_hints(remote := RemoteTarget(arguments.url, access_of(arguments), _store_of(arguments)), arguments):
            yield remote
        return
    pass

    with _engine(arguments, make=make, read_only=False) as engine:
        if start:
            engine.start()
        with _topic_hints(local := LocalWriter(engine), arguments):
            yield local


@contextmanager
def open_groups(arguments: argparse.Namespace, *, changes: bool) -> Iterator[Groups]:
    """Opens the target of a command about consumer groups; a store opened here is locked only for a change."""
    _one_target(arguments, writes=True)
    if arguments.url is not None:
        from tierlog.service.cli.remote import RemoteTarget

        yield RemoteTarget(arguments.url, access_of(arguments), _store_of(arguments))
        return
    pass

    with _engine(arguments, make=False, read_only=not changes) as engine:
        yield LocalWriter(engine)


@contextmanager
def _topic_hints(target: Reader, arguments: argparse.Namespace) -> Iterator[None]:
    """Adds the most similar topic name to the error of an unknown topic, if the target has one."""
    try:
        yield
    except TopicNotFoundError as error:
        from tierlog.service.config.suggestions import did_you_mean

        with suppress(StoreError):
            names = [topic["topic"] for topic in target.topics()]
            written = getattr(arguments, "topic", None)
            if written is not None and written not in names:
                error.hint = did_you_mean(written, names) or error.hint
        raise


@contextmanager
def _engine(arguments: argparse.Namespace, *, make: bool, read_only: bool) -> Iterator[Store]:
    root: Path = arguments.root
    settings = settings_of(arguments)
    restore = getattr(arguments, "restore", False)
    if not make and not restore:
        _check_store(root)
    from tierlog.service.engine.store import Store

    engine = Store.open(
        root,
        cold_url=arguments.cold,
        store_id=arguments.store_id,
        read_only=read_only,
        restore=restore,
        settings=settings,
    )
    try:
        yield engine
    finally:
        engine.close()


def _check_store(root: Path) -> None:
    from tierlog.tiering.base.fs import LocalFileSystem
    from tierlog.tiering.base.paths import StorePaths
    from tierlog.tiering.rocketmq.adoption import is_broker_store

    paths = StorePaths(root)
    is_store = root.is_dir() and (paths.store_json.is_file() or is_broker_store(LocalFileSystem(), paths))
    if not is_store:
        raise InvalidRequestError(
            "there is no store in this directory",
            path=str(root),
            hint="`tierlog load` and `tierlog serve` make one",
        )


def check_archive(cold_url: str) -> None:
    """Raises :class:`InvalidRequestError` if an archive's directory is not there: for commands that make none."""
    from tierlog.tiering.objects.urls import canonical_url

    scheme, _, path = canonical_url(cold_url).partition("://")
    if scheme == "file" and not Path(path).is_dir():
        raise InvalidRequestError("there is no such directory", path=path, hint="--cold names the archive's place")


def _one_target(arguments: argparse.Namespace, *, writes: bool = False) -> None:
    """Refuses flags unless they name one of a root (with or without its archive), a service, and an archive alone."""
    places = "--root DIR or --url URL" if writes else "--root DIR, --url URL or --cold URL"
    if arguments.url is not None:
        if arguments.root is not None or arguments.cold is not None or getattr(arguments, "restore", False):
            raise InvalidRequestError("--url stands alone", hint=f"give {places}")
    elif arguments.root is None and (writes or arguments.cold is None):
        raise InvalidRequestError("no target", hint=f"give {places}")


class LocalReader:
    """An engine in this process."""

    def __init__(self, engine: StoreReader) -> None:
        self._reading = engine

    def query(self, query: Query) -> Json:
        """Returns a page of results."""
        return answer_json(self._reading.query(query))

    def follow(self, query: Query, most_rows: int | None) -> FollowedQuery:
        """Returns a query that is followed to its end."""
        from tierlog.service.wire.paged_query import PagedQuery

        return PagedQuery(lambda page, size: self._reading.query(page, page_bytes=size), query, _PAGE_BYTES, most_rows)

    def counts(self, query: CountQuery) -> Json:
        """Returns messages per interval of time."""
        return self._reading.counts(query).to_json()

    def message(self, message_id: str) -> Json:
        """Returns one message."""
        return whole_message_json(self._reading.message(message_id))

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, *, wait_ms: int = 0, tag: str | None = None,
        backward: bool = False,
    ) -> Json:  # fmt: skip
        """Reads messages of a queue in order, or backwards."""
        return pull_json(self._reading.pull(topic, queue_id, offset, limit, tag, backward=backward))

    def offset_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Returns the first offset at or after a time."""
        return self._reading.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)

    def topics(self) -> list[Json]:
        """Returns topics with their queues."""
        return [topic_json(topic) for topic in self._reading.topics()]

    def topic(self, name: str) -> Json:
        """Returns one topic with its queues."""
        return topic_json(self._reading.topic(name))

    def files(self) -> list[Json]:
        """Returns segments and index files."""
        return [file_json(file) for file in self._reading.files()]

    def stats(self) -> Json:
        """Returns sizes and lags."""
        return dict(self._reading.stats())

    def check(self, *, deep: bool, progress: Progress | None) -> Json:
        """Returns findings and notes."""
        return self._reading.check_report(deep=deep, progress=progress).to_json()


class LocalWriter(LocalReader):
    """A store opened for writing in this process."""

    def __init__(self, engine: Store) -> None:
        super().__init__(engine)
        self._engine = engine

    def only_store(self, store_id: str) -> None:
        """Does nothing: there is no other store."""

    def append(self, messages: Sequence[Message], durability: Durability, key: str | None = None) -> int:
        """Appends a batch, once if it has a key; returns the store time of the last message."""
        from tierlog.service.engine.appends import IdempotencyKey

        appended = self._engine.append(messages, durability, None if key is None else IdempotencyKey.parse(key))
        return int(appended.store_ms[-1])

    def home_of(self, topic: str) -> str:
        """Returns the id of this store."""
        return self._engine.store_id

    def queues_of(self, topic: str) -> int | None:
        """Returns the number of queues of a topic."""
        try:
            return len(self._engine.topic(topic).queues)
        except TopicNotFoundError:
            return None

    def create_topic(self, name: str, queues: int) -> None:
        """Makes a topic or gives it more queues."""
        self._engine.create_topic(name, queues)

    def archive(self, *, until_ms: int | None, everything: bool, drop_hot: bool, progress: Progress | None) -> Json:
        """Archives now."""
        report = self._engine.archive(until_ms=until_ms, everything=everything, drop_hot=drop_hot, progress=progress)
        return report_json(report)

    def flush(self) -> None:
        """Makes everything durable now."""
        self._engine.flush()

    def committed_offsets(self, group: str) -> dict[Queue, int]:
        """Returns the offsets that a consumer group has committed."""
        return dict(self._engine.groups.committed(group).offsets)

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commits for a group without members."""
        self._engine.groups.commit(group, offsets)

    def groups(self) -> list[Json]:
        """Returns every group in numbers."""
        return [asdict(group) for group in self._engine.groups.all()]

    def group(self, name: str) -> Json:
        """Returns one group with its members and queues."""
        return group_json(self._engine.groups.describe(name))

    def reset_group(self, name: str, to: ResetTo, queues: ResetQueues, *, dry_run: bool) -> list[Json]:
        """Moves a group, or says what that would change."""
        return [asdict(change) for change in self._engine.groups.reset(name, to, queues, dry_run=dry_run)]

    def remove_group(self, name: str) -> None:
        """Forgets a group."""
        self._engine.groups.remove(name)

    def erase(self, query: Query, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Erases what the query matches."""
        return self._engine.removal.erase(query, dry_run=dry_run, wait=wait, progress=progress)

    def delete_topic(self, topic: str, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Deletes a topic."""
        return self._engine.removal.delete_topic(topic, dry_run=dry_run, wait=wait, progress=progress)

    def hold(self, topic: str, *, hold: bool) -> None:
        """Puts a topic on hold, or ends that."""
        self._engine.removal.configure(topic, hold=hold)

    def receipts(self) -> list[Json]:
        """Returns receipts of all erasures."""
        return self._engine.removal.receipts()

    def receipt(self, tombstone_id: str) -> Json:
        """Returns one receipt."""
        return self._engine.removal.receipt(tombstone_id)


class ClusterTarget(Protocol):
    """The interface of a cluster to commands; every change answers with the cluster after it."""

    def cluster(self) -> Json:
        """Returns the stores, and topics that are routed by name."""
        ...

    def topic_home(self, topic: str) -> Json:
        """Returns the store that new messages of a topic go to."""
        ...

    def route_topic(self, topic: str, store_id: str | None) -> Json:
        """Sends new messages of a topic to a store; None leaves them to hashing."""
        ...

    def close_store(self, store_id: str, *, closed: bool) -> Json:
        """Hashes no topics to a store any more, or does so again."""
        ...

    def remove_store(self, store_id: str) -> Json:
        """Takes a store out of the table."""
        ...


def add_cluster_target(parser: argparse.ArgumentParser) -> None:
    """Adds --url and --cold."""
    group = parser.add_argument_group("where")
    group.add_argument("--url", metavar="URL", help="ask a running service, for example http://127.0.0.1:8080")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="with --url: its token; else TIERLOG_TOKEN")
    group.add_argument("--ca-file", type=Path, metavar="FILE", help="with --url: PEM file of who signed for it")
    group.add_argument("--cold", metavar="URL", help="the prefix of the archives: file:///dir or s3://bucket/prefix")
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")


@contextmanager
def open_cluster(arguments: argparse.Namespace) -> Iterator[ClusterTarget]:
    """Opens the target of a command about a cluster."""
    if (arguments.url is None) == (arguments.cold is None):
        raise InvalidRequestError("where is the cluster?", hint="give --url URL of a service, or --cold URL")
    if arguments.url is not None:
        from tierlog.service.cli.remote import RemoteTarget

        yield RemoteTarget(arguments.url, access_of(arguments))
        return
    from tierlog.service.cluster.table import ClusterTableStore
    from tierlog.service.config.settings import Settings
    from tierlog.service.engine.opening import open_archive
    from tierlog.tiering.base.clock import SystemClock
    from tierlog.tiering.base.randomness import SystemRandomness
    from tierlog.tiering.objects.urls import canonical_url

    check_archive(arguments.cold)
    clock = SystemClock()
    objects = open_archive(canonical_url(arguments.cold), Settings.load(arguments.config), clock, make=False)
    try:
        yield _ClusterTableTarget(ClusterTableStore(objects, clock, SystemRandomness()))
    finally:
        objects.close()


class _ClusterTableTarget:
    """The table in the bucket, read and changed without a node."""

    def __init__(self, tables: ClusterTableStore) -> None:
        self._tables = tables

    def cluster(self) -> Json:
        return _cluster_json(self._tables.refresh())

    def topic_home(self, topic: str) -> Json:
        from tierlog.service.cluster.documents import home_in_table
        from tierlog.tiering.message.batch import validate_topic

        return home_in_table(self._tables.refresh(), validate_topic(topic))

    def route_topic(self, topic: str, store_id: str | None) -> Json:
        from tierlog.tiering.message.batch import validate_topic

        validate_topic(topic)
        if store_id is None:
            return self._change(lambda table: table.unroute(topic))
        return self._change(lambda table: table.route(topic, store_id))

    def close_store(self, store_id: str, *, closed: bool) -> Json:
        return self._change(lambda table: table.close(store_id) if closed else table.open(store_id))

    def remove_store(self, store_id: str) -> Json:
        from tierlog.service.cluster.documents import taken_out

        return self._change(taken_out(store_id))

    def _change(self, edit: Callable[[ClusterTable], ClusterTable]) -> Json:
        if not self._tables.refresh().stores:  # none is made here: nodes do that
            raise InvalidRequestError(
                "there is no cluster below this prefix", hint="a node with cluster.address makes one (docs/cluster.md)"
            )
        return _cluster_json(self._tables.change(edit))


def _cluster_json(table: ClusterTable) -> Json:
    from tierlog.service.cluster.documents import table_json

    return table_json(table)
