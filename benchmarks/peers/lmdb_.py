"""LMDB: bytes by key in a memory-mapped tree; nothing is flushed, as what is put can be made again."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import lmdb as library

_BATCH = 100_000


class Lmdb:
    def __init__(self, folder: Path, map_bytes: int) -> None:
        self._environment = library.open(
            str(folder), map_size=map_bytes, sync=False, metasync=False, writemap=True, map_async=True, lock=False
        )
        self._reading: library.Transaction | None = None

    def put_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Put pairs, 100,000 a transaction."""
        self._stop_reading()
        pairs = iter(pairs)
        while some := list(itertools.islice(pairs, _BATCH)):
            with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(some)

    def begin_reading(self) -> None:
        """Begin the transaction that reads go through, and give :attr:`get` its method."""
        self._reading = self._environment.begin()
        #: One key's bytes, or None.
        self.get = self._reading.get

    def get_many(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The pairs of the keys that are there, in one call."""
        assert self._reading is not None
        with self._reading.cursor() as cursor:
            found: list[tuple[bytes, bytes]] = cursor.getmulti(keys)
        return found

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.abort()
            self._reading = None

    def close(self) -> None:
        self._stop_reading()
        self._environment.close()


@contextlib.contextmanager
def lmdb(folder: Path, map_bytes: int = 8 << 30) -> Iterator[Lmdb]:
    """A new environment in ``folder``, closed at the end; the map's file takes only what is put."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = Lmdb(folder, map_bytes)
    try:
        yield environment
    finally:
        environment.close()
