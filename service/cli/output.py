"""Rows on standard output: table, json, ndjson, csv or arrow. Rows come page by page and go out the same way."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from service.wire import Json, ndjson_line
from tiering.times import format_time

_BODY_COLUMNS = (
    "message_id", "store_id", "physical_offset", "topic", "queue_id", "queue_offset", "keys", "tag", "properties",
    "born_ms", "store_ms", "tier", "size_bytes", "body", "body_base64",
)  # fmt: skip


def chosen_format(asked: str | None) -> str:
    """What was asked for, else table on a terminal and ndjson in a pipe."""
    return asked or ("table" if sys.stdout.isatty() else "ndjson")


class Rows(ABC):
    """A writer of rows. :meth:`end` must be called; it takes what json puts beside the rows."""

    @abstractmethod
    def write(self, rows: Sequence[Json]) -> None:
        """Write some rows."""

    def end(self, **beside: object) -> None:
        """Finish."""
        sys.stdout.flush()


def messages_out(asked: str | None) -> Rows:
    """Messages in the format asked for."""
    return _writer(asked, "messages", _BODY_COLUMNS, _message_cells)


def rows_out(
    asked: str | None,
    name: str,
    columns: Sequence[str],
    cells: Callable[[Json], Json] | None = None,
    types: Mapping[str, str] | None = None,
) -> Rows:
    """Other rows: ``name`` is their member of a json document, ``cells`` makes a row of a table.

    ``types`` are those of an Arrow stream: "int", "bool", "json" (as text), else text. Without them, the values of the
    first page decide.
    """
    return _writer(asked, name, columns, cells or (lambda row: row), types)


def _writer(
    asked: str | None,
    name: str,
    columns: Sequence[str],
    cells: Callable[[Json], Json],
    types: Mapping[str, str] | None = None,
) -> Rows:
    match chosen_format(asked):
        case "json":
            return _JsonRows(name)
        case "csv":
            return _CsvRows(columns)
        case "arrow":
            return _ArrowRows(columns, types, messages=name == "messages")
        case "table":
            return _TableRows(cells)
        case _:
            return _NdjsonRows()


class _NdjsonRows(Rows):
    def write(self, rows: Sequence[Json]) -> None:
        sys.stdout.writelines(ndjson_line(row) for row in rows)
        sys.stdout.flush()


class _JsonRows(Rows):
    """One document, its rows written as they come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._written = 0

    def write(self, rows: Sequence[Json]) -> None:
        for row in rows:
            sys.stdout.write(",\n " if self._written else f'{{"{self._name}": [\n ')
            sys.stdout.write(json.dumps(row, ensure_ascii=False))
            self._written += 1

    def end(self, **beside: object) -> None:
        sys.stdout.write("\n]" if self._written else f'{{"{self._name}": []')
        for name, value in beside.items():
            sys.stdout.write(f',\n"{name}": {json.dumps(value, ensure_ascii=False)}')
        sys.stdout.write("}\n")
        super().end()


class _CsvRows(Rows):
    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow(columns)

    def write(self, rows: Sequence[Json]) -> None:
        self._writer.writerows([_csv_cell(row.get(name), name) for name in self._columns] for row in rows)


def _csv_cell(value: Any, name: str) -> object:
    if name == "keys" and isinstance(value, list):  # a key has no space
        return " ".join(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


class _TableRows(Rows):
    def __init__(self, cells: Callable[[Json], Json]) -> None:
        self._cells = cells
        self._headed = False

    def write(self, rows: Sequence[Json]) -> None:
        if not rows:
            return
        from tabulate import tabulate

        cells = [self._cells(row) for row in rows]
        head = [] if self._headed else list(cells[0])
        text = tabulate([list(row.values()) for row in cells], head, tablefmt="simple", disable_numparse=True)
        print(text if not self._headed else "\n".join(text.split("\n")[1:-1]), flush=True)
        self._headed = True


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

        from service.arrow_rows import message_batch

        if self._messages:
            batch = message_batch(rows)
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
        return _csv_cell(value, name)

    def end(self, **beside: object) -> None:
        if self._writer is None:
            self.write([])
        self._writer.close()
        sys.stdout.buffer.flush()


def _message_cells(row: Json) -> Json:
    """A message in one line of the terminal."""
    keys = row["keys"]
    return {
        "stored (UTC)": format_time(row["store_ms"]),
        "born (UTC)": format_time(row["born_ms"]),
        "tier": row["tier"],
        "queue:offset": f"{row['queue_id']}:{row['queue_offset']}",
        "keys": _short(" ".join(keys[:2])) + (f" +{len(keys) - 2}" if len(keys) > 2 else ""),
        "body": _short(row.get("body") or f"base64: {row.get('body_base64')}"),
    }


def _short(text: str) -> str:
    """The start of a body, without anything that a terminal would obey."""
    room = max(40, shutil.get_terminal_size().columns - 100)
    shown = "".join(letter if letter.isprintable() else "·" for letter in text[:room])
    return shown + ("…" if len(text) > room else "")
