"""The byte tables in docstrings say what the code does."""

from __future__ import annotations

import re
import struct
from types import ModuleType

import pytest

from tierlog.index.format import key_filter
from tierlog.index.objects import pages
from tierlog.tiering.format import checkpoint, filler, queue_rows, queue_unit, record, section

_CODES = {"b": 1, "h": 2, "i": 4, "I": 4, "q": 8, "Q": 8}
_SIZES = {"int8": 1, "int16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}


def rows_of(module: ModuleType) -> list[list[str]]:
    """Cells of the table: offset, size, type, field."""
    assert module.__doc__ is not None
    lines = module.__doc__.splitlines()
    rulers = [number for number, line in enumerate(lines) if re.fullmatch(r"=+( +=+)+", line)]
    starts = [match.start() for match in re.finditer("=+", lines[rulers[0]])]
    table = lines[rulers[1] + 1 : rulers[2]]
    spans = [slice(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return [[line[span].strip() for span in spans] for line in table]


def fields_of(format_text: str) -> list[int]:
    """Sizes of a struct's fields."""
    sizes = []
    for count, code in re.findall(r"(\d*)([a-zA-Z])", format_text):
        sizes += [int(count)] if code == "s" else [_CODES[code]] * int(count or 1)
    return sizes


LAYOUTS = {
    queue_unit: fields_of(queue_unit.UNIT.format),
    checkpoint: fields_of(checkpoint._FIELDS.format),
    section: fields_of(section.HEADER.format),
    key_filter: fields_of(key_filter._TABLE.format),
    queue_rows: [queue_rows.QUEUE_ROW[name].itemsize for name in queue_rows.QUEUE_ROW.names or ()],
}


@pytest.mark.parametrize("module", LAYOUTS, ids=lambda module: module.__name__)
def test_table_equals_struct(module: ModuleType) -> None:
    rows = rows_of(module)
    sizes = LAYOUTS[module]
    assert [int(row[1]) for row in rows] == sizes
    assert [int(row[0]) for row in rows] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert all(_SIZES.get(row[2], int(row[1])) == int(row[1]) for row in rows)
    assert module.__doc__ is not None
    total = re.search(r"^Total (\d+)\.", module.__doc__, re.MULTILINE)
    assert total is not None
    assert int(total[1]) == sum(sizes)


def test_field_names() -> None:
    assert [row[3] for row in rows_of(queue_unit)] == list(queue_unit.QueueUnit.__slots__)
    assert [row[3] for row in rows_of(checkpoint)] == list(checkpoint.Checkpoint.__slots__)
    assert [row[3].split()[0] for row in rows_of(queue_rows)] == list(queue_rows.QUEUE_ROW.names or ())


def test_filler_table_equals_struct_and_record() -> None:
    rows = rows_of(filler)
    assert [int(row[0]) for row in rows] == [0, 4, 8, 12, 16, 20, 28, filler.HEAD.size]
    kept = {row[3]: row[:3] for row in rows if row[3] not in ("-", "magic")}
    assert kept == {row[3]: row[:3] for row in rows_of(record) if row[3] in kept}
    assert list(kept) == list(filler.Filler.__slots__)


def test_page_directory_table() -> None:
    sizes = [*fields_of(pages._PREAMBLE.format), pages.PAGE_ROW.itemsize]
    rows = [row for row in rows_of(pages) if row[0]]
    assert [int(row[1]) for row in rows] == sizes
    assert [int(row[0]) for row in rows] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert all(_SIZES.get(row[2], int(row[1])) == int(row[1]) for row in rows)


def test_record_table() -> None:
    rows = rows_of(record)
    fixed = [row for row in rows if row[0].isdigit()]
    at = 0
    for row in fixed:
        assert int(row[0]) == at, row
        at += int(row[1]) if row[1].isdigit() else 0
    assert struct.calcsize(record._HEAD.format) == 48 == int(fixed[-1][0])
    assert [row[3] for row in rows[:9]] == [
        "size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_ms",
    ]  # fmt: skip
    numbers = {row[3]: row[0] for row in rows}
    assert [numbers[name] for name in ("store_ms", "reconsume_times", "body")] == ["48+b", "56+b+s", "72+b+s"]
