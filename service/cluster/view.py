"""The view that a process has of its cluster: which stores there are, where each answers, and which one has what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tierlog.tiering.base.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store of a cluster, the URL of its service, and by protocol where clients of RocketMQ reach it."""

    store_id: str
    url: str
    doors: Mapping[str, str] = field(default_factory=dict, hash=False)


class ClusterView(Protocol):
    """The cluster as this process saw it last; it is looked at again in the background. Thread safe.

    None of the methods waits for a network but those for homes of groups: once for each group that has one.
    """

    @property
    def own_store(self) -> str | None:
        """The store of this process; None for a querier."""
        ...

    def stores(self) -> Sequence[StorePlace]:
        """Returns every store that is known, by id; the own one too."""
        ...

    def place_of(self, store_id: str) -> StorePlace:
        """Returns where a store answers; :class:`NotFoundError` for one that is not in the cluster."""
        ...

    def home_of_topic(self, topic: str) -> str:
        """Returns the store that takes new messages of a topic: as the table says, else by rendezvous hashing.

        :class:`UnavailableError` while no store is known.
        """
        ...

    def home_of_group(self, group: str) -> str:
        """Returns the store that keeps a consumer group; decided here, for good, if nobody has decided yet.

        Only for the store that makes a group, once it knows that the caller may. May ask the bucket:
        :class:`UnavailableError` if that does not answer.
        """
        ...

    def known_home_of_group(self, group: str) -> str | None:
        """Returns the home, but decides nothing: None for a group that has none, of which no store has anything.

        May ask the bucket, each time while there is no home: :class:`UnavailableError` if that does not answer.
        """
        ...

    def choice_for_group(self, group: str) -> str:
        """Returns the store that :meth:`home_of_group` would choose for a group that has no home. Decides nothing.

        May ask the bucket: :class:`UnavailableError` if that does not answer.
        """
        ...

    def refresh_soon(self) -> None:
        """Looks again before it is due, because something was not where it should be. Returns at once."""
        ...


def claim_group(cluster: ClusterView, group: str) -> None:
    """Decides that the own store keeps a group; :class:`UnavailableError` if another one does."""
    if cluster.home_of_group(group) != cluster.own_store:
        cluster.refresh_soon()
        raise UnavailableError(
            f"another store has just become the home of group {group!r}", hint="nothing was done; try again in a moment"
        )
