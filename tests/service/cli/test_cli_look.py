"""What people see: widths, colours, times and bytes of tables, and messages as a whole."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.cells import cell_len

from tests.service.cli.test_cli import MESSAGE, RAW
from tierlog.service.cli.output import full_lines, messages_out, print_document
from tierlog.service.cli.output_style import OutputStyle, printable, readable_bytes, wants_color
from tierlog.service.cli.table import Column, Table
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.times import format_time

WIDE: Json = {**MESSAGE, "topic": "orders", "keys": ["k" * 30], "body": "漢字" * 200}


def shown(rows: list[Json], width: int, monkeypatch: pytest.MonkeyPatch, **how: bool) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    written = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", written)
        out = messages_out(OutputStyle("table", **how))
        for row in rows:
            out.write([row])
        out.end()
    return written.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 160, 300])
def test_a_line_fits_the_width_and_neither_time_nor_key_is_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown([WIDE, {**WIDE, "body": "short"}], width, monkeypatch)
    assert all(cell_len(line) <= width for line in lines)
    assert all(format_time(WIDE["store_ms"]) in line and "k" * 30 in line for line in lines[1:])
    assert lines[1].endswith("…")
    assert lines[2].endswith("short")


@pytest.mark.parametrize("width", [20, 40, 60])
def test_on_a_narrow_terminal_lines_grow_before_a_key_is_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (head, line) = shown([WIDE], width, monkeypatch)
    assert head.split() == ["stored", "(UTC)", "key", "body"]
    assert "k" * 30 in line


def test_a_key_that_is_longer_than_any_column_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "k" * 500 in shown([{**WIDE, "keys": ["k" * 500]}], 80, monkeypatch)[1]


def test_columns_of_later_pages_stand_below_those_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    head, first, second = shown([MESSAGE, {**MESSAGE, "queue_offset": 9}], 120, monkeypatch)
    assert head.index("body") == first.index("a ") == second.index("a ")


def test_colours_are_those_of_the_tier_and_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shown([MESSAGE], 120, monkeypatch)
    colored = shown([MESSAGE, {**MESSAGE, "tier": "hot"}], 120, monkeypatch, is_colored=True)
    assert "\x1b" not in "".join(plain)
    assert "\x1b[36mcold\x1b[0m" in colored[1]
    assert "\x1b[33mhot\x1b[0m" in colored[2]


def test_no_color_and_a_pipe_switch_colours_off_and_the_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert wants_color(Terminal())
    assert not wants_color(io.StringIO())
    assert wants_color(io.StringIO(), "always")
    assert not wants_color(Terminal(), "never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Terminal())
    assert wants_color(Terminal(), "always")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Terminal())


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "\r", "\u202eabc", "\x9b31m", "tab\t", "\x00"])
def test_nothing_that_a_terminal_obeys_is_shown(text: str) -> None:
    assert printable(text).isprintable()
    assert len(printable(text)) == len(text)
    everywhere: Json = {**MESSAGE, "keys": [text], "body": text, "tag": text, "properties": {text: text}}
    assert all(line.isprintable() for line in full_lines([everywhere], OutputStyle("table")))


def test_a_whole_message_has_every_field_and_json_with_an_indent() -> None:
    lines = full_lines([{**MESSAGE, "body": '{"a":[1,"ü"]}', "tag": "T"}, RAW], OutputStyle("table"))
    text = "\n".join(lines)
    assert '{\n  "a": [\n    1,\n    "ü"\n  ]\n}' in text
    assert "base64: /w==" in lines
    assert "store:          2026-03-01T06:00:00.345Z" in lines
    assert "keys:           k1 k2" in lines
    assert "tag:            T" in lines


def test_the_key_that_was_asked_for_is_the_one_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = messages_out(OutputStyle("table"), "k2")
    out.write([MESSAGE])
    assert "k2 +1" in capsys.readouterr().out


def test_times_are_local_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        head, line = shown([MESSAGE], 120, monkeypatch, is_local_time=True)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert head.startswith("stored (local)")
    assert line.startswith("2026-03-01T11:30:00.345+05:30")


def test_numbers_stand_right_and_words_left() -> None:
    table = Table([Column("name"), Column("bytes", is_number=True)], width=80, is_colored=False)
    assert table.lines([{"name": "a", "bytes": 5}, {"name": "bb", "bytes": 5000}]) == [
        "name  bytes", "a         5", "bb     5000",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, None), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_048_575, "1.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_bytes_have_a_unit_for_people(count: int | None, text: str | None) -> None:
    assert readable_bytes(count) == text


def test_a_document_is_lines_for_people_and_exact_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    document: Json = {
        "bytes": 1_500_000,
        "at_ms": 1_772_344_800_345,
        "took_ms": 7,
        "a": {"b": None},
        "ok": True,
        "l": [0],
        "none": [],
        "names": ["a", "b, c"],
    }
    print_document(document, OutputStyle("table"))
    assert capsys.readouterr().out.splitlines() == [
        "bytes    1,500,000 (1.4 MiB)",
        "at_ms    2026-03-01T06:00:00.345Z",
        "took_ms  7",
        "a.b      -",
        "ok       yes",
        "l        [0]",
        "none     []",
        'names    ["a", "b, c"]',
    ]
    for form, lines in (("json", 16), ("ndjson", 1)):
        print_document(document, OutputStyle(form))
        out = capsys.readouterr().out
        assert json.loads(out) == document
        assert (form == "ndjson") == (out.count("\n") == 1), lines
