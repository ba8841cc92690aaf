"""Text lines to messages: what ``tierlog load`` does to log files, holding no more of them than a batch and a piece.

A line ends at LF or at the end of the file; one CR before it is dropped; an empty line is skipped and
counted. The body is the line's bytes as they are, valid UTF-8 or not; keys and tags are text, so a match on
undecodable bytes is a bad line. A bad line refuses its whole batch and is named by file and line number;
batches before it stay.

With ``continues``, lines that match it belong to the record before them, which is one message: its lines as they are,
with LF between them. Empty lines between two lines of a record are part of it.

Messages are made as columns: where no pattern asks for its text, nothing is made of a single line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tierlog.service.cli.line_sources import PIECE_BYTES, blocks_of, place_of, too_long, whole_lines
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.times import parse_time, to_ms
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.batch import Message, MessageBatch, validate_born_ms, validate_topic

BATCH_LINES = 10_000
BATCH_BYTES = 4 << 20
EPOCH_S = "epoch_s"
EPOCH_MS = "epoch_ms"
RFC_3339 = "rfc3339"
_DIRECTIVE = re.compile(r"%[-_0^#]?(.)")
_WITH_YEAR = frozenset("YyGcx")
_WITH_DAY = frozenset("djcxUWV")
_HINT = "FMT is a strptime format such as '%Y-%m-%d %H:%M:%S,%f', or rfc3339, epoch_s or epoch_ms"
#: Directives that a pattern of digits stands for, where every number is written in full.
_DIGITS = {"Y": r"(?P<Y>\d{4})", "f": r"(?P<f>\d{1,6})"} | {name: rf"(?P<{name}>\d\d)" for name in "mdHMS"}
_PLAIN_FORMAT = re.compile(r"(?:%[YmdHMSf]|[^%\s])(?:%[YmdHMSf]|[^%\s]| (?! ))*")


class TimestampParser:
    """A parser of the time a log line says it was written, for ``load --born REGEX --born-format FMT``.

    Times are in ms UTC. It remembers the last one for lines that have none.
    """

    def __init__(self, pattern: re.Pattern[str] | None, born_format: str, *, year: int | None, now_ms: int) -> None:
        """``year`` is for formats without one; ``now_ms`` for the lines before the first that has a time.

        Without a ``pattern`` the text of a time is given. Raises :class:`InvalidRequestError` for a format that leaves
        the day or the year open.
        """
        #: Where in a line its time is, None if the text of a time is given.
        self.pattern = pattern
        self._format = born_format
        self._prefix = ""
        self._last_text: str | None = None
        #: The time of the last line, which the next one has too if it has none.
        self.last_ms = now_ms
        self._zone_name = False
        if born_format not in (EPOCH_S, EPOCH_MS, RFC_3339):
            directives = set(_DIRECTIVE.findall(born_format))
            if not directives & _WITH_DAY:
                raise InvalidRequestError(f"the time format {born_format!r} has no day", hint=_HINT)
            if not directives & _WITH_YEAR:
                if year is None:
                    raise InvalidRequestError(
                        f"the time format {born_format!r} has no year", hint="say which with --year"
                    )
                if not 1970 <= year <= 9999:
                    raise InvalidRequestError(f"year {year} is not between 1970 and 9999")
                self._prefix, self._format = f"{year:04d} ", f"%Y {born_format}"
            self._zone_name = "Z" in directives
        self._digits = _digits_of(self._format)
        self._days_ms: dict[tuple[str, str, str], int] = {}

    def of_line(self, line: str) -> int:
        """Returns the line's time, or the previous line's; :class:`InvalidRequestError` if FMT cannot read it."""
        self.find(line)
        return self.last_ms

    def find(self, line: str) -> int | None:
        """Returns the line's time, None if it has none; raises as :meth:`of_line` does."""
        assert self.pattern is not None
        match = self.pattern.search(line)
        text = None if match is None else match[1] if self.pattern.groups else match[0]
        return None if text is None else self.of_text(text)

    def of_text(self, text: str) -> int:
        """Returns the time that a text says; :class:`InvalidRequestError` if FMT cannot read it."""
        if text != self._last_text:
            self.last_ms = self._parse(text)
            self._last_text = text
        return self.last_ms

    def _parse(self, text: str) -> int:
        if self._digits is not None and (ms := self._parse_digits(self._digits, self._prefix + text)) is not None:
            return ms
        try:
            if self._format in (EPOCH_S, EPOCH_MS):
                ms = _epoch_ms(text, 1000 if self._format == EPOCH_S else 1)
            elif self._format == RFC_3339:
                ms = parse_time(text)
            else:
                ms = self._parse_format(text)
        except ValueError as error:
            words = error.message if isinstance(error, InvalidRequestError) else error
            raise InvalidRequestError(f"cannot read the born time {text[:60]!r}: {words}", hint=_HINT) from error
        if ms < 0:
            raise InvalidRequestError(f"the born time {text[:60]!r} is before 1970")
        return validate_born_ms(ms)

    def _parse_digits(self, digits: re.Pattern[str], text: str) -> int | None:
        """Reads what is written in full digits, ten times as fast; None for what strptime is to look at."""
        match = digits.fullmatch(text)
        if match is None:
            return None
        found = match.groupdict(default="0")
        day = found["Y"], found["m"], found["d"]
        hour, minute, second = int(found.get("H", 0)), int(found.get("M", 0)), int(found.get("S", 0))
        try:
            day_ms = self._days_ms[day]
        except KeyError:
            try:
                day_ms = to_ms(datetime(int(day[0]), int(day[1]), int(day[2]), tzinfo=UTC))
            except ValueError:
                return None
            self._days_ms = {day: day_ms}  # logs are in order, mostly
        if day_ms < 0 or hour > 23 or minute > 59 or second > 59:
            return None
        fraction_ms = int(found.get("f", "0").ljust(6, "0")) // 1000
        return day_ms + hour * 3_600_000 + minute * 60_000 + second * 1000 + fraction_ms

    def _parse_format(self, text: str) -> int:
        moment = datetime.strptime(self._prefix + text, self._format)
        if moment.tzinfo is None:
            if self._zone_name and not re.search(r"\b(?:UTC|GMT|Z)\b", text, re.IGNORECASE):
                # %Z also takes the name of this machine's zone and then forgets it
                raise ValueError("a zone name other than UTC or GMT says no offset; use %z")
            moment = moment.replace(tzinfo=UTC)
        return to_ms(moment)


def _digits_of(born_format: str) -> re.Pattern[str] | None:
    """Returns the pattern of a format that is numbers and what stands between them; None for any other."""
    names = re.findall("%(.)", born_format)
    if not _PLAIN_FORMAT.fullmatch(born_format) or len(names) != len(set(names)) or not {"Y", "m", "d"} <= set(names):
        return None
    parts = re.split("%(.)", born_format)
    return re.compile("".join(_DIGITS[part] if place % 2 else re.escape(part) for place, part in enumerate(parts)))


def _epoch_ms(text: str, factor: int) -> int:
    match = re.fullmatch(r"\s*(\d{1,20})(?:[.,](\d+))?\s*", text)
    if match is None:
        raise ValueError("not a number")
    whole = int(match[1]) * factor
    return whole + int((match[2] or "0").ljust(3, "0")[:3]) if factor == 1000 else whole


class JsonField:
    """The place of a value in a JSON object, ``a.b``: the member ``b`` of the member ``a``.

    A member whose name has the dots in it is found as well, and comes first. Of a list every element is looked at.
    """

    def __init__(self, path: str) -> None:
        """Raises :class:`InvalidRequestError` for a path with an empty name."""
        self._names = tuple(path.split("."))
        if not all(self._names):
            raise InvalidRequestError(f"bad field {path!r}", hint="names with dots between them, such as order.id")
        #: As it was asked for.
        self.path = path

    def __str__(self) -> str:
        return self.path

    def texts(self, document: object) -> list[str]:
        """Returns the strings that are not empty, and the numbers as they are written; nothing else is a text."""
        found: list[str] = []
        _gather(document, self._names, found)
        return found


def _gather(value: object, names: tuple[str, ...], found: list[str]) -> None:
    if isinstance(value, list):
        for each in value:
            _gather(each, names, found)
    elif isinstance(value, dict):
        for end in range(len(names), 0, -1):
            name = ".".join(names[:end])
            if name in value:
                _gather(value[name], names[end:], found)
                return
    elif isinstance(value, str) and value and not names:
        found.append(value)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


#: Numbers stay as they are written: 64 bits would not hold every id.
_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_number)


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        found = _JSON.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class LineRules:
    """The rules by which a line becomes a message. Patterns are searched in the text of a line, or of a record."""

    topic: str
    keys: Sequence[re.Pattern[str]] = ()
    tag: re.Pattern[str] | None = None
    born: TimestampParser | None = None
    max_body_bytes: int = 4 << 20
    continues: re.Pattern[str] | None = None
    json_keys: Sequence[JsonField] = ()
    json_tag: JsonField | None = None
    json_born: JsonField | None = None
    """The field of the time that ``born`` reads."""
    is_text: bool = False
    """Files are text, whatever they look like."""

    def __post_init__(self) -> None:
        validate_topic(self.topic)

    @property
    def wants_json(self) -> bool:
        """Whether lines are looked at as JSON objects."""
        return bool(self.json_keys or self.json_tag or self.json_born)

    @property
    def asked(self) -> dict[str, str]:
        """The flags that some line is to have something for, by the names that :attr:`LoadReport.matched` has."""
        found = {f"key {key.pattern}": f"--key {key.pattern}" for key in self.keys}
        found |= {f"field {key.path}": f"--json-key {key.path}" for key in self.json_keys}
        if self.tag or self.json_tag:
            found["tag"] = f"--tag {self.tag.pattern}" if self.tag else f"--json-tag {self.json_tag}"
        if self.born:
            pattern = self.born.pattern
            found["time"] = f"--born {pattern.pattern}" if pattern else f"--json-born {self.json_born}"
        return found


@dataclass(slots=True)
class LoadReport:
    """The progress so far: acknowledged ``messages`` in ``batches``, their body ``bytes``, and what lines lacked."""

    messages: int = 0
    skipped_empty: int = 0
    batches: int = 0
    bytes: int = 0
    continued: int = 0
    """Lines that belong to the record before them."""
    without_key: int = 0
    without_time: int = 0
    without_tag: int = 0
    not_json: int = 0
    matched: set[str] = field(default_factory=set)
    """Which of :attr:`LineRules.asked` some line had."""

    def add(self, more: LoadReport) -> None:
        """Counts what another one has."""
        for each in fields(self):
            if each.name == "matched":
                self.matched |= more.matched
            else:
                setattr(self, each.name, getattr(self, each.name) + getattr(more, each.name))


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far a file was read: its first ``lines``, which have this ``digest``."""

    lines: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are appended together; the last one of a load may have none, but counts to add."""

    messages: Sequence[Message] = ()
    #: File, and numbers of the lines that messages begin with, in the order of the messages.
    places: Sequence[tuple[str, NDArray[np.int64]]] = ()
    counts: LoadReport = field(default_factory=LoadReport)
    #: Where each file was at the end of the batch, up to the one that it ends in; empty unless asked for.
    files: tuple[FilePosition, ...] = ()
    #: The time that the next line has if it has none.
    born_ms: int | None = None

    def place(self, position: int) -> str:
        """Names the line that a message begins with."""
        for name, numbers in self.places:
            if position < len(numbers):
                return place_of(name, int(numbers[position]))
            position -= len(numbers)
        raise IndexError(position)


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compiles a pattern of the command line; :class:`InvalidRequestError` if it is none."""
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidRequestError(f"bad pattern {text!r}: {error}", hint="Python's regular expressions") from error


def load(
    batches: Iterable[Batch],
    append: Callable[[Sequence[Message]], object],
    *,
    report: LoadReport,
    acknowledged: Callable[[Batch], None] = lambda batch: None,
) -> None:
    """Appends every batch in order; ``report`` and ``acknowledged`` follow each one that ``append`` returned for.

    An error of ``append`` that names a message by its place is raised again with that message's file and line.
    """
    for batch in batches:
        if batch.messages:
            with _naming_the_line(batch):
                append(batch.messages)
        report.add(batch.counts)
        acknowledged(batch)


def check_batch(batch: Batch, max_body_bytes: int) -> None:
    """Raises what appending would raise about the messages themselves, with the line named; writes nothing."""
    with _naming_the_line(batch):
        MessageBatch.of(batch.messages, now_ms=0, max_body_bytes=max_body_bytes)


def batches_of(
    files: Sequence[str],
    rules: LineRules,
    read: Callable[[int], None] = lambda count: None,
    *,
    positions: Sequence[FilePosition] | None = None,
) -> Iterator[Batch]:
    """Yields batches of at most 10,000 messages and about 4 MiB of bodies over all files in order.

    ``read`` is told how many bytes were read, so that a bar can move. With ``positions`` every batch says where it
    ends, and each file begins there, if what lies before is what it was: else :class:`InvalidRequestError`, as for a
    bad line, which is named. :class:`MessageTooLargeError` for one over the limit, of which no more than that and a
    piece is read.
    """
    gathered = _Gathering(rules, is_tracking=positions is not None)
    for number, name in enumerate(files):
        at = positions[number] if positions and number < len(positions) else FilePosition()
        blocks = blocks_of(name, max_line_bytes=rules.max_body_bytes, is_text=rules.is_text, read=read)
        yield from gathered.file(name, blocks, at)
    yield from gathered.rest()


def batches_of_text(name: str, text: Iterable[bytes], rules: LineRules) -> Iterator[Batch]:
    """Yields batches of a text that comes in pieces, as :func:`batches_of` does of files; ``name`` is for errors."""
    gathered = _Gathering(rules, is_tracking=False)
    yield from gathered.file(name, whole_lines(name, iter(text), rules.max_body_bytes), FilePosition())
    yield from gathered.rest()


@dataclass(frozen=True, slots=True)
class _Records:
    """Records in a block of whole lines: ``block[starts[i]:ends[i]]``, from line ``first[i]`` to ``last[i]``."""

    block: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, begin: int, end: int) -> _Records:
        rows = slice(begin, end)
        return _Records(self.block, self.starts[rows], self.ends[rows], self.first[rows], self.last[rows])

    @property
    def are_lines(self) -> bool:
        """Whether every record is one line."""
        return bool((self.first == self.last).all())

    @property
    def bodies(self) -> bytes:
        """The bytes of all records, one behind the other."""
        if self.are_lines:  # what lies between them is the ends of lines
            return self.block[int(self.starts[0]) : int(self.ends[-1])].replace(b"\n", b"")
        return b"".join([self.block[start:end] for start, end in self._bounds()])

    @property
    def texts(self) -> list[str]:
        """The text of each record."""
        if self.are_lines:
            lines = _decoded(self.block[int(self.starts[0]) : int(self.ends[-1])]).split("\n")
            return lines if len(lines) == len(self) else [line for line in lines if line]
        return [_decoded(self.block[start:end]) for start, end in self._bounds()]

    def _bounds(self) -> Iterable[tuple[int, int]]:
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class _Gathering:
    """A batch that is being gathered, line by line of one file after the other."""

    def __init__(self, rules: LineRules, *, is_tracking: bool) -> None:
        self._rules = rules
        self._digest = hashlib.blake2b(digest_size=16) if is_tracking else None
        self._done: tuple[FilePosition, ...] = ()
        self._name = ""
        self._lines = 0
        """Lines of the file that are in this batch or an earlier one."""
        self._parts: list[tuple[str, _Records]] = []
        self._counts = LoadReport()
        self._is_new = True
        """Whether no line was taken since the last batch."""

    def file(self, name: str, blocks: Iterator[bytes], at: FilePosition) -> Iterator[Batch]:
        """Yields the batches that become full with the lines of a file, whose first ones were loaded before."""
        self._name, self._lines = name, 0
        if self._digest is not None:
            self._digest = hashlib.blake2b(digest_size=16)
        carried = self._past(blocks, at) if at.lines else b""
        for block in blocks:
            carried = yield from self._take(carried + block, is_end=False)
        carried = yield from self._take(carried, is_end=True)
        self._done += (self._here(),)

    def rest(self) -> Iterator[Batch]:
        """Yields the last batch, if there is anything in it."""
        if not self._is_new:
            yield self._batch(self._done)

    def _past(self, blocks: Iterator[bytes], at: FilePosition) -> bytes:
        """Reads past what was loaded before, and returns what was read behind it."""
        is_new = self._is_new
        for block in blocks:
            missing, lines = at.lines - self._lines, block.count(b"\n")
            cut = len(block) if lines <= missing else int(_ends_of(block)[missing - 1]) + 1
            self._pass(block[:cut], min(lines, missing))
            if self._lines == at.lines:
                if self._here().digest != at.digest:
                    break
                self._is_new = is_new
                return block[cut:]
        raise InvalidRequestError(
            f"{place_of(self._name, at.lines)}: what was loaded up to here is not what the file has now",
            hint="a load goes on only where its files are what they were, or have only grown",
        )

    def _take(self, block: bytes, *, is_end: bool) -> Generator[Batch, None, bytes]:
        """Takes the records of a block of whole lines, and returns the bytes of what the next block may go on with."""
        records, is_held, is_over = self._records(block), False, False
        if self._rules.continues is not None and not is_end and len(records):
            start, most = int(records.starts[-1]), self._rules.max_body_bytes
            is_over = int(records.ends[-1]) - start > most
            # a record does not go on behind more empty lines than it could hold
            is_held = not is_over and len(block) - start <= most + PIECE_BYTES
        count, begin, at = len(records) - is_held, 0, 0
        while begin < count:
            end = begin + self._room(records.part(begin, count))
            part = records.part(begin, end)
            if len(part):
                self._parts.append((self._name, part))
                cut, lines = int(part.ends[-1]) + 1, int(part.last[-1]) - self._lines
                continued = int((part.last - part.first).sum())
                self._counts.messages += len(part)
                self._counts.bytes += int((part.ends - part.starts).sum())
                self._counts.continued += continued
                self._counts.skipped_empty += lines - len(part) - continued
                self._pass(block[at:cut], lines)
                at, begin = cut, end
            if not len(part) or self._counts.messages >= BATCH_LINES or (is_over and begin == count):
                yield self._batch((*self._done, self._here()))
        if is_held:
            return block[at:]
        lines = len(block) - at  # nothing but the ends of empty lines
        self._counts.skipped_empty += lines
        self._pass(block[at:], lines)
        return b""

    def _pass(self, data: bytes, lines: int) -> None:
        if data:
            self._is_new = False
            self._lines += lines
            if self._digest is not None:
                self._digest.update(data)

    def _here(self) -> FilePosition:
        return FilePosition(self._lines, self._digest.hexdigest() if self._digest is not None else "")

    def _room(self, records: _Records) -> int:
        """Returns how many of the records still fit into the batch; one fits into an empty one."""
        most = BATCH_LINES - self._counts.messages
        sizes = np.cumsum(records.ends[:most] - records.starts[:most])
        fitting = int(np.searchsorted(sizes, BATCH_BYTES - self._counts.bytes, side="right"))
        return fitting if fitting or self._parts else 1

    def _records(self, block: bytes) -> _Records:
        ends = _ends_of(block)
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1)) if len(ends) else ends
        numbers = np.arange(self._lines + 1, self._lines + 1 + len(ends))
        found = _Records(block, starts, ends, numbers, numbers)
        full = np.flatnonzero(ends > starts)
        if self._rules.continues is None or not len(full):
            return found if len(full) == len(ends) else _rows(found, full, full)
        search, texts = self._rules.continues.search, _decoded(block).split("\n")
        begins = np.array([search(texts[line]) is None for line in full.tolist()])
        begins[0] = True
        first = np.flatnonzero(begins)
        return _rows(found, full[first], full[np.append(first[1:], len(full)) - 1])

    def _batch(self, files: tuple[FilePosition, ...]) -> Batch:
        parts, counts, rules = self._parts, self._counts, self._rules
        self._parts, self._counts, self._is_new = [], LoadReport(), True
        places = [(name, records.first) for name, records in parts]
        counts.batches = 1 if parts else 0
        found = Batch(places=places, counts=counts, files=files if self._digest is not None else ())
        if parts:
            with _naming_the_line(found):
                table = _table([records for _, records in parts], rules, counts)
            found = replace(found, messages=ArrowMessages(table, rules.topic))
        return replace(found, born_ms=rules.born.last_ms if rules.born else None)


def _ends_of(block: bytes) -> NDArray[np.int64]:
    return np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))


def _rows(lines: _Records, first: NDArray[np.int64], last: NDArray[np.int64]) -> _Records:
    return _Records(lines.block, lines.starts[first], lines.ends[last], lines.first[first], lines.last[last])


def _table(parts: Sequence[_Records], rules: LineRules, counts: LoadReport) -> pa.Table:
    """Makes the columns of a batch, and counts what lines lack; errors name a record by its place."""
    lengths = np.concatenate([records.ends - records.starts for records in parts])
    if int(lengths.max()) > rules.max_body_bytes:
        what = "line" if rules.continues is None else "record that begins here"
        raise too_long(what, rules.max_body_bytes, position=int(np.argmax(lengths > rules.max_body_bytes)))
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    bodies = b"".join([records.bodies for records in parts])
    columns = {
        "body": pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(bodies)])
    }
    if not rules.asked:
        return pa.table(columns)
    texts = [text for records in parts for text in records.texts]
    documents: Sequence[dict[str, Any] | None] = ()
    if rules.wants_json:
        documents = [_object_of(text) for text in texts]
        counts.not_json += documents.count(None)
    if rules.keys or rules.json_keys:
        columns["keys"] = _keys(texts, documents, rules, counts)
    if rules.tag or rules.json_tag:
        columns["tag"] = _tags(texts, documents, rules, counts)
    if rules.born is not None:
        columns["born_ms"] = _times(texts, documents, rules.born, rules.json_born, counts)
    return pa.table(columns)


def _keys(
    texts: Sequence[str], documents: Sequence[dict[str, Any] | None], rules: LineRules, counts: LoadReport
) -> pa.Array:
    found: list[str] = [""]
    ends = [0]
    if len(rules.keys) == 1 and not rules.json_keys and rules.keys[0].groups < 2:
        findall, found = rules.keys[0].findall, []
        for text in texts:
            keys = findall(text)
            found += dict.fromkeys(keys) if len(keys) > 1 else keys
            ends.append(len(found))
    if "" in found:  # not made yet, or a group may have taken no part
        found, ends = _keys_one_by_one(texts, documents, rules, counts)
    elif found:
        counts.matched.add(f"key {rules.keys[0].pattern}")
    bounds = np.array(ends, np.int32)
    counts.without_key += int((bounds[1:] == bounds[:-1]).sum())
    return pa.ListArray.from_arrays(pa.array(bounds), _readable(found, "key", bounds))


def _keys_one_by_one(
    texts: Sequence[str], documents: Sequence[dict[str, Any] | None], rules: LineRules, counts: LoadReport
) -> tuple[list[str], list[int]]:
    found: list[str] = []
    ends = [0]
    for place, text in enumerate(texts):
        keys: dict[str, None] = {}
        for pattern in rules.keys:
            if matches := list(_found(pattern, text)):
                keys |= dict.fromkeys(matches)
                counts.matched.add(f"key {pattern.pattern}")
        for json_field in rules.json_keys:
            if values := json_field.texts(documents[place]):
                keys |= dict.fromkeys(values)
                counts.matched.add(f"field {json_field.path}")
        found += keys
        ends.append(len(found))
    return found, ends


def _tags(
    texts: Sequence[str], documents: Sequence[dict[str, Any] | None], rules: LineRules, counts: LoadReport
) -> pa.Array:
    tags = []
    for place, text in enumerate(texts):
        tag = next(_found(rules.tag, text), "") if rules.tag else ""
        if not tag and rules.json_tag is not None:
            tag = next(iter(rules.json_tag.texts(documents[place])), "")
        tags.append(tag)
    lacking = tags.count("")
    counts.without_tag += lacking
    if lacking < len(tags):
        counts.matched.add("tag")
    return _readable(tags, "tag", np.arange(len(tags) + 1))


def _times(
    texts: Sequence[str],
    documents: Sequence[dict[str, Any] | None],
    born: TimestampParser,
    json_born: JsonField | None,
    counts: LoadReport,
) -> pa.Array:
    times, lacking = [], 0
    for place, text in enumerate(texts):
        try:
            if json_born is None:
                found = born.find(text)
            else:
                value = next(iter(json_born.texts(documents[place])), None)
                found = None if value is None else born.of_text(value)
        except InvalidRequestError as error:
            raise type(error)(error.message, position=place, hint=error.hint) from error
        lacking += found is None
        times.append(born.last_ms)
    counts.without_time += lacking
    if lacking < len(times):
        counts.matched.add("time")
    return pa.array(times, pa.int64())


def _found(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Returns the first group of every match, or all of it; a match in which the group took no part gives nothing."""
    for match in pattern.finditer(text):
        found = match[1] if pattern.groups else match[0]
        if found is not None:
            yield found


def _readable(texts: Sequence[str], what: str, bounds: NDArray[np.integer[Any]]) -> pa.Array:
    """Makes a column of texts, of which record ``i`` has ``texts[bounds[i]:bounds[i + 1]]``."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        for number, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                place = int(np.searchsorted(bounds, number, side="right")) - 1
                raise InvalidRequestError(f"the {what} {text[:100]!r} is not valid UTF-8", position=place) from error
        raise


@contextmanager
def _naming_the_line(batch: Batch) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        if error.position is None or error.path is not None or not 0 <= error.position < batch.counts.messages:
            raise
        text = error.message.removeprefix(f"message {error.position}: ")
        raise type(error)(f"{batch.place(error.position)}: {text}", hint=error.hint) from error
