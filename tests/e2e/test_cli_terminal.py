"""The program in a (pseudo) terminal and in a pipe: tables, hints, progress, and none of it where a program reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.conftest import ROOT
from tests.support.processes.shell import TINY, served
from tests.support.processes.terminal import in_terminal
from tierlog.service.exit_codes import DONE, NOTHING, WRONG_USE
from tierlog.service.main import main


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made_store(tmp_path_factory.mktemp("terminal"))


def made_store(folder: Path) -> str:
    """The directory of a store with 600 messages of topic ``orders`` under seven keys."""
    file = folder / "some.log"
    file.write_text("".join(f"k{number % 7} 漢字 \x1b[2J {'x' * 200} {number}\n" for number in range(600)))
    store = str(folder / "store")
    cold = f"file://{folder}/cold"
    assert (
        main(["load", str(file), "--topic", "orders", "--key", r"k\d", "--root", store, "--cold", cold, *TINY]) == DONE
    )
    return store


def test_a_query_is_a_table_of_the_width_of_the_terminal(root: str) -> None:
    columns = 90
    seen = in_terminal("query", "orders", "--key", "k3", "--limit", "5", "--root", root, "--read-only", columns=columns)
    assert seen.code == DONE
    head, *rows, note = seen.lines
    assert head.startswith("stored (UTC)")
    assert len(rows) == 5
    assert all(cell_len(row) <= columns for row in rows)
    assert all("k3" in row and row.endswith("…") for row in rows)
    assert "more with --all" in note
    assert "\x1b[33mhot\x1b[0m" in seen.raw
    assert "\x1b[2J" not in seen.raw


def test_what_goes_for_ever_is_shown_and_asked_about(tmp_path: Path) -> None:
    root = made_store(tmp_path)
    for typed in ("\n", "\x04"):
        seen = in_terminal("erase", "orders", "--key", "k3", "--root", root, typed=typed)
        assert seen.code == NOTHING
        assert "this erases from topic 'orders' with key 'k3': 86 messages, stored from 20" in seen.text
        assert seen.lines[-1].endswith("tierlog: nothing was removed")
    seen = in_terminal("delete", "orders", "--all", "--root", root, typed="no\n")
    assert seen.code == NOTHING
    assert "this deletes topic 'orders': 600 messages" in seen.text
    assert main(["erase", "orders", "--root", root]) == WRONG_USE
    assert main(["query", "orders", "--key", "k3", "--root", root]) == DONE
    assert in_terminal("erase", "orders", "--key", "k3", "--root", root, typed="y\n").code == DONE
    seen = in_terminal("erase", "orders", "--key", "k4", "--yes", "--root", root)
    assert (seen.code, "[y/N]" in seen.text) == (DONE, False)
    for key in ("k3", "k4"):
        assert main(["query", "orders", "--key", key, "--root", root]) == NOTHING


@pytest.mark.slow
def test_no_color_is_obeyed(root: str) -> None:
    assert "\x1b[" not in in_terminal("topics", "--root", root, "--read-only", NO_COLOR="1").raw


@pytest.mark.slow
def test_mistakes_are_two_lines_with_what_was_meant(root: str) -> None:
    seen = in_terminal("query", "ordrs", "--root", root, "--read-only")
    assert (seen.code, seen.lines) == (
        WRONG_USE, ["tierlog: no such topic 'ordrs'", "hint: did you mean 'orders'?"]
    )  # fmt: skip
    seen = in_terminal("quary")
    assert seen.lines[1:] == ["tierlog: no such command 'quary'", "hint: did you mean 'query'?"]


@pytest.mark.slow
def test_long_work_shows_how_far_it_is_on_a_terminal(root: str, tmp_path: Path) -> None:
    file = tmp_path / "more.log"
    file.write_text("".join(f"k{number % 7} {'y' * 300}\n" for number in range(3_000)))
    loaded = in_terminal("load", str(file), "--topic", "more", "--root", root)
    assert loaded.code == DONE
    assert "loading" in loaded.raw
    assert [line for line in loaded.lines if line.startswith("messages")] == ["messages       3,000"]
    archived = in_terminal("archive", "--all", "--root", root)
    assert "archiving" in archived.raw
    assert "segments" in archived.raw
    checked = in_terminal("check", "--deep", "--root", root, "--read-only")
    assert "checking" in checked.raw
    assert checked.lines[-1] == "no findings"
    restored = in_terminal("restore", "--segment", "0", "--out", str(tmp_path / "segment"), "--root", root)
    assert "restoring" in restored.raw
    with served("--root", root) as url:
        remote = in_terminal("archive", "--all", "--url", url)
        assert remote.code == DONE
        assert "archiving" in remote.raw


@pytest.mark.slow
def test_a_pipe_gets_rows_and_nothing_else(root: str) -> None:
    asked = ["query", "orders", "--key", "k3", "--limit", "100", "--root", root, "--read-only"]
    done = subprocess.run(
        [sys.executable, "-m", "tierlog.service.main", *asked],
        capture_output=True, cwd=ROOT, check=True, env={"FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stderr == b""
    assert {json.loads(line)["keys"][0] for line in done.stdout.splitlines()} == {"k3"}
    done = subprocess.run(
        [sys.executable, "-m", "tierlog.service.main", "archive", "--all", "--root", root],
        capture_output=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert (done.stderr, done.stdout.count(b"\n")) == (b"", 1)


def test_a_topic_that_was_mistyped_is_offered(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["query", "ordrs"], ["tail", "ordrs"], ["tail", "Orders", "--queue", "0"]):
        assert main([*command, "--root", root, "--read-only"]) == WRONG_USE
        assert "did you mean 'orders'?" in capsys.readouterr().err
    assert main(["query", "zzz", "--root", root, "--read-only", "--format", "json"]) == WRONG_USE
    out, err = capsys.readouterr()
    assert json.loads(err)["type"] == "urn:tierlog:problem:topic-not-found"
    assert out in ("", '{"messages": []}\n')


def test_several_queues_are_read_in_the_order_of_the_log(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", "orders", "--root", root, "--read-only", "--format", "json"]) == DONE
    answer = json.loads(capsys.readouterr().out)
    places = [row["physical_offset"] for row in answer["messages"]]
    assert len(places) == 600
    assert places == sorted(places)
    assert answer["next_offsets"] == {"0": 150, "1": 150, "2": 150, "3": 150}
    assert main(["tail", "orders", "--root", root, "--read-only", "--format", "json", "--limit", "6"]) == DONE
    answer = json.loads(capsys.readouterr().out)
    assert [row["physical_offset"] for row in answer["messages"]] == places[:6]
    assert sum(answer["next_offsets"].values()) == 6
    assert main(["tail", "orders", "--offset", "3", "--root", root, "--read-only"]) == WRONG_USE
    assert "--queue Q" in capsys.readouterr().err
    assert main(["tail", "orders", "--tag", "none", "--root", root, "--read-only"]) == NOTHING
