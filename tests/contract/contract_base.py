"""What the parts of the contract suite share: the store under test, ways around it, and races."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tierlog.tiering.base.errors import PreconditionFailedError
from tierlog.tiering.objects.object_store import ObjectInfo, ObjectStore

# The smallest part that S3 takes.
PART_BYTES = 5 << 20
THREADS = 8


@dataclass(frozen=True)
class Backend:
    """A store and two ways around it, to the bytes that its server keeps."""

    store: ObjectStore
    raw_set: Callable[[str, bytes], None]
    raw_get: Callable[[str], bytes | None]


def race(count: int, attempt: Callable[[int], ObjectInfo]) -> list[int]:
    """Who won, of ``count`` threads that make their attempts at once; losers must say why."""
    barrier = threading.Barrier(count)

    def run(number: int) -> bool:
        barrier.wait()
        try:
            attempt(number)
        except PreconditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(count) as pool:
        won = list(pool.map(run, range(count)))
    return [number for number, winner in enumerate(won) if winner]


def keys(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, after)]


class StoreUnderTest:
    """Subclass it and give a fixture ``backend``."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[ObjectStore]:
        yield backend.store
        backend.store.close()
