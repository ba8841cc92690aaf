"""``tierlog load``: what it takes, what it refuses, what it ends with, and that it goes on after a failure."""

from __future__ import annotations

import gzip
import json
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.conftest import ROOT
from tests.support.processes.shell import TINY, Shell, served
from tierlog.service.cli import line_loader
from tierlog.service.exit_codes import DONE, FAILED, NOTHING, WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.base.errors import UnavailableError
from tierlog.tiering.remote.http_client import HttpClient


def bodies_in(shell: Shell, *where: str, topic: str = "t") -> list[str]:
    asked = ["query", topic, "--all", "--order", "oldest", "--limit", "10000"]
    return [row["body"] for row in shell.rows(*asked, *where)]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_a_compressed_log_is_loaded_as_its_lines(shell: Shell, tmp_path: Path, compress: Any) -> None:
    file, where = tmp_path / "app.log", ["--root", str(tmp_path / "store")]
    file.write_bytes(compress(b"k1 one\n") + compress(b"k2 two\n"))
    shell("load", str(file), "--topic", "t", "--key", r"k\d", *where, *TINY)
    assert bodies_in(shell, *where) == ["k1 one", "k2 two"]


def test_a_file_that_is_no_text_is_refused_before_anything_of_any_file_is_appended(
    shell: Shell, tmp_path: Path
) -> None:
    good, bad, root = tmp_path / "good.log", tmp_path / "bad.log", tmp_path / "store"
    good.write_text("fine\n")
    bad.write_bytes(b"fine\n\0\n")
    shell("load", str(good), str(bad), "--topic", "t", "--root", str(root), *TINY, code=WRONG_USE)
    assert "bad.log is no text" in shell.err
    assert not root.exists()
    shell("load", str(good), str(bad), "--topic", "t", "--text", "--root", str(root), *TINY)
    assert bodies_in(shell, "--root", str(root)) == ["fine", "fine", "\0"]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--key", "id=(.)"], DONE, None),
        (["--key", "nope"], NOTHING, "no line has what --key nope asks for"),
        (["--key", "id=(.)", "--key", "nope"], NOTHING, "--key nope"),
        (["--key", "nope", "--max-unmatched", "100%"], DONE, None),
        (["--key", "id=(.)", "--max-unmatched", "5%"], NOTHING, "2 of 4 lines have no key"),
        (["--key", "id=(.)", "--max-unmatched", "50%"], DONE, None),
        (["--key", "id=(.)", "--max-unmatched", "1"], NOTHING, "2 of 4 lines have no key"),
        (["--key", "id=(.)", "--max-unmatched", "2"], DONE, None),
        (["--tag", "WARN"], NOTHING, "no line has what --tag WARN asks for"),
        (["--born", r"^\d{4}-\S+", "--born-format", "%Y-%m-%d"], NOTHING, "no line has what --born ^"),
        (["--json-key", "id"], NOTHING, "--json-key id"),
        (["--continues", "nope"], DONE, None),
        ([], DONE, None),
    ],
)
def test_a_load_whose_patterns_find_too_little_ends_with_1_and_says_so(
    shell: Shell, tmp_path: Path, flags: list[str], code: int, said: str | None
) -> None:
    file = tmp_path / "app.log"
    file.write_text("id=1\nnothing\nid=3\nnothing\n")
    root = ["--root", str(tmp_path / "store")]
    summary = json.loads(shell("load", str(file), "--topic", "t", *flags, *root, *TINY, code=code))
    assert summary["messages"] == 4
    assert (said is None) == (shell.err == "")
    assert (said or "") in shell.err
    assert len(bodies_in(shell, *root)) == 4


def test_only_what_was_asked_for_is_counted(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "app.log"
    file.write_text('{"id": 1}\nplain\n more\n')
    where = ["--root", str(tmp_path / "store"), *TINY]
    plain = json.loads(shell("load", str(file), "--topic", "t", *where))
    assert set(plain) == {"messages", "skipped_empty", "batches", "bytes", "seconds"}
    summary = json.loads(shell("load", str(file), "--topic", "t", "--json-key", "id", "--continues", r"^\s", *where))
    found = {name: summary[name] for name in ("messages", "without_key", "not_json", "continued")}
    assert found == {"messages": 2, "without_key": 1, "not_json": 1, "continued": 1}


def test_nothing_to_load_lacks_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_bytes(b"\n\n")
    root = ["--root", str(tmp_path / "store")]
    assert json.loads(shell("load", str(tmp_path / "empty.log"), "--topic", "t", "--key", "k", *root))["messages"] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-unmatched", "101%"], "bad --max-unmatched"),
        (["--max-unmatched", "-1"], "bad --max-unmatched"),
        (["--tag", "x", "--json-tag", "y"], "either --tag or --json-tag"),
        (["--born", "x", "--json-born", "y", "--born-format", "rfc3339"], "either --born or --json-born"),
        (["--born-format", "rfc3339"], "go together"),
        (["--json-key", "a..b"], "bad field"),
        (["--continues", "("], "bad pattern"),
        (["--resume", "r", "--durability", "async"], "--resume needs"),
    ],
)
def test_flags_that_make_no_sense_are_refused(shell: Shell, tmp_path: Path, flags: list[str], said: str) -> None:
    (tmp_path / "app.log").write_text("x\n")
    shell("load", str(tmp_path / "app.log"), "--topic", "t", *flags, "--root", str(tmp_path / "s"), code=WRONG_USE)
    assert said in shell.err
    assert not (tmp_path / "s").exists()


def test_over_http_a_line_the_service_refuses_is_named_too(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 2)
    file = tmp_path / "app.log"
    file.write_bytes(b"k=1 a\nk=2 \xff\nk=3 c\nk=  d\nk=5 e\n")
    with served("--root", str(tmp_path / "store"), *TINY) as url:
        shell("load", str(file), "--topic", "t", "--key", "k=(.*) ", "--url", url, code=WRONG_USE)
        assert "app.log, line 4: bad key ' '" in shell.err
        assert json.loads(shell.out)["messages"] == 2
        rows = shell.rows("query", "t", "--all", "--order", "oldest", "--url", url)
        assert [(row["keys"], row.get("body"), row.get("body_base64")) for row in rows] == [
            (["1"], "k=1 a", None), (["2"], None, "az0yIP8="),
        ]  # fmt: skip


class Resumed:
    """A load of 1,200 lines into one queue that may be told to go on."""

    def __init__(self, tmp_path: Path, *where: str) -> None:
        self.file, self.record = tmp_path / "app.log", tmp_path / "app.progress"
        self.lines = [f"k{number} line {number}" for number in range(1_200)]
        self.file.write_text("\n".join(self.lines))
        self.argv = [
            "load", str(self.file), "--topic", "t", "--queues", "1", "--key", r"k\d+", "--resume", str(self.record),
            *where,
        ]  # fmt: skip

    def recorded(self) -> Any:
        return json.loads(self.record.read_text())

    def doubt(self, **changed: Any) -> None:
        """Has the record, with these changes, say that more may have been appended than it knows."""
        document = {**self.recorded(), "is_settled": False, **changed}
        document.pop("crc32", None)
        self.record.write_text(json.dumps(document))


def test_a_load_that_is_done_goes_on_with_what_its_file_grew_by(shell: Shell, tmp_path: Path) -> None:
    where = ["--root", str(tmp_path / "store")]
    load = Resumed(tmp_path, *where, *TINY)
    assert json.loads(shell(*load.argv))["messages"] == 1_200
    assert load.recorded()["is_settled"]
    again = json.loads(shell(*load.argv))
    assert (again["messages"], again["resumed_at"]) == (1_200, 1_200)
    with load.file.open("a") as grown:
        grown.write("\nk0 more\n")
    assert json.loads(shell(*load.argv))["messages"] == 1_201
    assert bodies_in(shell, *where) == [*load.lines, "k0 more"]


def test_a_bad_line_that_was_mended_is_gone_on_with(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 100)
    where = ["--root", str(tmp_path / "store")]
    load = Resumed(tmp_path, *where, *TINY)
    load.argv[load.argv.index(r"k\d+")] = "k(.*?) "
    text = load.file.read_text()
    load.file.write_text(text.replace("k1017 ", "k "))
    shell(*load.argv, code=WRONG_USE)
    assert "line 1018: bad key ''" in shell.err
    assert load.recorded()["report"]["messages"] == 1_000
    load.file.write_text(text)
    assert json.loads(shell(*load.argv))["resumed_at"] == 1_000
    assert bodies_in(shell, *where) == load.lines


def test_a_load_is_not_gone_on_with_as_another_or_in_another_store(shell: Shell, tmp_path: Path) -> None:
    where = ["--root", str(tmp_path / "store")]
    load = Resumed(tmp_path, *where, *TINY)
    shell(*load.argv)
    shell(*load.argv, "--tag", "line", code=WRONG_USE)
    assert "another load is recorded" in shell.err
    with load.file.open("a") as grown:
        grown.write("\nmore\n")
    shell(*load.argv[: -len([*where, *TINY])], "--root", str(tmp_path / "other"), code=FAILED)
    assert "went to store" in shell.err
    load.file.write_text(load.file.read_text().replace("k7 ", "k8 "))
    shell(*load.argv, code=WRONG_USE)
    assert "app.log, line 1200: what was loaded up to here is not what the file has now" in shell.err
    load.record.write_bytes(load.record.read_bytes()[:-9])
    shell(*load.argv, code=FAILED)
    assert "damaged" in shell.err
    assert bodies_in(shell, *where) == load.lines


@pytest.mark.parametrize("is_appended", [True, False])
def test_a_request_whose_answer_was_lost_is_sent_again_and_appended_once(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_appended: bool
) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 100)
    with served("--root", str(tmp_path / "store"), *TINY) as url:
        load, ask, posts = Resumed(tmp_path, "--url", url), HttpClient.ask, 0

        def lose(client: HttpClient, address: Any, method: str, *args: Any, **more: Any) -> Any:
            nonlocal posts
            posts += method == "POST"
            found = ask(client, address, method, *args, **more) if posts < 5 or is_appended else None
            if posts == 5:
                raise UnavailableError("the line is dead")
            return found

        monkeypatch.setattr(HttpClient, "ask", lose)
        shell(*load.argv, code=FAILED)
        assert (load.recorded()["report"]["messages"], load.recorded()["is_settled"]) == (400, False)
        monkeypatch.setattr(HttpClient, "ask", ask)
        assert json.loads(shell(*load.argv))["resumed_at"] == 400
        assert load.recorded()["is_settled"]
        assert bodies_in(shell, "--url", url) == load.lines


def test_what_the_store_has_forgotten_is_not_sent_again(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 100)
    where = ["--root", str(tmp_path / "store")]
    load = Resumed(tmp_path, *where, *TINY)
    shell(*load.argv)
    stored_ms = load.recorded()["stored_ms"]
    load.file.write_text("\n".join([*load.lines, "k1 more"]))
    for doubt in ({"stored_ms": 1_000}, {"stored_ms": None, "begun_ms": 0}):
        load.doubt(**doubt)
        shell(*load.argv, code=FAILED)
        assert "the store has forgotten" in shell.err
    load.doubt(stored_ms=stored_ms)
    shell(*load.argv)
    assert bodies_in(shell, *where) == [*load.lines, "k1 more"]


def test_whether_a_service_has_forgotten_is_told_by_its_window_and_not_by_that_of_this_machine(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 100)
    monkeypatch.setenv("TIERLOG_PRODUCE_WINDOW_MS", "1000")
    with served("--root", str(tmp_path / "store"), *TINY) as url:
        monkeypatch.delenv("TIERLOG_PRODUCE_WINDOW_MS")
        load = Resumed(tmp_path, "--url", url)
        shell(*load.argv)
        load.doubt(stored_ms=None, begun_ms=load.recorded()["begun_ms"] - 5_000)
        load.file.write_text("\n".join([*load.lines, "k1 more"]))
        shell(*load.argv, code=FAILED)
        assert "the store has forgotten" in shell.err
        assert bodies_in(shell, "--url", url) == load.lines


def test_a_run_that_stops_before_an_earlier_one_did_leaves_the_doubt(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "BATCH_LINES", 100)
    where = ["--root", str(tmp_path / "store")]
    load = Resumed(tmp_path, *where, *TINY)
    shell(*load.argv)
    before = load.recorded()
    load.doubt(report={**before["report"], "messages": 0}, files=[])
    load.file.write_text("\n".join([*load.lines[:150], "k ", *load.lines[151:]]))
    shell(*load.argv, code=WRONG_USE)
    assert "app.log, line 151: an earlier run of this load has sent another line in this place" in shell.err
    assert (load.recorded()["report"]["messages"], load.recorded()["is_settled"]) == (100, False)
    load.file.write_text("\n".join(load.lines))
    shell(*load.argv)
    assert load.recorded()["is_settled"]
    assert bodies_in(shell, *where) == load.lines


class Killed:
    """Runs a load again and again in a worker that kills it."""

    def __init__(self, argv: Sequence[str], chance: random.Random, stdin: Path | None) -> None:
        self._argv, self._chance, self._stdin = list(argv), chance, stdin

    def kill(self, kills: int, most_calls: int) -> int:
        """Runs until the load is done, killed so often before; returns how often it was."""
        killed = 0
        command = [sys.executable, "-m", "tests.support.processes.load_worker"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            while True:
                request = {
                    "argv": self._argv,
                    "kill_at": self._chance.randrange(1, most_calls) if killed < kills else 1 << 30,
                    "save_s": self._chance.choice([0, 0, 1e9]),  # often recorded, or hardly
                    "stdin": None if self._stdin is None else str(self._stdin),
                }
                worker.stdin.write(json.dumps(request) + "\n")
                worker.stdin.flush()
                code = int(worker.stdout.readline())
                assert code in (DONE, -signal.SIGKILL), request
                killed += code != DONE
                if code == DONE:
                    worker.stdin.close()
                    return killed


@pytest.mark.parametrize("is_piped", [False, True])
@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_load_that_is_killed_anywhere_appends_every_line_once(
    shell: Shell, tmp_path: Path, seed: int, kills: int, is_piped: bool
) -> None:
    where = ["--root", str(tmp_path / "store")]
    load = Resumed(tmp_path, *where, *TINY)
    if is_piped:
        load.argv[1] = "-"
    killed = Killed(load.argv, random.Random(seed), load.file if is_piped else None).kill(kills, 250)
    assert killed > 1
    assert bodies_in(shell, *where) == load.lines
    assert shell("check", *where) == ""


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_load_into_a_service_that_is_killed_anywhere_appends_every_line_once(
    shell: Shell, tmp_path: Path, seed: int, kills: int
) -> None:
    with served("--root", str(tmp_path / "store"), *TINY) as url:
        load = Resumed(tmp_path, "--url", url)
        assert Killed(load.argv, random.Random(seed), None).kill(kills, 40) > 1
        assert bodies_in(shell, "--url", url) == load.lines


def test_a_load_goes_on_after_its_service_was_killed(shell: Shell, tmp_path: Path) -> None:
    """The service forgets nothing of what it was sent: it reads that from its log."""
    root = str(tmp_path / "store")
    command = [sys.executable, "-m", "tierlog.service.main", "serve", "--root", root, "--port", "0", *TINY]
    load = Resumed(tmp_path, "--url", "")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(line_loader, "BATCH_LINES", 100)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stderr is not None
            url = next(line for line in process.stderr if "serving" in line).split()[-1]
            ask, posts = HttpClient.ask, 0

            def kill_after(client: HttpClient, address: Any, method: str, *args: Any, **more: Any) -> Any:
                nonlocal posts
                found = ask(client, address, method, *args, **more)
                posts += method == "POST"
                if posts == 5:
                    process.kill()
                    process.wait()
                    raise UnavailableError("the line is dead")
                return found

            patched.setattr(HttpClient, "ask", kill_after)
            load.argv[-1] = url
            assert main(load.argv) == FAILED
    with served("--root", root) as url:
        load.argv[-1] = url
        assert json.loads(shell(*load.argv).splitlines()[-1])["messages"] == 1_200
        assert bodies_in(shell, "--url", url) == load.lines
