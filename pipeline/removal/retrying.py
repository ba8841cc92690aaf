"""Takes a step again when somebody else was faster: archives, merges, erases or expires beside a job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from tiering.clock import Clock
from tiering.cold.manifest_store import ManifestStore
from tiering.errors import ConflictError

_TRIES = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
T = TypeVar("T")


def retried(
    manifest: ManifestStore, clock: Clock, step: Callable[[], T], final: tuple[type[ConflictError], ...] = ()
) -> T:
    """What a step comes to that plans from the newest head each time; pauses grow between tries.

    Raises :class:`ConflictError` if it keeps failing, and what is ``final`` at once.
    """
    backoff = manifest.backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)
    for _ in range(_TRIES):
        try:
            return step()
        except final:
            raise
        except ConflictError as error:
            refused = error
            backoff.failed()
            clock.wait(threading.Event(), backoff.left_s)
    raise refused
