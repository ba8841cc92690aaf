"""Rows on standard output: table, json, ndjson, csv or arrow. Rows come page by page and go out the same way."""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.cli.look import Look, printable, safe_json
from service.cli.message_view import full_lines, message_cells, message_columns
from service.wire import Json, ndjson_line

if TYPE_CHECKING:
    from service.cli.table import Column, Table

_BODY_COLUMNS = (
    "message_id", "store_id", "physical_offset", "topic", "queue_id", "queue_offset", "keys", "tag", "properties",
    "born_ms", "store_ms", "tier", "size_bytes", "body", "body_base64",
)  # fmt: skip


class Rows(ABC):
    """A writer of rows. :meth:`end` must be called; it takes what json puts beside the rows."""

    @abstractmethod
    def write(self, rows: Sequence[Json]) -> None:
        """Write some rows."""

    def end(self, **beside: object) -> None:
        """Finish."""
        sys.stdout.flush()


def messages_out(look: Look, key: str | None = None, *, by_born: bool = False) -> Rows:
    """Messages; of a table's row ``key`` is shown if the message has several, and which time is told."""
    if look.form == "table":
        if look.is_full:
            return _FullRows(look)
        columns = message_columns(look, by_born=by_born)
        return _TableRows(look, columns, lambda row: message_cells(row, look, key, by_born=by_born))
    return _writer(look.form, "messages", _BODY_COLUMNS)


def rows_out(
    look: Look,
    name: str,
    columns: Sequence[str],
    shown: Sequence[Column] = (),
    cells: Callable[[Json], Json] | None = None,
    types: Mapping[str, str] | None = None,
) -> Rows:
    """Other rows: ``name`` is their member of a json document, ``cells`` makes a row of a table with columns ``shown``.

    ``types`` are those of an Arrow stream: "int", "bool", "json" (as text), else text. Without them, the values of the
    first page decide.
    """
    if look.form == "table":
        return _TableRows(look, shown, cells or (lambda row: row))
    return _writer(look.form, name, columns, types)


def _writer(form: str, name: str, columns: Sequence[str], types: Mapping[str, str] | None = None) -> Rows:
    match form:
        case "json":
            return _JsonRows(name)
        case "csv":
            return _CsvRows(columns)
        case "arrow":
            return _ArrowRows(columns, types, messages=name == "messages")
        case _:
            return _NdjsonRows()


class _NdjsonRows(Rows):
    def write(self, rows: Sequence[Json]) -> None:
        sys.stdout.writelines(safe_json(ndjson_line(row)) for row in rows)
        sys.stdout.flush()


class _JsonRows(Rows):
    """One document, its rows written as they come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._written = 0

    def write(self, rows: Sequence[Json]) -> None:
        for row in rows:
            sys.stdout.write(",\n " if self._written else f'{{"{self._name}": [\n ')
            sys.stdout.write(safe_json(json.dumps(row, ensure_ascii=False)))
            self._written += 1

    def end(self, **beside: object) -> None:
        sys.stdout.write("\n]" if self._written else f'{{"{self._name}": []')
        for name, value in beside.items():
            sys.stdout.write(f',\n"{name}": {safe_json(json.dumps(value, ensure_ascii=False))}')
        sys.stdout.write("}\n")
        super().end()


class _CsvRows(Rows):
    """For people and their spreadsheets: text that one of those would take for a formula has an apostrophe before it.

    A terminal gets nothing that it would obey. Everything else, numbers and base64 too, is as it is; what programs read
    is ndjson.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._is_terminal = sys.stdout.isatty()
        sys.stdout.write(_csv_line(columns))

    def write(self, rows: Sequence[Json]) -> None:
        sys.stdout.writelines(_csv_line([self._cell(row.get(name), name) for name in self._columns]) for row in rows)

    def _cell(self, value: Any, name: str) -> object:
        cell = _flat_cell(value, name)
        if not isinstance(cell, str) or name == "body_base64":
            return cell
        if self._is_terminal:
            cell = "\n".join(map(printable, cell.split("\n")))
        return f"'{cell}" if cell.startswith(_FORMULA_STARTS) else cell


#: Of a cell that a spreadsheet calculates, with what it passes over before.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def _csv_line(cells: Sequence[object]) -> str:
    """As RFC 4180 has it, but for the line end; the module ``csv`` leaves a lone CR without quotes."""
    texts = ["" if cell is None else str(cell) for cell in cells]
    if texts == [""]:
        return '""\n'
    return ",".join('"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text for text in texts) + "\n"


_QUOTED = re.compile('[,"\r\n]')


def _flat_cell(value: Any, name: str) -> object:
    if name == "keys" and isinstance(value, list):  # a key has no space
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


class _TableRows(Rows):
    def __init__(self, look: Look, columns: Sequence[Column], cells: Callable[[Json], Json]) -> None:
        self._look = look
        self._columns = columns
        self._cells = cells
        self._table: Table | None = None

    def write(self, rows: Sequence[Json]) -> None:
        from service.cli.table import Table

        if self._table is None:
            self._table = Table(self._columns, width=self._look.width, is_colored=self._look.is_colored)
        sys.stdout.writelines(line + "\n" for line in self._table.lines([self._cells(row) for row in rows]))
        sys.stdout.flush()


class _FullRows(Rows):
    """Messages one below the other."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def write(self, rows: Sequence[Json]) -> None:
        sys.stdout.writelines(line + "\n" for line in full_lines(rows, self._look))
        sys.stdout.flush()


class _ArrowRows(Rows):
    """An IPC stream, a record batch for each page."""

    def __init__(self, columns: Sequence[str], types: Mapping[str, str] | None, *, messages: bool) -> None:
        if sys.stdout.isatty():
            from tiering.errors import InvalidRequestError

            raise InvalidRequestError("an Arrow stream is not for a terminal", hint="send it to a file or a pipe")
        self._columns = columns
        self._types = types
        self._messages = messages
        self._writer: Any = None

    def write(self, rows: Sequence[Json]) -> None:
        import pyarrow as pa

        from service.arrow_rows import answered_batch

        if self._messages:
            batch = answered_batch(rows)
        else:
            known = {"int": pa.int64(), "bool": pa.bool_()}
            schema = self._types and pa.schema(
                [(name, known.get(kind, pa.string())) for name, kind in self._types.items()]
            )
            batch = pa.RecordBatch.from_pylist(
                [{name: self._cell(row.get(name), name) for name in self._columns} for row in rows], schema
            )
        if self._writer is None:
            self._writer = pa.ipc.new_stream(sys.stdout.buffer, batch.schema)
        self._writer.write_batch(batch)

    def _cell(self, value: Any, name: str) -> object:
        if self._types and self._types[name] == "json" and value is not None:
            return json.dumps(value, ensure_ascii=False)
        return _flat_cell(value, name)

    def end(self, **beside: object) -> None:
        if self._writer is None:
            self.write([])
        self._writer.close()
        sys.stdout.buffer.flush()
