"""Where built tools of the tests are kept between runs, outside of the checkout."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ToolMissingError(Exception):
    """A program that only the machine's owner can install is not there."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/tierlog-test-tools``, below ``~/.cache`` unless set; it may not exist yet."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given else Path.home() / ".cache") / "tierlog-test-tools"


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until nobody else holds the lock file, and hold it; the system lets go of it if the holder dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
