"""One budget of bytes for the bodies of all requests that are in memory at once."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from tiering.errors import OverloadedError


@dataclass(slots=True, eq=False)
class Share:
    """What one request holds of the budget; given back at the end of its context."""

    memory: BodyMemory
    held_bytes: int = 0

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *raised: object) -> None:
        self.memory.give_back(self)


class BodyMemory:
    """Gives room in the order in which it was asked for. Used on the event loop only."""

    def __init__(self, total_bytes: int, wait_ms: int) -> None:
        self._total, self._wait_s = total_bytes, wait_ms / 1000
        self._waiting: deque[tuple[Share, int, asyncio.Future[None]]] = deque()
        #: Bytes that are held now.
        self.used_bytes = 0

    def share(self) -> Share:
        """A share, of nothing as yet, for a context."""
        return Share(self)

    def give_back(self, share: Share) -> None:
        """Take all that a share holds; who waits for room gets it."""
        self.used_bytes -= share.held_bytes
        share.held_bytes = 0
        self._serve()

    def keep(self, share: Share, size_bytes: int) -> None:
        """Give back what a share holds beyond so much."""
        if share.held_bytes > size_bytes:
            self.used_bytes -= share.held_bytes - size_bytes
            share.held_bytes = size_bytes
            self._serve()

    async def take(self, share: Share, size_bytes: int) -> None:
        """More for a share, at once or after a wait; :class:`OverloadedError` if that takes too long.

        A share that is the only one gets whatever it wants: it is bounded by the size of a request.
        """
        if not self._waiting and self._fits(share, size_bytes):
            self._give(share, size_bytes)
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (share, size_bytes, given)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(self._wait_s):
                await asyncio.shield(given)
        except TimeoutError as error:
            if not given.done():  # it may have come at the last moment
                raise OverloadedError(
                    f"there is no room for {size_bytes} bytes of a request body",
                    hint="try again in a moment; serve.body_memory_bytes is the limit",
                ) from error
        finally:
            if not given.done():
                self._waiting.remove(waiting)
                self._serve()

    def _fits(self, share: Share, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self._total or self.used_bytes == share.held_bytes

    def _give(self, share: Share, size_bytes: int) -> None:
        share.held_bytes += size_bytes
        self.used_bytes += size_bytes

    def _serve(self) -> None:
        while self._waiting and self._fits(*self._waiting[0][:2]):
            share, size_bytes, given = self._waiting.popleft()
            self._give(share, size_bytes)
            given.set_result(None)
