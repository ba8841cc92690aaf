"""Where a command works: a store opened here, an archive read directly, or a running service. All answer as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from service.cli.arguments import overrides
from service.wire import Json
from tiering.errors import InvalidRequestError, StoreError, TopicNotFoundError

if TYPE_CHECKING:
    from index.query import Query
    from service.cold_engine import ColdEngine
    from service.engine import Engine
    from service.settings import Settings
    from tiering.batch import Message
    from tiering.group_offsets import Queue
    from tiering.service_access import ServiceAccess
    from tiering.types import Durability

Progress = Callable[[int, int], None]


class Reader(Protocol):
    """What commands that look may ask."""

    def query(self, query: Query) -> Json:
        """A page of results."""
        ...

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, *, wait_ms: int = 0, tag: str | None = None
    ) -> Json:
        """Messages of a queue in order, with ``tag`` those it lets through; only a running service waits."""
        ...

    def offset_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The offset of a queue's first message stored at or after a time, its end if there is none."""
        ...

    def topics(self) -> list[Json]:
        """Topics with their queues."""
        ...

    def files(self) -> list[Json]:
        """Segments and index files."""
        ...

    def stats(self) -> Json:
        """Sizes and lags."""
        ...

    def check(self, *, deep: bool, progress: Progress | None) -> Json:
        """Findings and notes; only what is opened here tells its progress."""
        ...


class Writer(Reader, Protocol):
    """What commands that change something may ask."""

    def only_store(self, store_id: str) -> None:
        """From now on ask this store, whichever is the home of a topic's new messages."""
        ...

    def append(self, messages: Sequence[Message], durability: Durability) -> None:
        """Append a batch and return when it is as durable as asked for."""
        ...

    def queues_of(self, topic: str) -> int | None:
        """How many queues a topic has, None if there is no such topic."""
        ...

    def create_topic(self, name: str, queues: int) -> None:
        """Make a topic or give it more queues."""
        ...

    def archive(self, *, until_ms: int | None, everything: bool, drop_hot: bool, progress: Progress | None) -> Json:
        """Archive now; only a store opened here tells its progress."""
        ...

    def flush(self) -> None:
        """Make durable now."""
        ...

    def committed_offsets(self, group: str) -> dict[Queue, int]:
        """Where a consumer group is; :class:`NotFoundError` for an unknown one."""
        ...

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commit, durably, for a group without members."""
        ...

    def erase(self, query: Query, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Erase what the query matches; the receipt."""
        ...

    def delete_topic(self, topic: str, *, dry_run: bool, wait: bool, progress: Progress | None) -> Json:
        """Delete a topic with all its messages; where its queues ended, and the receipt."""
        ...

    def hold(self, topic: str, *, hold: bool) -> None:
        """Put a topic on hold, or end that."""
        ...

    def receipts(self) -> list[Json]:
        """Receipts of all erasures."""
        ...

    def receipt(self, tombstone_id: str) -> Json:
        """The receipt of one."""
        ...


def settings_of(arguments: argparse.Namespace) -> Settings:
    """File, environment and flags."""
    from service.settings import Settings

    return Settings.load(arguments.config, overrides(arguments))


def access_of(arguments: argparse.Namespace) -> ServiceAccess:
    """What is brought to a service: flags, else the environment."""
    from tiering.service_access import ServiceAccess

    return ServiceAccess.of(token_file=arguments.token_file, ca_file=arguments.ca_file)


def _store_of(arguments: argparse.Namespace) -> str | None:
    """Which store of the service's cluster; None for the one that is asked, or whose topic it is."""
    store_id: str | None = getattr(arguments, "store_id", None)
    return store_id


@contextmanager
def open_reader(arguments: argparse.Namespace, *, read_only: bool = False) -> Iterator[Reader]:
    """The target of a command that only looks; a store that does not exist is not made."""
    _one_target(arguments)
    if arguments.url is not None:
        from service.cli.remote import RemoteTarget

        with _topic_hints(remote := RemoteTarget(arguments.url, access_of(arguments), _store_of(arguments)), arguments):
            yield remote
        return
    from service.cli.local import LocalReader

    if arguments.root is not None:
        with (
            _engine(arguments, make=False, read_only=read_only or arguments.read_only) as engine,
            _topic_hints(local := LocalReader(engine), arguments),
        ):
            yield local
    else:
        from service.cold_engine import ColdEngine

        check_archive(arguments.cold)
        cold = ColdEngine.open(arguments.cold, settings=settings_of(arguments), store_id=arguments.store_id)
        try:
            with _topic_hints(archive := LocalReader(cold), arguments):
                yield archive
        finally:
            cold.close()


@contextmanager
def open_archives(arguments: argparse.Namespace) -> Iterator[ColdEngine]:
    """The archive that a command names, or that the store in --root remembers; the store is not opened."""
    from service.cold_engine import ColdEngine
    from tiering.fs import LocalFileSystem
    from tiering.hot.identity import StoreIdentity
    from tiering.paths import StorePaths

    cold_url, store_id = arguments.cold, arguments.store_id
    if arguments.root is not None:
        identity = StoreIdentity.read(LocalFileSystem(), StorePaths(arguments.root.absolute()))
        if identity is None:
            raise InvalidRequestError("there is no store in this directory", path=str(arguments.root))
        cold_url, store_id = cold_url or identity.cold_url, store_id or identity.store_id
    if cold_url is None:
        raise InvalidRequestError("no archive", hint="give --cold URL, or --root DIR of a store that has one")
    check_archive(cold_url)
    archives = ColdEngine.open(cold_url, settings=settings_of(arguments), store_id=store_id)
    try:
        yield archives
    finally:
        archives.close()


@contextmanager
def open_repairable(arguments: argparse.Namespace, *, read_only: bool) -> Iterator[Engine | ColdEngine]:
    """What ``repair`` works on: a store opened here, or an archive alone."""
    if arguments.root is not None:
        with _engine(arguments, make=False, read_only=read_only) as engine:
            yield engine
    else:
        with open_archives(arguments) as archives:
            yield archives


@contextmanager
def open_writer(arguments: argparse.Namespace, *, make: bool = False, start: bool = False) -> Iterator[Writer]:
    """The target of a command that changes something; ``make`` allows a new store, ``start`` runs its threads."""
    _one_target(arguments, writes=True)
    if arguments.url is not None:
        from service.cli.remote import RemoteTarget

        with _topic_hints(remote := RemoteTarget(arguments.url, access_of(arguments), _store_of(arguments)), arguments):
            yield remote
        return
    from service.cli.local import LocalWriter

    with _engine(arguments, make=make, read_only=False) as engine:
        if start:
            engine.start()
        with _topic_hints(local := LocalWriter(engine), arguments):
            yield local


@contextmanager
def _topic_hints(target: Reader, arguments: argparse.Namespace) -> Iterator[None]:
    """An unknown topic is told with the one that was meant, if the target has a like one."""
    try:
        yield
    except TopicNotFoundError as error:
        from service.suggestions import did_you_mean

        with suppress(StoreError):
            names = [topic["topic"] for topic in target.topics()]
            written = getattr(arguments, "topic", None)
            if written is not None and written not in names:
                error.hint = did_you_mean(written, names) or error.hint
        raise


@contextmanager
def _engine(arguments: argparse.Namespace, *, make: bool, read_only: bool) -> Iterator[Engine]:
    root: Path = arguments.root
    settings = settings_of(arguments)
    restore = getattr(arguments, "restore", False)
    if not make and not restore:
        _check_store(root)
    from service.engine import Engine

    engine = Engine.open(
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
    from tiering.fs import LocalFileSystem
    from tiering.paths import StorePaths
    from tiering.rocketmq.adopt import is_broker_store

    paths = StorePaths(root)
    is_store = root.is_dir() and (paths.store_json.is_file() or is_broker_store(LocalFileSystem(), paths))
    if not is_store:
        raise InvalidRequestError(
            "there is no store in this directory",
            path=str(root),
            hint="`tierlog load` and `tierlog serve` make one",
        )


def check_archive(cold_url: str) -> None:
    """Raise :class:`InvalidRequestError` if an archive's directory is not there: for commands that make none."""
    from tiering.cold.urls import canonical_url

    scheme, _, path = canonical_url(cold_url).partition("://")
    if scheme == "file" and not Path(path).is_dir():
        raise InvalidRequestError("there is no such directory", path=path, hint="--cold names the archive's place")


def _one_target(arguments: argparse.Namespace, *, writes: bool = False) -> None:
    """Exactly one of a root (with or without its archive), a service, and an archive alone."""
    places = "--root DIR or --url URL" if writes else "--root DIR, --url URL or --cold URL"
    if arguments.url is not None:
        if arguments.root is not None or arguments.cold is not None or getattr(arguments, "restore", False):
            raise InvalidRequestError("--url stands alone", hint=f"give {places}")
    elif arguments.root is None and (writes or arguments.cold is None):
        raise InvalidRequestError("no target", hint=f"give {places}")
