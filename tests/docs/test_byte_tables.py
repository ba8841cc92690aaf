"""The byte tables of docs/formats say what the code does: offsets, widths, types, and names where there are names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.support.docs.pages import ROOT
from tierlog.index.format import header, key_filter, object_sections, trailer
from tierlog.index.format.layout import ROCKETMQ, TIERLOG
from tierlog.index.objects import pages
from tierlog.index.rocketmq import classic_format as classic
from tierlog.tiering.cold.reading import disk_cache
from tierlog.tiering.format import filler, queue_rows, queue_unit, record, section

_CODES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "x": 1}
_TYPES = {"int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}


@dataclass(frozen=True)
class Table:
    """A table whose first columns are offset, width and type."""

    page: str
    number: int
    rows: list[list[str]]

    @property
    def fixed(self) -> list[list[str]]:
        """The rows before the first one that has no fixed place or width."""
        kept = []
        for row in self.rows:
            if not (row[0].isdigit() and re.fullmatch(r"\d+( × \d+)?", row[1])):
                break
            kept.append(row)
        return kept

    def widths(self) -> list[int]:
        return [_width(row[1]) for row in self.fixed]


def _width(text: str) -> int:
    count, _, times = text.partition(" × ")
    return int(count) * int(times or 1)


def tables() -> list[Table]:
    found = []
    for file in sorted((ROOT / "docs" / "formats").glob("*.md")):
        text = file.read_text(encoding="utf-8")
        heads = re.finditer(r"^\| (?:row )?offset \| width \| type \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
        for number, match in enumerate(heads):
            rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in match[1].splitlines()]
            found.append(Table(file.stem, number, rows))
    return found


TABLES = {(table.page, table.number): table for table in tables()}


def fields_of(format_text: str) -> list[int]:
    """Sizes of a struct's fields, padding as a field."""
    sizes: list[int] = []
    for count, code in re.findall(r"(\d*)([a-zA-Z])", format_text):
        sizes += [int(count or 1)] if code in "sx" else [_CODES[code]] * int(count or 1)
    return sizes


#: What each table describes, as sizes of fields.
LAYOUTS = {
    ("index_files", 0): fields_of(header._HEADER.format),
    ("index_files", 1): [*fields_of(trailer._COVER.format), 4],
    ("index_files", 2): [
        sum(fields_of(trailer._COVER.format)) + 4, *fields_of(trailer._BOUNDS.format), 4, 4, len("TLIDXEND"),
    ],
    ("index_object", 0): fields_of(section.HEADER.format),
    ("index_object", 1): fields_of(pages._PREAMBLE.format),
    ("index_object", 2): [pages.PAGE_ROW[name].itemsize for name in pages.PAGE_ROW.names or ()],
    ("index_object", 3): fields_of(pages.PAGE_HEAD.format),
    ("index_object", 4): fields_of(key_filter._TABLE.format),
    ("index_object", 5): fields_of(object_sections.TAIL.format),
    ("local_files", 0): fields_of(disk_cache.HEAD.format),
    ("manifest", 0): [
        *[queue_rows.QUEUE_ROW[name].itemsize for name in (queue_rows.QUEUE_ROW.names or ())[:5]],
        sum(queue_rows.QUEUE_ROW[name].itemsize for name in (queue_rows.QUEUE_ROW.names or ())[5:]),
    ],
    ("sorted_segment", 0): fields_of(section.HEADER.format),
    ("sorted_segment", 1): [],  # every row has a width of its own
    ("sorted_segment", 2): fields_of(filler.HEAD.format),
    ("tail", 0): fields_of(section.HEADER.format),
}  # fmt: skip


def test_every_table_has_a_layout_in_the_code() -> None:
    assert set(LAYOUTS) == set(TABLES)


@pytest.mark.parametrize("key", LAYOUTS, ids=lambda key: f"{key[0]}-{key[1]}")
def test_table_equals_struct(key: tuple[str, int]) -> None:
    table, sizes = TABLES[key], LAYOUTS[key]
    assert table.widths() == sizes
    assert [int(row[0]) for row in table.fixed] == [sum(sizes[:number]) for number in range(len(sizes))]
    for row in table.rows:
        if row[2] in _TYPES and row[1].isdigit():
            assert _TYPES[row[2]] == int(row[1]), row


def test_names_are_those_of_the_code() -> None:
    names = [row[3] for row in TABLES["index_object", 2].fixed]
    assert names == list(pages.PAGE_ROW.names or ())
    rows = [name for row in TABLES["manifest", 0].fixed for name in row[3].split(", ")]
    assert rows == list(queue_rows.QUEUE_ROW.names or ())
    assert [row[3] for row in TABLES["sorted_segment", 2].fixed if row[2] and row[3] != "magic"] == list(
        filler.Filler.__slots__
    )


def test_items_of_index_files() -> None:
    text = (ROOT / "docs" / "formats" / "index_files.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\d) \| (\w+) \| (\d+|–) \| (\d+) \|", text, re.MULTILINE)
    for layout, column in ((ROCKETMQ, 3), (TIERLOG, 4)):
        of_layout = [row for row in rows if row[column] != "–"]
        assert [row[0] for row in of_layout] == list(layout.fields)
        assert [int(row[1]) for row in of_layout] == fields_of(layout._chained_struct.format)
        at = [sum(int(row[1]) for row in of_layout[:number]) for number in range(len(of_layout))]
        assert [int(row[column]) for row in of_layout] == at
        assert f"**{layout.chained_bytes}**" in text


def test_sizes_that_pages_name_in_words() -> None:
    pages = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.md"))
    assert f"{section.HEADER.size}-byte header" in pages
    assert f"queue unit {queue_unit.UNIT.size} bytes" in pages
    assert f"| *r* | {record.FIXED_BYTES_V1} + body" in pages
    assert classic._HEADER.size == 40
    assert classic.ITEM.size == classic.ITEM_DTYPE.itemsize == 20
