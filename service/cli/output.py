"""Output of commands on standard output: rows as table, json, ndjson, csv or arrow, and answers of one document.

Rows come page by page and go out the same way. Messages for people are a line of a table each, or all of each
(``--full``). An answer of one document is a list of names and values on a terminal, JSON elsewhere.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tierlog.service.cli.output_style import OutputStyle, printable, readable_bytes, safe_json
from tierlog.service.wire.documents import ARROW_STREAM, PARQUET, Json, ndjson_line

if TYPE_CHECKING:
    from tierlog.service.cli.table import Column, Table
    from tierlog.service.wire.paged_query import FollowedQuery

#: Above this many ms a number is no duration: 1980.
_MOMENT_MS = 315_532_800_000
_BODY_COLUMNS = (
    "message_id", "store_id", "physical_offset", "topic", "queue_id", "queue_offset", "keys", "tag", "properties",
    "born_ms", "store_ms", "tier", "size_bytes", "body", "body_base64",
)  # fmt: skip


def message_columns(look: OutputStyle, *, by_born: bool) -> tuple[Column, ...]:
    """Returns the columns of messages; the time that is asked about is first, the other one is for ``--full``."""
    from tierlog.service.cli.table import Column

    name = f"{'born' if by_born else 'stored'} ({look.zone})"
    return (
        Column(name, style="time"),
        Column("tier", rank=1, by_value=True),
        Column("topic", rank=3),
        Column("queue:offset", rank=2),
        Column("key", style="key"),
        Column("body", is_text=True),
    )


def message_cells(row: Json, look: OutputStyle, key: str | None, *, by_born: bool) -> Json:
    """Returns a message in one line; of several keys the one asked for, else the first, and how many more."""
    keys: list[str] = row["keys"]
    first = key if key is not None and key in keys else "".join(keys[:1])
    body = row.get("body")
    return {
        f"{'born' if by_born else 'stored'} ({look.zone})": look.time(row["born_ms" if by_born else "store_ms"]),
        "tier": row["tier"],
        "topic": row["topic"],
        "queue:offset": f"{row['queue_id']}:{row['queue_offset']}",
        "key": first + (f" +{len(keys) - 1}" if len(keys) > 1 else ""),
        "body": (f"base64: {row.get('body_base64')}" if body is None else body)[: look.width + 1],
    }


def full_lines(rows: Sequence[Json], look: OutputStyle) -> list[str]:
    """Returns every field of the messages, bodies whole; JSON bodies with an indent."""
    lines = []
    for row in rows:
        for name in row:
            if name in ("body", "body_base64") or row[name] in ("", [], {}):
                continue
            value = row[name]
            text = look.time(value) if name.endswith("_ms") else _text(value)
            label = f"{name.removesuffix('_ms') if name.endswith('_ms') else name}:"
            lines.append(f"{painted(f'{label:<15} ', 'head', look)}{painted(text, _style(name, text), look)}")
        lines += ["", *_body_lines(row), ""]
    return lines


def _body_lines(row: Json) -> list[str]:
    body = row.get("body")
    if body is None:
        return [f"base64: {row.get('body_base64')}"]
    if body[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):  # else it is shown as it is
            body = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    return [printable(line.replace("\t", "    ").rstrip("\r")) for line in body.split("\n")]


def _text(value: object) -> str:
    if isinstance(value, list):
        return printable(" ".join(str(each) for each in value))
    return printable(json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value))


def _style(name: str, text: str) -> str:
    return text if name == "tier" else "key" if name == "keys" else ""


def painted(text: str, style: str, look: OutputStyle) -> str:
    """Returns text in a style, where colours are wanted."""
    if not look.is_colored:
        return text
    from tierlog.service.cli.table import paint

    return paint(text, style)


def print_document(document: Json, look: OutputStyle) -> None:
    """Prints a document: ``table`` is a line for each value; ``json`` has an indent, ``ndjson`` is one line."""
    if look.form != "table":
        text = json.dumps(document, ensure_ascii=False, indent=1 if look.form == "json" else None)
        print(safe_json(text), flush=True)
        return
    lines = list(flat(document))
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        sys.stdout.write(f"{painted(f'{name:<{width}}', 'head', look)}  {shown_value(name, value, look)}\n".rstrip(" "))
    sys.stdout.flush()


def print_done(document: Json, arguments: argparse.Namespace) -> None:
    """Prints what a command did that has nothing else to say; in a pipe only if a format was asked for."""
    if arguments.format is not None or sys.stdout.isatty():
        print_document(document, OutputStyle.of(arguments))


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields values of values by their whole names, ``cache.filters.hits``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def shown_value(name: str, value: object, look: OutputStyle) -> str:
    """Writes a value for people: bytes with a unit beside their number, moments as such, digits in groups of three.

    A list is one, as JSON has it: of one number too, and of none.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return printable(json.dumps(value, ensure_ascii=False))
    if isinstance(value, int):
        if name.endswith("_ms") and value > _MOMENT_MS:
            return look.time(value)
        if name.rpartition(".")[2].find("bytes") >= 0 and value >= 1024:
            return f"{value:,} ({readable_bytes(value)})"
        return f"{value:,}"
    return printable(str(value))


class Rows(ABC):
    """A writer of rows. :meth:`end` must be called; it takes what json puts beside the rows."""

    @abstractmethod
    def write(self, rows: Sequence[Json]) -> None:
        """Writes some rows."""

    def end(self, **beside: object) -> None:
        """Finishes the output."""
        sys.stdout.flush()


def messages_out(look: OutputStyle, key: str | None = None, *, by_born: bool = False) -> Rows:
    """Makes a writer of messages; a table's row shows ``key`` if the message has several, and the time asked about."""
    if look.form == "table":
        if look.is_full:
            return _FullRows(look)
        columns = message_columns(look, by_born=by_born)
        return _TableRows(look, columns, lambda row: message_cells(row, look, key, by_born=by_born))
    return _writer(look.form, "messages", _BODY_COLUMNS)


def rows_out(
    look: OutputStyle,
    name: str,
    *,
    columns: Sequence[str],
    shown: Sequence[Column] = (),
    cells: Callable[[Json], Json] | None = None,
    types: Mapping[str, str] | None = None,
) -> Rows:
    """Makes a writer of other rows: ``name`` is their member of a json document, ``cells`` makes a table's row.

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
        case "parquet":
            return _ParquetRows()
        case _:
            return _NdjsonRows()


class _NdjsonRows(Rows):
    def write(self, rows: Sequence[Json]) -> None:
        sys.stdout.writelines(safe_json(ndjson_line(row)) for row in rows)
        sys.stdout.flush()


class _JsonRows(Rows):
    """One JSON document, its rows written as they come."""

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
    """CSV for spreadsheets: text that one of those would take for a formula has an apostrophe before it.

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
    """Writes a line as RFC 4180 has it, but for the line end; the module ``csv`` leaves a lone CR without quotes."""
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
    def __init__(self, look: OutputStyle, columns: Sequence[Column], cells: Callable[[Json], Json]) -> None:
        self._look = look
        self._columns = columns
        self._cells = cells
        self._table: Table | None = None

    def write(self, rows: Sequence[Json]) -> None:
        from tierlog.service.cli.table import Table

        if self._table is None:
            self._table = Table(self._columns, width=self._look.width, is_colored=self._look.is_colored)
        sys.stdout.writelines(line + "\n" for line in self._table.lines([self._cells(row) for row in rows]))
        sys.stdout.flush()


class _FullRows(Rows):
    """Messages in full, one below the other."""

    def __init__(self, look: OutputStyle) -> None:
        self._look = look

    def write(self, rows: Sequence[Json]) -> None:
        sys.stdout.writelines(line + "\n" for line in full_lines(rows, self._look))
        sys.stdout.flush()


def _refuse_terminal(what: str) -> None:
    if sys.stdout.isatty():
        from tierlog.tiering.base.errors import InvalidRequestError

        raise InvalidRequestError(f"{what} is not for a terminal", hint="send it to a file or a pipe")


class _ParquetRows(Rows):
    """A Parquet file of messages."""

    def __init__(self) -> None:
        _refuse_terminal("a Parquet file")
        from tierlog.service.api.answer_forms import form_of

        self._form = form_of(PARQUET)

    def write(self, rows: Sequence[Json]) -> None:
        from tierlog.service.wire.arrow import answered_batch

        sys.stdout.buffer.write(self._form.page(answered_batch(rows)))

    def end(self, **beside: object) -> None:
        sys.stdout.buffer.write(self._form.end(beside))
        sys.stdout.buffer.flush()


#: Formats that messages are written in column by column, where all of them are asked for.
COLUMN_FORMS = ("ndjson", "csv", "arrow", "parquet")


def write_columns(followed: FollowedQuery, form: str) -> int:
    """Writes all messages of a query, without an object for each, and returns how many there are.

    The text is what the writers of rows make of the messages.
    """
    out, found = sys.stdout.buffer, 0
    sys.stdout.flush()
    if form == "ndjson":
        for lines in followed.lines():
            out.write(_safe_lines(lines))
            found += lines.count(b"\n")
    else:
        from tierlog.service.api.answer_forms import form_of
        from tierlog.service.wire.message_text import csv

        if form == "csv":
            out.write(_csv_line(_BODY_COLUMNS).encode())
            written = None
        else:
            written = form_of(ARROW_STREAM if form == "arrow" else PARQUET)
        for rows in followed.pages():
            out.write(csv(rows) if written is None else written.page(rows))
            found += rows.num_rows
        if written is not None:
            out.write(written.end(followed.metadata()))
    out.flush()
    return found


def _safe_lines(lines: bytes) -> bytes:
    """:func:`safe_json` of many lines, most of which have nothing that a terminal would obey."""
    if lines.isascii() and b"\x7f" not in lines:
        return lines
    return safe_json(lines.decode()).encode()


class _ArrowRows(Rows):
    """An IPC stream, a record batch for each page."""

    def __init__(self, columns: Sequence[str], types: Mapping[str, str] | None, *, messages: bool) -> None:
        _refuse_terminal("an Arrow stream")
        self._columns = columns
        self._types = types
        self._messages = messages
        self._writer: Any = None

    def write(self, rows: Sequence[Json]) -> None:
        import pyarrow as pa

        from tierlog.service.wire.arrow import answered_batch

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
