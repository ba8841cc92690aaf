"""RocksDB through rocksdict: bytes by key, set up for point look-ups.

What is put can be made again from elsewhere, as an index can, so its write-ahead log is off; it has a Bloom filter, a
block cache that holds what a benchmark looks up, and no compression, which random bytes would not repay.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

_BATCH = 10_000


class RocksDb:
    def __init__(self, folder: Path, cache_bytes: int = 2 << 30) -> None:
        table = BlockBasedOptions()
        table.set_bloom_filter(10.0, False)
        table.set_block_cache(Cache(cache_bytes))
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(DBCompressionType.none())
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(64 << 20)
        options.set_max_write_buffer_number(4)
        options.increase_parallelism(2)
        self._db = Rdict(str(folder), options)
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True
        #: One key's bytes, or None.
        self.get = self._db.get

    def put_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Put pairs, 10,000 a write; in memory tables or files at return."""
        pairs = iter(pairs)
        while some := list(itertools.islice(pairs, _BATCH)):
            batch = WriteBatch(raw_mode=True)
            put = batch.put
            for key, value in some:
                put(key, value)
            self._db.write(batch, self._unlogged)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The bytes of each key, in one call."""
        found: list[bytes | None] = self._db.get(keys)
        return found

    def settle(self) -> None:
        """Write what is in memory and compact everything, as after a while without puts: the best state to read."""
        self._db.flush()
        self._db.compact_range(None, None)

    def close(self) -> None:
        self._db.close()


@contextlib.contextmanager
def rocksdb(folder: Path) -> Iterator[RocksDb]:
    """A new database in ``folder``, closed at the end."""
    database = RocksDb(folder)
    try:
        yield database
    finally:
        database.close()
