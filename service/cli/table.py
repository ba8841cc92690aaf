"""Rows as a table that fits the width of the terminal, page by page.

The first page decides how wide columns are; a later one may widen them. Only columns of text are cut: where the others
do not fit, the line becomes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.style import Style

from tierlog.service.cli.output_style import printable
from tierlog.service.wire.documents import Json

_GAP = "  "
_LEAST_ROOM = 24
_ALIGNED_CELLS = 48
#: Style of a value, and of the names above the columns.
STYLES = {
    "head": "bold", "hot": "yellow", "cold": "cyan", "key": "bold green", "time": "dim", "bad": "red", "name": "blue",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``is_text`` is cut to the room that is left; those of ``rank`` 1 and up are left out, highest first.

    ``style`` names an entry of :data:`STYLES`; ``by_value`` takes the value's own.
    """

    name: str
    is_text: bool = False
    is_number: bool = False
    rank: int = 0
    style: str = ""
    by_value: bool = False


class Table:
    """A table by its lines; cells are text, numbers or None, by column name."""

    def __init__(self, columns: Sequence[Column], *, width: int, is_colored: bool) -> None:
        self._columns = list(columns)
        self._width = width
        self._is_colored = is_colored
        self._widths: dict[str, int] = {}

    def lines(self, rows: Sequence[Json]) -> list[str]:
        """Yields a page of rows, with the names above the first."""
        if not rows:
            return []
        cells = [{column.name: _text(row.get(column.name)) for column in self._columns} for row in rows]
        is_first = not self._widths
        natural = {
            column.name: min(max(cell_len(row[column.name]) for row in cells), _ALIGNED_CELLS)
            for column in self._columns
        }
        if is_first:
            self._leave_out(natural)
        for column in self._columns:
            old = self._widths.get(column.name, cell_len(column.name))
            self._widths[column.name] = old if column.is_text and not is_first else max(old, natural[column.name])
        self._fit(cells)
        head = [self._line({column.name: column.name for column in self._columns}, is_head=True)] if is_first else []
        return head + [self._line(row) for row in cells]

    def _leave_out(self, natural: dict[str, int]) -> None:
        """Drops what matters least until the text has room enough, or the line fits."""
        least = _LEAST_ROOM if any(column.is_text for column in self._columns) else -len(_GAP)
        for rank in sorted({column.rank for column in self._columns if column.rank}, reverse=True):
            taken = sum(
                max(natural[column.name], cell_len(column.name)) + len(_GAP)
                for column in self._columns
                if not column.is_text
            )
            if self._width - taken >= least:
                return
            self._columns = [column for column in self._columns if column.rank != rank]

    def _fit(self, cells: Sequence[Json]) -> None:
        """Shares what is left of the width among the columns of text."""
        texts = [column for column in self._columns if column.is_text]
        if not texts:
            return
        rigid = sum(self._widths[column.name] for column in self._columns if not column.is_text)
        left = self._width - rigid - len(_GAP) * (len(self._columns) - 1)
        wanted = {
            column.name: max(cell_len(column.name), *(cell_len(row[column.name]) for row in cells))
            for column in texts
        }  # fmt: skip
        for number, column in enumerate(sorted(texts, key=lambda one: wanted[one.name])):
            room = max(8, left // (len(texts) - number))
            self._widths[column.name] = min(wanted[column.name], room)
            left -= self._widths[column.name]

    def _line(self, row: Json, *, is_head: bool = False) -> str:
        parts = []
        last = self._columns[-1].name
        for column in self._columns:
            text, room = row[column.name], self._widths[column.name]
            size = cell_len(text)
            if column.is_text and size > room:
                text, size = set_cell_size(text, room - 1).rstrip() + "…", room
            padding = "" if column.name == last and not column.is_number else " " * max(0, room - size)
            style = "head" if is_head else text.strip() if column.by_value else column.style
            shown = paint(text, style) if self._is_colored else text
            parts.append(padding + shown if column.is_number else shown + padding)
        return _GAP.join(parts).rstrip()


def paint(text: str, style: str) -> str:
    """Returns text in the colours of a style, if there is one of that name."""
    found = _style(STYLES[style]) if style in STYLES else None
    return text if found is None or not text else found.render(text, color_system=ColorSystem.STANDARD)


@lru_cache
def _style(definition: str) -> Style:
    return Style.parse(definition)


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else printable(str(value))
