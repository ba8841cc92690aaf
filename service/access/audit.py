"""The log of admin calls: caller, request, time and outcome of each.

A folder of NDJSON files, ``00000001.ndjson`` and so on, the greatest number the newest. A call has two lines with one
``call`` id: ``begun``, durable before anything is done, and ``ended`` with its outcome. A call that began and never
ended was cut off with the process: whether it was done, the store itself knows.

Crash argument. Power goes before or in the middle of a line: the call was not begun, and readers pass over a last line
that is cut; nothing is ever written behind it, as every start of the process begins a new file. After the line and
before its flush: the same. After the flush, before the act: ``begun`` alone, and nothing was done. After the act:
``begun`` alone, and it was done. The name of a new file is durable before its first line counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import File, FileSystem
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.times import format_time

_LOG = logging.getLogger("tierlog")
_SUFFIX = ".ndjson"
_FILES = 8
#: Minimum size that a file counts as, so that many starts with one call each stay within bounds.
_BLOCK_BYTES = 4096
_MOST_VALUE = 1000


@dataclass(slots=True)
class AuditEntry:
    """An admin call under way; its ``ended`` line has what is put into :attr:`outcome`."""

    outcome: dict[str, object] = field(default_factory=dict)


class AuditLog:
    """Writes the log below ``folder``, at most ``max_bytes`` of it. Thread safe; one process at a time."""

    def __init__(self, fs: FileSystem, folder: Path, clock: Clock, randomness: Randomness, max_bytes: int) -> None:
        """Touches nothing before the first call."""
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._randomness = randomness
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._file: File | None = None
        self._end = 0
        self._number = 0

    @contextlib.contextmanager
    def call(self, who: Mapping[str, object], what: Mapping[str, object], *, must: bool = True) -> Iterator[AuditEntry]:
        """Surrounds one call that was allowed: writes ``begun`` before the context, ``ended`` after it.

        Raises what the disk raises, before the act, if ``begun`` cannot be made durable: what is not on record does
        not happen. Without ``must``, for acts that change nothing, it happens all the same, and an error is logged.
        An ``ended`` that cannot be written is logged too; the act was done.
        """
        call_id, start_s = self._randomness.token_hex(8), self._clock.monotonic_s()
        try:
            self._write({"state": "begun", "call": call_id, **who, **what})
        except StoreError as error:
            if must:
                raise
            _LOG.error("an admin call is not on record: %s", error)
        act = AuditEntry()
        failure: BaseException | None = None
        try:
            yield act
        except BaseException as error:
            failure = error
            raise
        finally:
            took_ms = round((self._clock.monotonic_s() - start_s) * 1000)
            ended: dict[str, object] = {"state": "ended", "call": call_id, "took_ms": took_ms, **act.outcome}
            if failure is not None:
                ended |= {"error": type(failure).__name__, "detail": str(failure)[:_MOST_VALUE]}
            try:
                self._write({**ended, "ok": failure is None})
            except StoreError as error:
                _LOG.error("the end of admin call %s is not on record: %s", call_id, error)

    def close(self) -> None:
        """Closes the file; what was written is durable already. Idempotent."""
        with self._lock:
            self._drop()

    def _write(self, line: Mapping[str, object]) -> None:
        data = json.dumps({"at": format_time(self._clock.now_ms()), **line}, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            try:
                if self._file is None or self._end + len(data) > self._max_bytes // _FILES:
                    self._next_file()
                assert self._file is not None
                self._file.write_at(self._end, data)
                self._file.flush()
                self._end += len(data)
            except StoreError:
                self._drop()  # the file may end in a partial line: go on in another
                raise

    def _next_file(self) -> None:
        self._drop()
        self._fs.make_dirs(self._folder)
        files = self._files()
        self._remove_oldest(files)
        self._number = max([self._number, *files]) + 1
        path = self._path(self._number)
        self._file, self._end = self._fs.open(path), 0
        self._fs.flush_dir(self._folder)

    def _remove_oldest(self, files: dict[int, int]) -> None:
        """Removes the oldest files until another whole file has room."""
        left = sum(files.values()) + self._max_bytes // _FILES
        for number in sorted(files):
            if left <= self._max_bytes:
                return
            self._fs.unlink(self._path(number))
            left -= files[number]

    def _files(self) -> dict[int, int]:
        """Returns the number and size of every file."""
        names = (name.removesuffix(_SUFFIX) for name in self._fs.list_dir(self._folder) if name.endswith(_SUFFIX))
        numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
        return {number: max(self._fs.size(self._path(number)), _BLOCK_BYTES) for number in numbers}

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08}{_SUFFIX}"

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def shortened(value: Any) -> Any:
    """Returns a parameter as it is recorded: long texts are cut, so that a line stays a line."""
    return value[:_MOST_VALUE] + "…" if isinstance(value, str) and len(value) > _MOST_VALUE else value
