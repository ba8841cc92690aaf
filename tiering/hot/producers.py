"""Which messages of which producer are in the log, so that a request sent again appends nothing twice.

A producer numbers its messages of a topic; the number and the producer's id are in each record (the properties
``TL_SEQ`` and ``TL_PID``), so what is known here is derived from the log. It reaches back ``window_ms``, and to the
newest ``window_requests`` requests: what is older counts as never seen. A volume restored from its archive begins with
nothing known.

``tierlog/producers.json`` says what lies below a position, so that opening scans from there only::

    {"format": 1, "position": 8192, "producers": [
        {"topic": "t", "producer": "p", "runs": [[first, end, physical, physical_end, store_ms]]}]}

A run are sequences ``[first, end)`` in the records of ``[physical, physical_end)`` of one segment, back to back. The
file is made before the first record that it is about: killed after that, opening finds the records by a scan from the
position in it. A store without the file never had any, and scans nothing. It is written again every 30 s of use, at a
clean stop, and before segments go, since below the border nothing can be scanned. Killed at any time: the one before
stands, and the scan is longer. Unreadable: all that is hot is scanned.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import CorruptionError, RequestUnderWayError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.options import HotOptions
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.properties import PRODUCER, SEQUENCE
from tierlog.tiering.format.record import decode_record
from tierlog.tiering.hot.dispatch import LogRange

_LOG = logging.getLogger("tierlog")
_FORMAT = 1
_SAVE_S = 30.0
_FAR = 1 << 62
_MARK = f"{PRODUCER}\x01".encode()
#: A scan looks through so many records' bytes at once.
_STEP_RECORDS = 4096
#: What a scan puts into one run, so that finding a message in it stays quick.
_LONGEST_RUN = 1024

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True, order=True)
class SequenceRun:
    """Sequences ``[first, end)`` of one producer, back to back in the records of ``[physical, physical_end)``."""

    first: int
    end: int
    physical: int
    physical_end: int
    store_ms: int


@dataclass(frozen=True, slots=True)
class ProducerSequences:
    """The sender of a batch: a producer of one topic, and the sequence of each message, rising."""

    topic: str
    producer: str
    sequences: NDArray[np.int64]


class ProducerWindow:
    """The known sequences of producers.

    Thread safe; a :class:`LogSubscriber` while the store recovers, and only then.
    """

    def __init__(self, fs: FileSystem, paths: StorePaths, clock: Clock, options: HotOptions) -> None:
        """Reads what is there."""
        self._fs, self._paths, self._clock = fs, paths, clock
        #: How long sequences are known, in ms of store time.
        self.window_ms, self._window_requests = options.producer_window_ms, options.producer_window_requests
        self._lock = threading.Lock()
        self._save_lock = threading.Lock()
        self._runs: dict[_Key, list[SequenceRun]] = {}
        self._order: deque[tuple[_Key, SequenceRun]] = deque()
        self._longest = 1
        """No run has had more sequences, so that those with a sequence are found without looking at all."""
        self._under_way: dict[_Key, list[tuple[int, int]]] = {}
        self._pending = _FAR
        self._position = self._saved = 0
        self._saved_s = clock.monotonic_s()
        self._is_live = False
        #: Whether the store ever had a producer that numbers its messages, so that recovery has to look for them.
        self.is_in_use = fs.exists(paths.producers_json)
        if self.is_in_use:
            try:
                self._load(_FILE.read(fs, paths.producers_json))
            except CorruptionError:
                _LOG.exception("what is known of producers cannot be read; the log is scanned for it")

    # recovery

    def next_offset(self) -> int:
        """Returns where the scan goes on; nothing is left to it once the store has recovered."""
        return _FAR if self._is_live else self._position

    def on_records(self, records: LogRange) -> None:
        """Learns the producers of a range."""
        rows = records.rows[records.rows["physical_offset"] >= self._position]
        for start in range(0, len(rows), _STEP_RECORDS):
            self._scan(records, rows[start : start + _STEP_RECORDS])
        self._position = records.end

    def _scan(self, records: LogRange, rows: NDArray[np.void]) -> None:
        begin, end = int(rows[0]["position"]), int(rows[-1]["position"]) + int(rows[-1]["size"])
        data = records.data[begin:end].tobytes()
        at = data.find(_MARK)
        while at >= 0:
            row = rows[np.searchsorted(rows["position"], begin + at, side="right") - 1]
            start = int(row["position"])
            record = decode_record(records.data.data, start, verify=False)
            producer, number = record.properties.get(PRODUCER), record.properties.get(SEQUENCE, "")
            if producer and number.isascii() and number.isdigit():  # else only a body says so
                self._found((record.topic, producer), int(number), record.physical_offset, record.size, record.store_ms)
            at = data.find(_MARK, start + record.size - begin)

    def _found(self, key: _Key, sequence: int, physical: int, size: int, store_ms: int) -> None:
        with self._lock:
            last = self._order[-1] if self._order else None
            if (
                last is not None
                and last[0] == key
                and (last[1].end, last[1].physical_end, last[1].store_ms) == (sequence, physical, store_ms)
                and last[1].end - last[1].first < _LONGEST_RUN
            ):
                self._order.pop()
                self._runs[key].remove(last[1])
                run = SequenceRun(last[1].first, sequence + 1, last[1].physical, physical + size, store_ms)
            else:
                run = SequenceRun(sequence, sequence + 1, physical, physical + size, store_ms)
            self._add(key, run)

    def recovered(self, end: int) -> None:
        """Notes that recovery ended the log at ``end``; from now on :meth:`register` adds what is new."""
        with self._lock:
            lost = [(key, run) for key, run in self._order if run.physical_end > end]
            for key, run in lost:
                self._order.remove((key, run))
                self._forget(key, run)
            self._is_live = True
        if self._saved > end:  # the disk forgot what it had flushed, and new records come below the file's position
            self._save(end)

    # appending

    @contextlib.contextmanager
    def claim(self, topic: str, producer: str, first: int, end: int) -> Iterator[None]:
        """Makes the caller the only one to append these sequences.

        :class:`RequestUnderWayError` if somebody is at it.
        """
        key, mine = (topic, producer), (first, end)
        with self._lock:
            others = self._under_way.setdefault(key, [])
            if any(first < other_end and other_first < end for other_first, other_end in others):
                name = producer.rpartition("/")[2]  # without whose it is
                raise RequestUnderWayError(
                    f"messages {first} to {end - 1} of producer {name!r} are being appended by another request",
                    hint="send this one again in a moment",
                )
            others.append(mine)
        try:
            yield
        finally:
            with self._lock:
                others.remove(mine)
                if not others:
                    self._under_way.pop(key, None)

    def known(self, topic: str, producer: str, first: int, end: int) -> list[SequenceRun]:
        """Returns the runs that have any of the sequences ``[first, end)``, in their order."""
        with self._lock:
            self._trim()
            runs = self._runs.get((topic, producer), [])
            low = bisect_left(runs, first - self._longest + 1, key=lambda run: run.first)
            high = bisect_left(runs, end, lo=low, key=lambda run: run.first)
            return [run for run in runs[low:high] if first < run.end]

    def begin(self, log_end: int, flushed: int) -> None:
        """Announces records at or above ``log_end``; durable if they are the first ever."""
        with self._lock:
            self._pending = log_end
        if not self.is_in_use:
            self._save(flushed)
            self.is_in_use = True

    def register(self, origin: ProducerSequences, physical: NDArray[np.int64], sizes: ArrayLike, store_ms: int) -> None:
        """Adds the records that :meth:`begin` announced, now written: one for each sequence of ``origin``."""
        ends = physical + np.asarray(sizes)
        apart = (np.diff(origin.sequences) != 1) | (physical[1:] != ends[:-1])
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(physical)]
        with self._lock:
            for start, end in pairwise(cuts):
                first = int(origin.sequences[start])
                run = SequenceRun(first, first + end - start, int(physical[start]), int(ends[end - 1]), store_ms)
                self._add((origin.topic, origin.producer), run)
            self._pending = _FAR
            self._trim()

    def _add(self, key: _Key, run: SequenceRun) -> None:
        insort(self._runs.setdefault(key, []), run)
        self._order.append((key, run))
        self._longest = max(self._longest, run.end - run.first)

    def _trim(self) -> None:
        least_ms = self._clock.now_ms() - self.window_ms
        while self._order and (len(self._order) > self._window_requests or self._order[0][1].store_ms < least_ms):
            self._forget(*self._order.popleft())

    def _forget(self, key: _Key, run: SequenceRun) -> None:
        runs = self._runs[key]
        del runs[bisect_left(runs, run)]
        if not runs:
            del self._runs[key]

    @property
    def size(self) -> int:
        """Number of the runs that are known: about one a request."""
        return len(self._order)

    @property
    def since_ms(self) -> int | None:
        """The store time of the oldest run that is known, None if there is none."""
        with contextlib.suppress(IndexError):
            return self._order[0][1].store_ms
        return None

    # the file

    def checkpoint(self, flushed: int, *, at_once: bool = False) -> None:
        """Brings the file up to date if it is due; ``flushed`` is the log's flushed position."""
        if self.is_in_use and (at_once or self._clock.monotonic_s() - self._saved_s >= _SAVE_S):
            self._save(flushed)

    def _save(self, flushed: int) -> None:
        with self._save_lock:
            with self._lock:
                self._trim()
                position = min(flushed, self._pending)
                for _, run in reversed(self._order):  # in the order of the log
                    if run.physical_end <= position:
                        break
                    position = min(position, run.physical)
                found: dict[_Key, list[SequenceRun]] = {}
                for key, run in self._order:
                    if run.physical_end <= position:
                        found.setdefault(key, []).append(run)
            self._saved_s = self._clock.monotonic_s()
            if position != self._saved or not self.is_in_use:
                _FILE.replace(
                    self._fs, self._paths.producers_json, _Saved(position, list(found.items())), self._paths.tmp
                )
                self._saved = position

    def _load(self, saved: _Saved | None) -> None:
        if saved is None:
            return
        loaded = ((key, run) for key, runs in saved.runs for run in runs)
        for key, run in sorted(loaded, key=lambda one: one[1].physical):
            self._add(key, run)
        self._position = self._saved = saved.position


class _Saved(NamedTuple):
    """The content of ``producers.json``: what is known of producers below a position of the log."""

    position: int
    runs: Sequence[tuple[_Key, Sequence[SequenceRun]]]


def _decode(document: Any) -> _Saved:
    runs = [
        ((str(entry["topic"]), str(entry["producer"])), [SequenceRun(*map(int, run)) for run in entry["runs"]])
        for entry in document["producers"]
    ]
    return _Saved(int(document["position"]), runs)


def _encode(saved: _Saved) -> bytes:
    producers = [
        {
            "topic": topic,
            "producer": producer,
            "runs": [[run.first, run.end, run.physical, run.physical_end, run.store_ms] for run in runs],
        }
        for (topic, producer), runs in saved.runs
    ]
    document = {"format": _FORMAT, "position": saved.position, "producers": producers}
    return (json.dumps(document, separators=(",", ":")) + "\n").encode()


_FILE = JsonFile(_decode, _encode, (_FORMAT,))


def marks(producer: str, sequences: Sequence[int]) -> list[bytes]:
    """Returns the property text that makes a record one of a producer's, for each sequence."""
    start = f"{PRODUCER}\x01{producer}\x02{SEQUENCE}\x01"
    return [f"{start}{sequence}\x02".encode() for sequence in sequences]
