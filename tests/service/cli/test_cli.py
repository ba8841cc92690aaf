"""The command line before it opens anything: help, flags, exit codes, and rows in every format."""

from __future__ import annotations

import argparse
import csv
import http.client
import io
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.stores.followed import SEGMENT_BYTES
from tests.support.stores.irregular import followed_archive, irregular_log, lose, sent
from tierlog.index.search.query import Query, encode_cursor
from tierlog.service.cli.commands import query
from tierlog.service.cli.output import flat, messages_out, rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.remote import RemoteTarget
from tierlog.service.cli.signals import Stopped, run_stoppable
from tierlog.service.exit_codes import DONE, FAILED, INCOMPLETE, NOTHING, WRONG_USE, exit_code
from tierlog.service.main import build_parser, main
from tierlog.service.wire.documents import Json
from tierlog.tiering.base import errors
from tierlog.tiering.base.types import Order, TimeAxis

COMMANDS = ("serve", "load", "query", "tail", "topics", "files", "stats", "archive", "flush", "check", "dump")
MESSAGE: Json = {
    "message_id": "7F", "store_id": "s", "physical_offset": 5, "topic": "t", "queue_id": 0, "queue_offset": 1,
    "keys": ["k1", "k2"], "tag": "", "properties": {"p": "v,\n"}, "born_ms": 0, "store_ms": 1_772_344_800_345,
    "tier": "cold", "size_bytes": 99, "body": 'a "b"\nü',
}  # fmt: skip
CURSOR = encode_cursor((5, "s", 5), TimeAxis.STORE, Order.NEWEST)
RAW: Json = {**{name: value for name, value in MESSAGE.items() if name != "body"}, "body_base64": "/w=="}


def test_help_loads_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys\nfrom tierlog.service.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(set(sys.modules) & {'numba', 'numpy', 'pyarrow', 'fastapi', 'uvicorn', 'zstandard', 'boto3', "
        "'pydantic', 'rich', 'shtab'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(command in done.stdout for command in COMMANDS)


def test_a_command_that_calls_no_kernel_does_not_load_the_compiler(tmp_path: Path) -> None:
    """numba takes a quarter of a second; a module of kernels declares them without it."""
    (tmp_path / "cold").mkdir()
    file = tmp_path / "00000000000000000000"
    file.write_bytes(bytes(4096))
    code = (
        "import sys\nfrom tierlog.service.main import main\n"
        f"main(['topics', '--cold', 'file://{tmp_path}/cold'])\n"
        f"main(['query', 't', '--key', 'k', '--cold', 'file://{tmp_path}/cold'])\n"
        f"main(['dump', '{file}', '--as', 'commit-log'])\n"
        "import tierlog.service.engine.store, tierlog.service.api.application.process\n"
        "print(sorted(set(sys.modules) & {'numba', 'llvmlite.binding', 'boto3'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_store_that_was_closed_opens_and_answers_without_the_compiler(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"id={number % 50} line {number}\n" for number in range(500)))
    store = ["--root", str(tmp_path / "store"), "--config", str(tmp_path / "config")]
    (tmp_path / "config").write_text("[hot]\nsegment_bytes = 1048576\n")
    code = (
        "import sys\nfrom tierlog.service.main import main\n"
        f"store = {store}\n"
        "main(['topics', *store, '--read-only'])\n"
        "main(['topics', *store])\n"
        "main(['query', 'app', '--key', '7', '--limit', '5', *store])\n"
        "main(['query', 'app', '--limit', '5', '--order', 'oldest', *store])\n"
        "print('numba' in sys.modules)"
    )
    assert main(["load", str(lines), "--topic", "app", "--key", r"id=(\d+)", *store]) == DONE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *answers, is_loaded = done.stdout.splitlines()
    assert is_loaded == "False"
    found = [json.loads(answer) for answer in answers]
    assert [each["messages"] for each in found[:2]] == [500, 500]
    assert [each["body"].split()[0] for each in found[2:7]] == ["id=7"] * 5
    assert len(found) == 12


_BEGIN = (
    "import sys, threading\nfrom tierlog.service.main import main\n"
    "from tierlog.tiering.kernels.checksum import crc32_of\n"
    "stop = threading.Event()\nother = threading.Thread(target=stop.wait)\n"
)
_COMMAND = "sys.argv = ['tierlog', '--version']\ntry:\n    main()\nexcept SystemExit:\n    pass\n"


def _cffi_of_numba(before: str) -> list[str]:
    end = (
        "crc32_of(b'abc')\nprint('cffi' in sys.modules)\nstop.set()\nimport cffi, yaml\nprint(cffi.FFI, yaml.load)\n"
        "from numba.core.typing import cffi_utils\nprint(cffi_utils.SUPPORTED)"
    )
    done = subprocess.run([sys.executable, "-c", _BEGIN + before + end], capture_output=True, text=True, check=True)
    is_loaded, _packages, is_supported = done.stdout.splitlines()[-3:]
    return [is_loaded, is_supported]


def test_a_command_loads_nothing_of_numba_that_no_kernel_of_ours_uses() -> None:
    """The packages are there for whoever else wants them, and are not kept from a command with other threads."""
    assert _cffi_of_numba(_COMMAND) == ["False", "False"]
    assert _cffi_of_numba(_COMMAND + "other.start()\n") == ["True", "True"]


def test_a_program_that_calls_kernels_may_have_its_own_that_call_c() -> None:
    assert _cffi_of_numba("") == ["True", "True"]
    assert _cffi_of_numba("try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n") == ["True", "True"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_names_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([command, "--help"])
    assert ended.value.code == 0
    assert "exit codes: 0 done" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nope"],
        ["query"],
        ["query", "t", "--lim", "3"],
        ["query", "t", "--limit", "x", "--root", "."],
        ["query", "t", "--order", "sideways", "--root", "."],
        ["load", "f", "--root", "."],
        ["archive", "--all", "--until", "5", "--root", "."],
        ["tail", "t", "--offset", "3", "--from", "5", "--root", "."],
    ],
)
def test_wrong_flags_end_with_2(argv: Sequence[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == WRONG_USE


@pytest.mark.parametrize(
    "argv",
    [
        ["query", "t"],
        ["query", "t", "--root", "a", "--url", "http://127.0.0.1:1"],
        ["load", "-", "--topic", "t", "--cold", "file:///a"],
        ["topics", "--url", "ftp://x"],
        ["topics", "--url", "http://127.0.0.1:port"],
        ["tail", "t", "--queue", "-1", "--url", "http://127.0.0.1:1"],
        ["tail", "t", "--limit", "0", "--url", "http://127.0.0.1:1"],
        ["tail", "t", "--follow", "--root", "."],
    ],
)
def test_a_target_that_makes_no_sense_ends_with_2(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == WRONG_USE
    assert capsys.readouterr().err.startswith("tierlog: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError("x"), WRONG_USE),
        (errors.MessageTooLargeError("x"), WRONG_USE),
        (errors.TopicNotFoundError("x"), WRONG_USE),
        (errors.StoreLockedError("x"), WRONG_USE),
        (errors.StoreMismatchError("x"), WRONG_USE),
        (errors.MessageNotFoundError("x"), NOTHING),
        (errors.ObjectNotFoundError("x"), FAILED),
        (errors.CorruptionError("x"), FAILED),
        (errors.ObjectStoreUnavailableError("x"), FAILED),
        (errors.FencedError("x"), FAILED),
        (errors.DiskFullError("x"), FAILED),
    ],
)
def test_exit_codes_tell_wrong_use_from_failure(error: errors.StoreError, code: int) -> None:
    assert exit_code(error) == code


def test_a_service_that_is_not_there_is_a_failure_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "--url", "http://127.0.0.1:1"]) == FAILED
    message = capsys.readouterr().err
    assert "127.0.0.1:1" in message
    assert "tierlog serve" in message
    assert message.count("\n") == 1


def test_json_is_one_document_with_what_belongs_beside_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[list[list[Json]]] = [[], [[]], [[MESSAGE], [RAW, MESSAGE]]]
    for pages in cases:
        out = messages_out(OutputStyle("json"))
        for page in pages:
            out.write(page)
        out.end(next_cursor=None)
        rows = [row for page in pages for row in page]
        assert json.loads(capsys.readouterr().out) == {"messages": rows, "next_cursor": None}


def test_ndjson_is_a_row_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = messages_out(OutputStyle("ndjson"))
    out.write([MESSAGE, RAW])
    out.end(next_cursor=None)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [MESSAGE, RAW]


def test_csv_has_the_body_as_text_and_survives_quotes_and_line_ends(capsys: pytest.CaptureFixture[str]) -> None:
    out = messages_out(OutputStyle("csv"))
    out.write([MESSAGE])
    out.write([RAW])
    out.end()
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["body"], first["keys"], json.loads(first["properties"])) == (MESSAGE["body"], "k1 k2", {"p": "v,\n"})
    assert (second["body"], second["body_base64"]) == ("", "/w==")


@pytest.mark.parametrize("rows", [[], [MESSAGE, RAW]])
def test_arrow_is_a_stream_with_the_same_schema_with_and_without_rows(
    capfdbinary: pytest.CaptureFixture[bytes], rows: list[Json]
) -> None:
    out = messages_out(OutputStyle("arrow"))
    if rows:
        out.write(rows)
    out.end()
    table = pa.ipc.open_stream(capfdbinary.readouterr().out).read_all()
    assert table.schema.field("body").type == pa.binary()
    assert table["body"].to_pylist() == ([] if not rows else [MESSAGE["body"].encode(), b"\xff"])


def test_a_table_obeys_no_control_character_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    out = messages_out(OutputStyle("table"))
    out.write([{**MESSAGE, "body": "a\x1b[2Jb", "keys": ["k\x1b[2J"]}])
    out.write([MESSAGE])
    out.end()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("stored (UTC)") == 1
    assert "2026-03-01T06:00:00.345Z" in shown


def test_rows_of_any_kind_have_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out = rows_out(OutputStyle("csv"), "files", columns=("name", "bytes"))
    out.write([{"name": "a", "bytes": None, "more": 1}])
    out.end()
    assert capsys.readouterr().out == "name,bytes\na,\n"


def page(found: int, cursor: str | None, **coverage: object) -> Json:
    return {
        "messages": [MESSAGE] * found,
        "next_cursor": cursor,
        "coverage": {
            "complete": True, "cut_by": None, "failures": [], "round_trips": 2, "waves": None, "requests": 3,
            "bytes": 7, "cost_usd": None,
            "stores": [{"store_id": "s", "hot": None, "cold": {"from_ms": 5, "to_ms": 9}, "error": None}],
            "index_files": {"considered": 1, "searched": 1}, "segments": {"read": 1},
            **coverage,
        },
    }  # fmt: skip


class Pages:
    """A target that answers with prepared pages."""

    def __init__(self, *pages: Json) -> None:
        self.pages = list(pages)

    def query(self, question: object) -> Json:
        return self.pages.pop(0)


@pytest.mark.parametrize(
    ("pages", "flags", "code"),
    [
        ([page(1, None)], [], DONE),
        ([page(0, None)], [], NOTHING),
        ([page(1, CURSOR, cut_by="limit")], [], DONE),
        ([page(1, CURSOR, cut_by="budget", complete=False)], [], INCOMPLETE),
        ([page(0, None, complete=False)], [], INCOMPLETE),
        ([page(1, CURSOR, complete=False), page(1, None)], ["--all", "--format", "json"], INCOMPLETE),
        ([page(1, CURSOR, cut_by="limit"), page(1, None)], ["--all", "--format", "json"], DONE),
    ],
)
def test_an_answer_is_incomplete_for_any_reason_but_the_limit(pages: list[Json], flags: list[str], code: int) -> None:
    arguments = build_parser().parse_args(["query", "t", "--format", "ndjson", *flags])
    assert query._show(Pages(*pages), arguments) == code  # type: ignore[arg-type]


def test_coverage_of_all_pages_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    other = [{"store_id": "s", "hot": {"from_ms": 1, "to_ms": 2}, "cold": {"from_ms": 3, "to_ms": 6}, "error": "late"}]
    arguments = argparse.Namespace(**vars(build_parser().parse_args(["query", "t", "--format", "json", "--all"])))
    query._show(Pages(page(1, CURSOR, cut_by="limit"), page(2, None, stores=other)), arguments)  # type: ignore[arg-type]
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["messages"]) == 3
    assert answer["next_cursor"] is None
    coverage = answer["coverage"]
    assert (coverage["requests"], coverage["bytes"], coverage["segments"]) == (6, 14, {"read": 2})
    assert (coverage["complete"], coverage["cut_by"], coverage["waves"]) == (True, None, None)
    assert coverage["stores"] == [
        {
            "store_id": "s", "hot": {"from_ms": 1, "to_ms": 2}, "cold": {"from_ms": 3, "to_ms": 9}, "error": "late",
        }
    ]  # fmt: skip


def estimated() -> Json:
    found = page(0, None, complete=False, cut_by="dry_run")
    found["coverage"] |= {"index_files": {"considered": 9, "filtered": 5}}
    found["estimate"] = {
        "requests": {"least": 1, "likely": 4, "most": 8000}, "bytes": 1234, "round_trips": 2, "is_whole": True,
        "cost_usd": {"least": 4e-7, "likely": 1.6e-6, "most": 0.0032},
        "index_objects": {"asked": 4, "filters_resident": 3, "directories_resident": 2},
        "segments": {"by_hits": 0, "by_time": 1}, "notes": ["something to know"],
    }  # fmt: skip
    return found


@pytest.mark.parametrize("form", ["table", "json", "ndjson", "csv"])
def test_a_dry_run_shows_the_estimate_and_is_0_though_nothing_was_searched(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = build_parser().parse_args(["query", "t", "--dry-run", "--all", "--format", form])
    assert query._show(Pages(estimated()), arguments) == DONE  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    if form == "table":
        assert "4 likely, 1 at least, 8,000 at most" in out
        assert "1,234 bytes, 2 round trips, 0.0000016 USD" in out
        assert "something to know" in out
    else:
        shown = json.loads(err if form == "csv" else out)
        assert out.count("message_id,") == (form == "csv"), "one line of names"
        assert shown["estimate"] == estimated()["estimate"]
        assert shown["coverage"]["cut_by"] == "dry_run"


def test_a_table_with_coverage_says_whether_it_is_complete_and_what_it_cost_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = build_parser().parse_args(["query", "t", "--coverage", "--format", "table"])
    found = page(1, None, manifest_requests=1, cost_usd=1.2e-6, round_trips=2, bytes=70_000)
    query._show(Pages(found), arguments)  # type: ignore[arg-type]
    *_, line = capsys.readouterr().out.splitlines()
    assert line == (
        "complete; 3 requests, 1 of them for the manifest; 70,000 bytes, 0.0000012 USD, 2 round trips; "
        "index files: 1 considered, 1 searched"
    )


def test_a_line_of_coverage_says_what_is_missing_and_how_much_was_examined(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = build_parser().parse_args(["query", "t", "--coverage", "--format", "table", "--where", "a=b"])
    found = page(1, CURSOR, complete=False, cut_by="timeout", manifest_requests=1, cost_usd=0.0, round_trips=2)
    found["coverage"] |= {"examined_to_ms": 5, "messages": {"read": 70_000, "matched": 1}}
    assert query._show(Pages(found), arguments) == INCOMPLETE  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    *_, line = out.splitlines()
    assert line.startswith("incomplete: cut by timeout; 3 requests")
    assert line.endswith("70,000 messages examined")
    assert f"go on with --cursor {CURSOR}" in err


def test_all_goes_on_after_a_time_out_that_left_a_cursor_but_not_after_one_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def cut(by: str) -> Json:
        found = page(1, CURSOR, complete=False, cut_by=by)
        found["coverage"] |= {"examined_to_ms": 5}
        return found

    for flags, by, code, count in (
        ([], "timeout", DONE, 3),
        (["--timeout", "9"], "timeout", INCOMPLETE, 1),
        ([], "budget", INCOMPLETE, 1),
    ):
        arguments = build_parser().parse_args(["query", "t", "--all", "--format", "json", "--tag", "x", *flags])
        assert query._show(Pages(cut(by), page(2, None)), arguments) == code  # type: ignore[arg-type]
        answer = json.loads(capsys.readouterr().out)
        assert len(answer["messages"]) == count
        assert answer["coverage"]["complete"] == (code == DONE)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_hint_to_the_other_time_is_a_sentence_with_the_flag_and_the_code_stays_1(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = build_parser().parse_args(["query", "t", "--from", "1", "--format", form])
    found = page(0, None) | {"hint": {"time": "born", "detail": "nothing was stored, but something was born"}}
    assert query._show(Pages(found), arguments) == NOTHING  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    assert "nothing was stored, but something was born: add --time born" in err
    assert form == "table" or json.loads(out)["hint"] == found["hint"]


@pytest.mark.parametrize(("text", "ms"), [("2", 2000), ("0.25", 250), ("500ms", 500), ("2m", 120_000)])
def test_a_time_out_is_given_in_seconds(text: str, ms: int) -> None:
    assert build_parser().parse_args(["query", "t", "--timeout", text]).timeout == ms


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_time_out_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["query", "t", "--timeout", text])
    assert f"--timeout: {text!r} is no number of seconds from 0.001 to 86400" in capsys.readouterr().err


def test_numbers_inside_numbers_have_lines_of_their_own_in_a_table() -> None:
    assert list(flat({"a": 1, "b": {"c": {"d": 2}, "e": None}})) == [("a", 1), ("b.c.d", 2), ("b.e", None)]


def test_work_that_hangs_does_not_hold_up_a_stop() -> None:
    asked, released = threading.Event(), threading.Event()
    asked.set()
    with pytest.raises(Stopped):
        run_stoppable(released.wait, asked)
    released.set()


def test_work_in_a_thread_returns_and_raises_as_if_it_were_not() -> None:
    def fail() -> None:
        raise errors.FencedError("x")

    assert run_stoppable(lambda: 7, threading.Event()) == 7
    with pytest.raises(errors.FencedError):
        run_stoppable(fail, threading.Event())


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "http://127.0.0.1:8080/", "https://host/below/"])
def test_the_url_of_a_service_is_taken_in_every_usual_form(url: str) -> None:
    RemoteTarget(url)


def test_an_answer_is_waited_for_longer_than_the_query_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Refusing(http.client.HTTPConnection):
        def connect(self) -> None:
            assert self.timeout is not None
            waits.append(self.timeout)
            raise OSError("refused")

    monkeypatch.setattr(http.client, "HTTPConnection", Refusing)
    for timeout_ms in (None, 7_200_000):
        with pytest.raises(errors.UnavailableError):
            RemoteTarget("http://somewhere").query(Query("t", timeout_ms=timeout_ms))
    assert 0 < waits[0] < 7200 < waits[1]


def test_stats_names_what_a_follower_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = irregular_log(sent("orders", 0, range(200)))
    target = ["stats", "--root", str(tmp_path / "s"), "--read-only", "--format"]
    with followed_archive(tmp_path, log, SEGMENT_BYTES) as store:
        store.archive_all()
    assert main([*target, "table"]) == DONE
    assert "log [" not in capsys.readouterr().out
    lose(tmp_path / "s", 3 * SEGMENT_BYTES)
    assert main([*target, "table"]) == DONE
    assert f"log [{SEGMENT_BYTES}, {3 * SEGMENT_BYTES})" in capsys.readouterr().out
    assert main([*target, "json"]) == DONE
    (lost,) = json.loads(capsys.readouterr().out)["lost"]
    assert (lost["first"], lost["next"]) == (SEGMENT_BYTES, 3 * SEGMENT_BYTES)
