"""Every command on a real store with ``--format json``: one document on standard output, whatever the command does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.service.cli.test_cli_parsing import NAMES, WITHOUT_FORMAT
from tests.support.processes.shell import TINY, followed, served
from tierlog.service.exit_codes import DONE, FAILED, INCOMPLETE, NOTHING, WRONG_USE
from tierlog.service.main import main


@pytest.mark.slow
def test_every_command_writes_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, cold, file = str(tmp_path / "store"), f"file://{tmp_path}/cold", tmp_path / "some.log"
    file.write_text("".join(f"k{number % 5} {number}\n" for number in range(300)))
    done = {"restore"}

    def asked(*argv: str, code: int = DONE) -> Any:
        ended = main([*argv, "--format", "json"])
        out, err = capsys.readouterr()
        assert (ended, err) == (code, err if code else ""), (argv, err)
        done.add(argv[0])
        return json.loads(out)

    where = ["--root", root]
    assert asked("load", str(file), "--topic", "t", "--key", r"k\d", *where, "--cold", cold, *TINY)["messages"] == 300
    assert asked("flush", *where) == {"flushed": True}
    assert asked("archive", "--all", *where)["segments"] > 0
    assert asked("query", "t", "--key", "k1", "--limit", "100", *where)["coverage"]["complete"] is True
    messages = asked("tail", "t", *where)["messages"]
    assert len(messages) == 300
    assert asked("message", messages[7]["message_id"], *where)["messages"] == messages[7:8]
    assert asked("groups", *where, code=NOTHING)["groups"] == []
    assert [topic["topic"] for topic in asked("topics", *where)["topics"]] == ["t"]
    assert {row["tier"] for row in asked("files", *where)["files"]} == {"hot", "cold"}
    assert asked("stats", *where)["unarchived_bytes"] == 0
    assert asked("check", "--deep", *where)["findings"] == []
    assert asked("repair", *where)["left"] == []
    assert asked("hold", "t", "on", *where) == {"topic": "t", "hold": True}
    assert asked("hold", "t", "off", *where) == {"topic": "t", "hold": False}
    assert asked("receipts", *where, code=NOTHING) == {"receipts": []}
    receipt = asked("erase", "t", "--key", "k1", "--wait", *where)
    assert receipt["matched"]["hot"] + receipt["matched"]["cold"] >= 60
    assert asked("receipts", receipt["tombstone_id"], *where)["tombstone_id"] == receipt["tombstone_id"]
    assert len(asked("receipts", *where)["receipts"]) == 1
    assert main(["restore", "--segment", "0", "--out", str(tmp_path / "segment"), *where, "--format", "json"]) == DONE
    out, err = capsys.readouterr()
    assert json.loads(out)["fillers"] > 0
    assert "fillers" in err
    assert asked("dump", str(tmp_path / "segment"), "--limit", "1")["head"]["kind"] == "commit-log"
    assert asked("doctor", "--cold", cold, "--writers", "4", "--processes", "1", "--rounds", "2")["safe"] is True
    assert asked("config")["settings"]
    assert asked("cluster", "--cold", cold, code=NOTHING)["stores"] == []
    assert asked("delete", "t", "--dry-run", *where)["topic"] == "t"
    shown_elsewhere = {"salvage", "token", "route", "adopt"}
    assert set(NAMES) - WITHOUT_FORMAT - done <= shown_elsewhere, "these are shown by tests of their own"


@pytest.mark.slow
def test_followed_queues_come_together_and_a_stop_is_no_failure(tmp_path: Path) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_text("".join(f"{number}\n" for number in range(8)))
    assert main(["load", str(file), "--topic", "t", "--queues", "4", "--root", root, *TINY]) == DONE
    with served("--root", root) as url:
        with followed("t", "--url", url) as lines:
            assert [json.loads(lines.readline())["body"] for _ in range(8)] == [str(each) for each in range(8)]
            file.write_text("".join(f"{number}\n" for number in range(8, 16)))
            assert main(["load", str(file), "--topic", "t", "--url", url]) == DONE
            more = [json.loads(lines.readline()) for _ in range(8)]
            assert {row["body"] for row in more} == {str(each) for each in range(8, 16)}
            assert {row["queue_id"] for row in more} == {0, 1, 2, 3}
        assert main(["tail", "t", "--follow", "--limit", "3", "--url", url]) == DONE


@pytest.mark.slow
def test_each_exit_code_is_the_one_of_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, cold, file = str(tmp_path / "store"), tmp_path / "cold", tmp_path / "some.log"
    file.write_text("".join(f"k{number % 5} {'x' * 50} {number}\n" for number in range(2_000)))
    where = ["--root", root, "--cold", f"file://{cold}"]
    assert main(["load", str(file), "--topic", "t", "--key", r"k\d", *where, *TINY]) == DONE
    assert main(["archive", "--all", "--drop-hot", "--root", root]) == DONE
    asked = ["query", "t", "--key", "k1", "--root", root]
    assert main(asked) == DONE
    assert main(["query", "t", "--key", "absent", "--root", root]) == NOTHING
    assert main([*asked, "--from", "soon"]) == WRONG_USE
    assert main(["topics", "--url", "http://127.0.0.1:1"]) == FAILED
    assert main([*asked[:4], "--cold", f"file://{cold}", "--all", "--max-requests", "1"]) == INCOMPLETE
    for segment in cold.glob("*/log/*.zst"):
        segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    assert main(["check", "--deep", "--root", root]) == NOTHING
    assert capsys.readouterr().out.count("\n") >= 1
