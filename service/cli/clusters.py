"""Where commands about a cluster work: a running service, or the archive's prefix alone, which needs no node."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from service.wire import Json
from tiering.errors import InvalidRequestError

if TYPE_CHECKING:
    from tiering.cluster.table import ClusterTable
    from tiering.cluster.table_store import ClusterTableStore


class ClusterTarget(Protocol):
    """What commands may ask and change; every change answers with the cluster after it."""

    def cluster(self) -> Json:
        """The stores, and topics that are routed by name."""
        ...

    def topic_home(self, topic: str) -> Json:
        """Where new messages of a topic go."""
        ...

    def route_topic(self, topic: str, store_id: str | None) -> Json:
        """Send new messages of a topic to a store; None leaves them to hashing."""
        ...

    def close_store(self, store_id: str, *, closed: bool) -> Json:
        """Hash no topics to a store any more, or do so again."""
        ...

    def remove_store(self, store_id: str) -> Json:
        """Take a store out of the table."""
        ...


def add_cluster_target(parser: argparse.ArgumentParser) -> None:
    """--url and --cold."""
    group = parser.add_argument_group("where")
    group.add_argument("--url", metavar="URL", help="ask a running service, for example http://127.0.0.1:8080")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="with --url: its token; else TIERLOG_TOKEN")
    group.add_argument("--ca-file", type=Path, metavar="FILE", help="with --url: PEM file of who signed for it")
    group.add_argument("--cold", metavar="URL", help="the prefix of the archives: file:///dir or s3://bucket/prefix")
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")


@contextmanager
def open_cluster(arguments: argparse.Namespace) -> Iterator[ClusterTarget]:
    """The target of a command about a cluster."""
    if (arguments.url is None) == (arguments.cold is None):
        raise InvalidRequestError("where is the cluster?", hint="give --url URL of a service, or --cold URL")
    if arguments.url is not None:
        from service.cli.remote import RemoteTarget
        from service.cli.targets import access_of

        yield RemoteTarget(arguments.url, access_of(arguments))
        return
    from service.cli.targets import check_archive
    from service.opening import open_archive
    from service.settings import Settings
    from tiering.clock import SystemClock
    from tiering.cluster.table_store import ClusterTableStore
    from tiering.cold.urls import canonical_url
    from tiering.randomness import SystemRandomness

    check_archive(arguments.cold)
    clock = SystemClock()
    objects = open_archive(canonical_url(arguments.cold), Settings.load(arguments.config), clock, make=False)
    try:
        yield _TableTarget(ClusterTableStore(objects, clock, SystemRandomness()))
    finally:
        objects.close()


class _TableTarget:
    """The table in the bucket, read and changed without a node."""

    def __init__(self, tables: ClusterTableStore) -> None:
        self._tables = tables

    def cluster(self) -> Json:
        return _json(self._tables.refresh())

    def topic_home(self, topic: str) -> Json:
        from service.cluster.describing import home_in_table
        from tiering.batch import validate_topic

        return home_in_table(self._tables.refresh(), validate_topic(topic))

    def route_topic(self, topic: str, store_id: str | None) -> Json:
        from tiering.batch import validate_topic

        validate_topic(topic)
        if store_id is None:
            return self._change(lambda table: table.unroute(topic))
        return self._change(lambda table: table.route(topic, store_id))

    def close_store(self, store_id: str, *, closed: bool) -> Json:
        return self._change(lambda table: table.close(store_id) if closed else table.open(store_id))

    def remove_store(self, store_id: str) -> Json:
        from service.cluster.describing import taken_out

        return self._change(taken_out(store_id))

    def _change(self, edit: Callable[[ClusterTable], ClusterTable]) -> Json:
        if not self._tables.refresh().stores:  # none is made here: nodes do that
            raise InvalidRequestError(
                "there is no cluster below this prefix", hint="a node with cluster.address makes one (docs/cluster.md)"
            )
        return _json(self._tables.change(edit))


def _json(table: ClusterTable) -> Json:
    from service.cluster.describing import table_json

    return table_json(table)
