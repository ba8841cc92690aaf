"""``tierlog dump``: one file or object in readable form."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import add_format
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import rows_out
from tierlog.service.cli.output_style import OutputStyle, printable
from tierlog.service.cli.signals import interruptible
from tierlog.service.dump.kinds import KINDS, PARTS
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import format_time

if TYPE_CHECKING:
    from tierlog.service.dump.result import Dump, DumpOptions

HELP = "show any file or object, of tierlog or of RocketMQ, in readable form"
EXAMPLES = (
    (
        "a commit log's records",
        "tierlog dump ./store/commitlog/00000000000000000000 --limit 10",
    ),
    (
        "what the archive of a store holds",
        "tierlog dump s3://bucket/prefix/store/head --format json",
    ),
    (
        "what a broker needs that takes a store over",
        "tierlog dump ./store --rocketmq ./store/config",
    ),
)
_PAGE_ROWS = 500
_CELL_LETTERS = 60
#: Columns that are cut to the width of the terminal.
_TEXTS = ("body", "text", "properties", "value")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to show and how."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = "\n".join(f"  {kind:<16} {how}" for kind, how in KINDS.items())
    parts = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in PARTS.items())
    parser.description = f"{HELP}.\n\nKinds, and how each is recognised, by content before place and name:\n{kinds}"
    parser.add_argument("target", metavar="FILE|OBJECT", help="a path, file:///path, or s3://bucket/key")
    parser.add_argument(
        "--as", dest="kind", choices=tuple(KINDS), metavar="KIND", help="what it is, if that is not told"
    )
    parser.add_argument("--part", metavar="PART", help=f"which rows ({parts}); the first named unless told")
    parser.add_argument("--records", action="store_true", help="the same as --part records")
    parser.add_argument(
        "--from", dest="start", type=_number, metavar="N",
        help="first row: physical offset (log), cold offset (archived records), queue offset, item or row number",
    )  # fmt: skip
    parser.add_argument("--limit", type=_number, metavar="N", help="rows at most")
    parser.add_argument("--body-bytes", type=_number, default=256, metavar="N", help="of each body (256 unless told)")
    group = parser.add_argument_group("index files that do not say it themselves")
    group.add_argument("--slots", type=_number, metavar="N", help="hash slots")
    group.add_argument("--items", type=_number, metavar="N", help="room for items, the unused item 0 included")
    group.add_argument("--layout", choices=("tierlog", "rocketmq"), help="item layout")
    parser.add_argument(
        "--rocketmq", type=Path, metavar="OUT",
        help=(
            "write an index file or object of ours to the new file OUT as RocketMQ's tiered store writes it; of a "
            "store's folder, its topics, groups and offsets to the new folder OUT, as the config of a broker"
        ),
    )  # fmt: skip
    add_format(parser)


def _number(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 <= value < 1 << 62:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number from 0 to 2^62")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 1 with findings, one line each on standard error; 2 if it cannot be told what it is."""
    with interruptible():
        dump = _open(arguments)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        _show(dump, OutputStyle.of(arguments))
    for finding in dump.findings:
        say(f"{arguments.target}: {finding}")
    if dump.unsaid:
        say(f"{arguments.target}: {dump.unsaid} more findings")
    return NOTHING if dump.findings else DONE


def _open(arguments: argparse.Namespace) -> Dump:
    from tierlog.service.dump.detection import dump
    from tierlog.service.dump.export import export
    from tierlog.service.dump.source import open_source

    if arguments.rocketmq is not None and Path(arguments.target).is_dir():
        from tierlog.service.dump.broker_config import export_config

        return export_config(Path(arguments.target).absolute(), arguments.rocketmq.absolute())
    source = open_source(arguments.target)
    if arguments.rocketmq is not None:
        return export(source, arguments.rocketmq.absolute(), arguments.kind)
    return dump(source, _options(arguments), arguments.kind)


def _options(arguments: argparse.Namespace) -> DumpOptions:
    from tierlog.service.dump.result import DumpOptions

    if arguments.records and arguments.part not in (None, "records"):
        raise InvalidRequestError("--records is --part records", hint="give one of them")
    return DumpOptions(
        start=arguments.start, limit=arguments.limit, body_bytes=arguments.body_bytes,
        part="records" if arguments.records else arguments.part, slots=arguments.slots, items=arguments.items,
        layout=arguments.layout,
    )  # fmt: skip


def _show(dump: Dump, look: OutputStyle) -> None:
    from tierlog.service.cli.table import Column

    chosen = look.form
    pages = _pages(dump)
    if chosen == "table":
        _print_values({"kind": dump.kind, **dump.head})
    elif not dump.columns:  # the head says all
        dump.head = {"kind": dump.kind, **dump.head}
        dump.columns = {name: _type(value) for name, value in dump.head.items()}
        pages = iter([[dump.head]])
    shown = [
        Column(name, is_text=name in _TEXTS, is_number=dump.columns.get(name) == "int" and not name.endswith("_ms"))
        for name in dump.shown or dump.columns
    ]
    out = rows_out(
        look,
        dump.name,
        columns=tuple(dump.columns),
        shown=shown,
        cells=lambda row: _cells(dump, row),
        types=dump.columns,
    )
    for page in pages:
        out.write(page)
    out.end(head={"kind": dump.kind, **dump.head, **dump.end}, findings=dump.findings)
    if chosen == "table" and dump.end:
        _print_values(dump.end)


def _pages(dump: Dump) -> Iterator[list[Json]]:
    rows = dump.read_rows()
    while page := list(islice(rows, _PAGE_ROWS)):
        yield page


def _type(value: object) -> str:
    if value is None or isinstance(value, str):
        return "text"
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "json"


def _print_values(values: Json) -> None:
    width = max(map(len, values), default=0)
    for name, value in values.items():
        print(f"{name + ':':<{width + 1}} {_cell(name, value)}")
    print(flush=True)


def _cells(dump: Dump, row: Json) -> Json:
    """Returns a row of a table."""
    return {name: _short(_cell(name, row.get(name), is_in_row=True)) for name in dump.shown or dump.columns}


def _cell(name: str, value: object, *, is_in_row: bool = False) -> str:
    """Returns a value as one printable line; a time as such, in the head beside its number."""
    if value is None:
        return ""
    if name.endswith("_ms") and isinstance(value, int):
        shown = format_time(value)
        return shown if is_in_row or shown == str(value) else f"{value} {shown}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else str(value)
    return printable(text)


def _short(text: str) -> str:
    return text if len(text) <= _CELL_LETTERS else text[: _CELL_LETTERS - 1] + "…"
