"""How far a running service is with work that answers only at its end."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tiering.errors import StoreError
from tiering.progress import bar

if TYPE_CHECKING:
    from service.cli.targets import Progress, Reader

_INTERVAL_S = 1.0


@contextlib.contextmanager
def archive_progress(target: Reader) -> Iterator[Progress]:
    """A bar of segments that is told by a store opened here, or of bytes by the statistics of a service."""
    from service.cli.remote import RemoteTarget

    if not isinstance(target, RemoteTarget):
        with bar("segments", "archiving") as move:
            yield move
        return
    with bar("bytes", "archiving") as move:
        ended = threading.Event()
        if sys.stderr.isatty():
            threading.Thread(target=_poll, args=(target, move, ended), daemon=True, name="tierlog-progress").start()
        try:
            yield lambda done, of: None
        finally:
            ended.set()


def _poll(target: Reader, move: Callable[[int, int], None], ended: threading.Event) -> None:
    """Show by how much what is not archived yet has shrunk, until told to end or not answered."""
    most = 0
    with contextlib.suppress(StoreError):  # decoration: whoever may not see statistics sees no bar
        while not ended.is_set():
            left = target.stats().get("unarchived_bytes")
            if not isinstance(left, int):
                return
            most = max(most, left)
            move(most - left, most)
            ended.wait(_INTERVAL_S)
