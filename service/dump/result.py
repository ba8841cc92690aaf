"""The parts of a dump: head, rows, what only the end shows, and findings."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import zstandard

from tierlog.index.format.layout import LAYOUTS, ItemLayout
from tierlog.tiering.base.errors import CorruptionError, StoreError, UnsupportedFormatError

Json = dict[str, Any]

#: Findings that are told in full; of the others their number is.
MOST_FINDINGS = 100
#: What damaged bytes may make a decoder raise that trusts its checksum.
_DECODING_ERRORS = (
    ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError, RecursionError,
    NotImplementedError, OSError, struct.error, zstandard.ZstdError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The options of a dump: how something is shown."""

    start: int | None = None
    """First row: a physical offset, queue offset, item number or place in the rows, as the kind has it."""
    limit: int | None = None
    body_bytes: int = 256
    part: str | None = None
    slots: int | None = None
    items: int | None = None
    layout: str | None = None
    layouts: Mapping[int, ItemLayout] = field(default_factory=lambda: LAYOUTS)
    """Item layouts of index files and objects, by the number that they store."""


def columns_of(text: str) -> dict[str, str]:
    """Reads columns as ``name`` (an integer) or ``name:text``, ``name:bool``, ``name:json``, in their order."""
    pairs = (word.partition(":") for word in text.split())
    return {name: kind or "int" for name, _, kind in pairs}


@dataclass(slots=True)
class Dump:
    """The dump of one file or object, as far as it can be read. Rows are read once; ``end`` is complete after that."""

    kind: str
    head: Json
    name: str = "rows"
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns of the rows with their types, see :func:`columns_of`; none where the head says all."""
    shown: Sequence[str] | None = None
    """Columns that a table shows, if not all."""
    rows: Iterable[Json] = ()
    end: Json = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    unsaid: int = 0
    """Findings beyond :data:`MOST_FINDINGS`."""

    def find(self, finding: str) -> None:
        """Notes what is wrong."""
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)
        else:
            self.unsaid += 1

    def read_rows(self) -> Iterator[Json]:
        """Yields the rows as far as they can be read; what ends them early is a finding."""
        with self.surviving():
            yield from self.rows

    @contextmanager
    def surviving(self, what: str = "") -> Iterator[None]:
        """Makes damage end the block and become a finding, whatever a decoder raises about it."""
        try:
            with decoding():
                yield
        except (CorruptionError, UnsupportedFormatError) as error:
            position = "" if error.position is None else f" at {error.position}"
            self.find(f"{what}: {error.message}{position}" if what else f"{error.message}{position}")


@contextmanager
def decoding() -> Iterator[None]:
    """Turns whatever a decoder raises over damaged bytes into :class:`CorruptionError`."""
    try:
        yield
    except StoreError:
        raise
    except _DECODING_ERRORS as error:
        raise CorruptionError(f"cannot be decoded ({type(error).__name__}: {str(error)[:200]})") from error


def text_of(value: object) -> str:
    """Returns text that every output can hold: half a surrogate pair becomes ``?``."""
    return str(value).encode("utf-8", "replace").decode()


def window(options: DumpOptions, first: int, end: int) -> tuple[int, int]:
    """Returns the half-open range of row numbers to show of those in ``[first, end)``."""
    start = max(first, options.start if options.start is not None else first)
    stop = end if options.limit is None else min(end, start + options.limit)
    return min(start, end), max(min(start, end), stop)


def cut(rows: Iterable[Json], options: DumpOptions) -> Iterator[Json]:
    """Yields the rows to show, numbered from 0; none behind them is made."""
    return islice(rows, *window(options, 0, 1 << 62))
