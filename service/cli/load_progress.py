"""The record of a load that can be resumed: ``tierlog load --resume FILE``.

The messages of such a load have numbers, from 0, under a producer id of its own, so that what is sent again is appended
once (``docs/producing.md``). The record says how many were acknowledged, and where in its files the load was then; it
is replaced about once a second, and at the end::

    {"format": 1, "producer": "load-…", "load": {"files": ["app.log"], "topic": "app", …}, "store_id": "…",
     "begun_ms": 0, "is_settled": false, "stored_ms": 0, "born_ms": 0, "files": [[lines, digest], …],
     "report": {"messages": 20000, …}, "crc32": 0}

What was sent after it was written is in doubt unless ``is_settled``: it is read and sent again under the same numbers,
which the store remembers for ``produce.window_ms``. If the store's memory does not reach back to what the record says
was acknowledged, nobody can tell, and the load is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tierlog.service.cli.line_loader import Batch, FilePosition, LoadReport
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.randomness import Randomness

_SAVE_S = 1.0


@dataclass(slots=True)
class _Record:
    """The content of the file; the module says what each member means."""

    producer: str
    load: Mapping[str, Any]
    begun_ms: int
    born_ms: int
    store_id: str | None = None
    is_settled: bool = True
    stored_ms: int | None = None
    files: Sequence[FilePosition] = ()
    report: LoadReport = field(default_factory=LoadReport)


class LoadProgress:
    """How far a load has come, kept in a file; for one thread."""

    def __init__(self, fs: FileSystem, path: Path, clock: Clock, record: _Record) -> None:
        """Use :meth:`open`."""
        self._fs, self._path, self._clock, self._record = fs, path, clock, record
        self._saved_s = clock.monotonic_s()
        #: Whether nothing can have been appended that the record does not know.
        self.is_sure = record.is_settled

    @classmethod
    def open(
        cls, fs: FileSystem, path: Path, clock: Clock, randomness: Randomness, load: Mapping[str, Any]
    ) -> LoadProgress:
        """Reads the record, or begins one, of which nothing is written yet.

        Raises :class:`InvalidRequestError` if it is that of another load, :class:`CorruptionError` if it is damaged.
        """
        path = path.absolute()
        found = _FILE.read(fs, path)
        if found is None:
            now_ms = clock.now_ms()
            fresh = _Record(f"load-{randomness.token_hex(16)}", load, now_ms, now_ms)
            return cls(fs, path, clock, fresh)
        other = [name for name in load if found.load.get(name) != load[name]]
        if other:
            raise InvalidRequestError(
                f"another load is recorded in {path}: {other[0]} was {found.load.get(other[0])!r}",
                hint="resume with the command that began it, or record this load in another file",
            )
        return cls(fs, path, clock, found)

    @property
    def files(self) -> Sequence[FilePosition]:
        """Where to go on in each file."""
        return self._record.files

    @property
    def report(self) -> LoadReport:
        """What earlier runs counted, and this one adds to."""
        return self._record.report

    @property
    def store_id(self) -> str | None:
        """The store that has what was acknowledged, None before anything was sent."""
        return self._record.store_id

    @property
    def born_ms(self) -> int:
        """The time of a line that has none, before the first that has one."""
        return self._record.born_ms

    @property
    def key(self) -> str:
        """The ``Idempotency-Key`` of the next batch."""
        return f"{self._record.producer}:{self._record.report.messages}"

    def begin(self, store_id: str, *, window_from_ms: int | None, window_ms: int) -> None:
        """Notes, durably, that from now on messages may have been appended which the record does not know.

        ``window_from_ms`` is since when the store remembers what was sent, ``window_ms`` for how long it does. Raises
        :class:`ConflictError` if it does not remember what an earlier run may have sent, or is another store.
        """
        record = self._record
        if record.store_id not in (None, store_id):
            raise ConflictError(
                f"the load recorded in {self._path} went to store {record.store_id!r}, not {store_id!r}",
                hint="record this load in another file",
            )
        if not self.is_sure:
            if record.stored_ms is None:
                is_known = self._clock.now_ms() - record.begun_ms < window_ms
            else:
                is_known = window_from_ms is not None and window_from_ms <= record.stored_ms
            if not is_known:
                raise ConflictError(
                    f"the store has forgotten what it was sent behind the {record.report.messages} recorded messages",
                    path=str(self._path),
                    hint="look at the topic's newest messages, and load the lines behind them into it without --resume",
                )
        record.store_id = store_id
        record.is_settled = False
        self.save()

    def acknowledged(self, batch: Batch, stored_ms: int | None) -> None:
        """Goes on behind a batch that the report has; ``stored_ms`` is the store time of what was stored last."""
        record = self._record
        record.stored_ms = record.stored_ms if stored_ms is None else stored_ms
        record.files = batch.files
        record.born_ms = record.born_ms if batch.born_ms is None else batch.born_ms
        if self._clock.monotonic_s() - self._saved_s >= _SAVE_S:
            self.save()

    def end(self, *, is_settled: bool, is_complete: bool) -> None:
        """Writes the record at the end of a run, unless the load never began.

        ``is_settled`` if all that was sent was taken or refused, ``is_complete`` if all files were sent: before that,
        an earlier run may have come further than this one.
        """
        if self._record.store_id is not None:
            self._record.is_settled = is_settled and (is_complete or self.is_sure)
            self.save()

    def save(self) -> None:
        """Replaces the file, durably."""
        _FILE.replace(self._fs, self._path, self._record, self._path.parent)
        self._saved_s = self._clock.monotonic_s()


def _decode(document: Any) -> _Record:
    report = dict(document["report"])
    counted = {each.name: report[each.name] for each in fields(LoadReport)} | {"matched": set(report["matched"])}
    members = {each.name: document[each.name] for each in fields(_Record)}
    return _Record(
        **members
        | {
            "files": tuple(FilePosition(int(lines), str(digest)) for lines, digest in document["files"]),
            "report": LoadReport(**counted),
        }
    )


def _encode(record: _Record) -> Mapping[str, object]:
    report = asdict(record.report) | {"matched": sorted(record.report.matched)}
    members = {each.name: getattr(record, each.name) for each in fields(_Record)}
    return members | {"files": [[each.lines, each.digest] for each in record.files], "report": report}


_FILE = JsonFile(_decode, _encode)
