"""SQLite: bytes by key in a table that is its own index; no journal and no flush, as what is put can be made again."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


class Sqlite:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = off", "synchronous = off", "mmap_size = 4294967296", "cache_size = -1048576"):
            self._connection.execute(f"pragma {pragma}")
        self._connection.execute("create table record (key blob primary key, value blob) without rowid")

    def put_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Put pairs in one transaction."""
        self._connection.execute("begin")
        self._connection.executemany("insert or replace into record values (?, ?)", pairs)
        self._connection.execute("commit")

    def get(self, key: bytes) -> bytes | None:
        """One key's bytes, or None."""
        row = self._connection.execute("select value from record where key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def get_many(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The pairs of the keys that are there, in one statement."""
        marks = ",".join("?" * len(keys))
        return self._connection.execute(f"select key, value from record where key in ({marks})", keys).fetchall()

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Sqlite]:
    """A new database in ``folder``, closed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    database = Sqlite(folder / "records.sqlite")
    try:
        yield database
    finally:
        database.close()
