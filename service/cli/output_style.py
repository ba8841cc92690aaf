"""The style of output: format, width, colours and time zone, as asked for or as the terminal has it."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from dataclasses import dataclass
from typing import TextIO

from tierlog.tiering.base.times import format_time, to_local

#: What a terminal obeys though JSON may have it as it is: DEL, the control characters of Latin-1 (0x9B begins a command
#: as ESC [ does), and those that turn the direction of text.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: Of a table in a pipe that says nothing of its width.
_PIPE_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class OutputStyle:
    """The style that :mod:`service.cli.output` writes rows in."""

    form: str
    is_colored: bool = False
    is_local_time: bool = False
    is_full: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> OutputStyle:
        """Makes the style that the flags say; a table on a terminal and ndjson in a pipe unless told."""
        return cls(
            chosen_format(arguments.format),
            wants_color(sys.stdout, getattr(arguments, "color", "auto")),
            getattr(arguments, "local_time", False),
            getattr(arguments, "full", False),
        )

    @property
    def width(self) -> int:
        """Columns of the terminal; ``COLUMNS`` wins."""
        return shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns

    @property
    def zone(self) -> str:
        """The name of the time zone, for the head of a column."""
        return "local" if self.is_local_time else "UTC"

    def time(self, ms: int) -> str:
        """Writes a time in RFC 3339, in the zone asked for."""
        return to_local(ms) if self.is_local_time else format_time(ms)


def chosen_format(asked: str | None) -> str:
    """Returns the format asked for, else table on a terminal and ndjson in a pipe."""
    return asked or ("table" if sys.stdout.isatty() else "ndjson")


def wants_color(stream: TextIO, asked: str = "auto") -> bool:
    """Whether to use colours: as ``always`` and ``never`` say, else on a terminal, unless ``NO_COLOR`` is set."""
    if asked != "auto" or not stream.isatty():
        return asked == "always"
    from rich.console import Console

    console = Console(file=stream)
    return console.color_system is not None and not console.no_color


def printable(text: str) -> str:
    """Returns text without anything that a terminal would obey: a dot for each such character."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "·" for letter in text)


def safe_json(text: str) -> str:
    """Returns JSON with escapes for what a terminal would obey or show in another order; it means the same."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def readable_bytes(count: int | None) -> str | None:
    """Writes bytes with a unit of 1,024: 1.5 MiB."""
    if count is None:
        return None
    size, units = float(count), ["KiB", "MiB", "GiB", "TiB", "PiB"]
    if count < 1024:
        return f"{count} B"
    while True:
        size, unit = size / 1024, units.pop(0)
        if size < 1023.95 or not units:
            return f"{size:.1f} {unit}"
