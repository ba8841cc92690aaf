"""Deliveries that a client asked to be kept for it: they stay away from others for as long as it is there.

A delivery that is prolonged gets another handle; the client goes on with the one that it was given. Once the client is
gone, its messages are given back, so that others of the group need not wait. Killed: the messages are delivered again
when their time is over, and what the client says of them then is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from tierlog.service.rocketmq.grpc.calls import DoorParts
from tierlog.service.rocketmq.grpc.clients import GrpcClients
from tierlog.tiering.base.errors import StoreError

_LOG = logging.getLogger("tierlog")
#: How long a message is kept at a time.
KEPT_MS = 60_000
#: Rest of that from which on it is prolonged.
_AHEAD_MS = 20_000
#: Time after which a client has had enough of a message.
MOST_MS = 3 * 3_600_000
#: Messages that are kept at once; others come back when their first time is over.
_MOST = 100_000


@dataclass(slots=True, eq=False)
class _Kept:
    client_id: str
    handle: str
    until_ms: int
    since_ms: int


class Renewals:
    """The deliveries that a door keeps for its clients. Used on the loop."""

    def __init__(self, parts: DoorParts, clients: GrpcClients) -> None:
        self._parts = parts
        self._deliveries = parts.deliveries
        self._clients = clients
        self._by_given: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._by_given)

    def keep(self, client_id: str, handle: str, until_ms: int) -> None:
        """Keeps a delivery from now on."""
        if len(self._by_given) < _MOST:
            self._by_given[handle] = _Kept(client_id, handle, until_ms, self._parts.clock.now_ms())

    def take(self, handle: str) -> str:
        """Returns the handle that is good now for the one that the client was given, and keeps it no longer."""
        kept = self._by_given.pop(handle, None)
        return handle if kept is None else kept.handle

    async def look(self) -> None:
        """Prolongs what is due, and gives back what belonged to clients that are gone."""
        now_ms = self._parts.clock.now_ms()
        for given, kept in list(self._by_given.items()):
            is_there = self._clients.is_there(kept.client_id)
            if not is_there or now_ms - kept.since_ms > MOST_MS:
                self._by_given.pop(given, None)
                if not is_there:
                    await self._try(partial(self._deliveries.extend, kept.handle, 0))
            elif kept.until_ms - now_ms < _AHEAD_MS:
                handle = await self._try(partial(self._deliveries.extend, kept.handle, KEPT_MS))
                if handle is None:
                    self._by_given.pop(given, None)
                else:
                    kept.handle, kept.until_ms = handle, now_ms + KEPT_MS

    async def _try(self, change: partial[str]) -> str | None:
        try:
            return await self._parts.lanes.change.run(change)
        except StoreError as error:  # it is over, or done meanwhile, or the store does not take it
            _LOG.debug("a delivery is kept no longer: %s", error)
            return None
