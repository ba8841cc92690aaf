"""How one open store becomes a node of a cluster."""

from __future__ import annotations

from pathlib import Path

from service.cluster.table_view import OwnNode, TableView
from service.engine import Engine
from service.settings import Settings
from tiering.clock import Clock, SystemClock
from tiering.errors import InvalidRequestError
from tiering.fs import LocalFileSystem
from tiering.hot.identity import StoreIdentity
from tiering.paths import StorePaths
from tiering.randomness import Randomness, SystemRandomness


def check_membership(settings: Settings, root: Path, cold_url: str | None) -> None:
    """Raise :class:`InvalidRequestError` if ``cluster.address`` is set for a store that cannot be in a cluster.

    Asked before anything is opened or made.
    """
    if settings.cluster.address is None:
        return
    if cold_url is None:
        identity = StoreIdentity.read(LocalFileSystem(), StorePaths(root.absolute()))
        cold_url = identity.cold_url if identity is not None else None
    if cold_url is None:
        raise InvalidRequestError(
            "cluster.address is set, but the store has no cold tier: the stores of a cluster find each other there",
            hint="name the archive with --cold URL, or leave cluster.address out",
        )
    if settings.cold.single_writer:
        raise InvalidRequestError(
            "cluster.address is set together with cold.single_writer: a cluster has many writers",
            hint="it needs a bucket with conditional writes (docs/object_stores.md)",
        )


def join_cluster(
    engine: Engine, settings: Settings, clock: Clock | None = None, randomness: Randomness | None = None
) -> TableView | None:
    """The view of a store that is a node, not started; None for a store that is alone."""
    address, objects = settings.cluster.address, engine.archive_objects
    if address is None or objects is None:
        return None
    own = OwnNode(engine.store_id, address, engine.volume_id, engine.own_epoch, engine.groups.all_committed)
    return TableView(
        objects, clock or SystemClock(), randomness or SystemRandomness(),
        refresh_ms=settings.cluster.refresh_ms, own=own, max_groups=settings.cluster.max_groups,
    )  # fmt: skip
