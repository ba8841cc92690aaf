"""The commands on real stores: what goes in by ``load`` comes out of every command, wherever the data is."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import socket
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import ROOT
from tests.support.processes.shell import TINY, Shell, followed, served
from tierlog.service.exit_codes import DONE, FAILED, NOTHING, WRONG_USE
from tierlog.service.main import main
from tierlog.service.sample import BORN_FORMAT, BORN_PATTERN, KEY_PATTERNS, TAG_PATTERN, sample_log

LINES = 1_500
HOW = [
    *(flag for pattern in KEY_PATTERNS for flag in ("--key", pattern)),
    "--tag", TAG_PATTERN, "--born", BORN_PATTERN, "--born-format", BORN_FORMAT,
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "shop.log"
    file.write_bytes(b"".join(sample_log(LINES)))
    return file


def lines_of(log: Path) -> list[str]:
    return [line for line in log.read_bytes().decode().split("\r\n") if line]


def by_key(lines: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        for key in dict.fromkeys(key for pattern in KEY_PATTERNS for key in re.findall(pattern, line)):
            found[key].append(line)
    return found


def test_every_key_is_found_after_load_archive_and_removal(shell: Shell, log: Path, tmp_path: Path) -> None:
    root, cold = str(tmp_path / "store"), f"file://{tmp_path}/cold"
    summary = json.loads(shell("load", str(log), "--topic", "shop", *HOW, "--root", root, "--cold", cold, *TINY))
    lines = lines_of(log)
    assert summary["messages"] == len(lines)
    assert summary["skipped_empty"] == LINES - len(lines)
    assert summary["bytes"] == sum(len(line.encode()) for line in lines)
    report = json.loads(shell("archive", "--all", "--drop-hot", "--root", root))
    assert report["border"] == report["archived_to"] == report["indexed_to"] > 0
    keys = by_key(lines)
    for key in [*list(keys)[::97], max(keys, key=lambda one: len(keys[one]))]:
        for target in (["--root", root], ["--cold", cold]):
            rows = shell.rows("query", "shop", "--key", key, "--order", "oldest", "--all", *target)
            assert [row["body"] for row in rows] == keys[key]
            assert {row["tier"] for row in rows} == {"cold"}
    shell("check", "--deep", "--root", root)
    assert shell("check", "--deep", "--cold", cold) == ""
    everything = shell.rows("query", "shop", "--all", "--order", "oldest", "--limit", "700", "--cold", cold)
    assert [row["body"] for row in everything] == lines
    assert sum(row["records"] for row in shell.rows("files", "--cold", cold) if row["kind"] == "segment") == len(lines)


@pytest.mark.slow
def test_a_running_service_answers_as_a_store_that_is_opened(shell: Shell, log: Path, tmp_path: Path) -> None:
    root, cold = str(tmp_path / "store"), f"file://{tmp_path}/cold"
    half = tmp_path / "half.log"
    lines = lines_of(log)
    half.write_text("\n".join(lines[:700]))
    rest = tmp_path / "rest.log"
    rest.write_bytes("\n".join(lines[700:]).encode() + b"\nraw \xff body")
    shell("load", str(half), "--topic", "shop", *HOW, "--root", root, "--cold", cold, *TINY)
    shell("archive", "--all", "--drop-hot", "--root", root)
    key = max(by_key(lines[:700]), key=lambda one: min(len(by_key(lines[:700])[one]), 5))
    with served("--root", root) as url:
        shell("load", str(rest), "--topic", "shop", *HOW, "--url", url)
        shell("flush", "--url", url)
        remote = shell.rows("query", "shop", "--key", key, "--all", "--url", url)
        topics = shell.rows("topics", "--url", url)
        whole = shell.rows("query", "shop", "--all", "--order", "oldest", "--url", url)
        assert [row.get("body") for row in whole] == [*lines, None]
        assert Counter(row["tier"] for row in whole) == {"cold": 700, "hot": len(lines) - 700 + 1}
        shell("load", str(rest), "--topic", "other", "--root", root, code=WRONG_USE)
        assert "read-only" in shell.err or "hold" in shell.err or "lock" in shell.err
        assert shell.rows("query", "shop", "--key", key, "--all", "--root", root, "--read-only") == remote
        shell("archive", "--until", "1970-01-02", "--url", url)
        shell("check", "--url", url)
        shell("query", "nope", "--url", url, code=WRONG_USE)
        shell("query", "shop", "--key", "a b", "--url", url, code=WRONG_USE)
        bad = tmp_path / "bad.log"
        bad.write_bytes(b"fine\nkey= \n")
        shell("load", str(bad), "--topic", "bad", "--key", "key=(.*)", "--url", url, code=WRONG_USE)
        assert "bad.log, line 2" in shell.err
        assert shell.rows("topics", "--url", url) == topics
    assert shell.rows("query", "shop", "--key", key, "--all", "--root", root) == remote
    assert shell.rows("topics", "--root", root) == topics
    assert json.loads(shell("stats", "--format", "json", "--root", root))["topics"] == 1


def test_a_queue_is_read_in_order_from_where_one_says(shell: Shell, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    file = tmp_path / "some.log"
    file.write_text("\n".join(str(number) for number in range(2_500)))
    shell("load", str(file), "--topic", "t", "--queues", "1", "--root", root, *TINY)
    assert [row["body"] for row in shell.rows("tail", "t", "--root", root)] == [str(number) for number in range(2_500)]
    rows = shell.rows("tail", "t", "--queue", "0", "--offset", "1200", "--limit", "3", "--root", root)
    assert [row["queue_offset"] for row in rows] == [1200, 1201, 1202]
    shell("tail", "t", "--offset", "2501", "--root", root, code=WRONG_USE)
    shell("tail", "t", "--offset", "2500", "--root", root, code=NOTHING)
    shell("tail", "t", "--queue", "1", "--root", root, code=WRONG_USE)
    shell("tail", "nope", "--root", root, code=WRONG_USE)


def test_a_queue_is_read_from_a_time_on_wherever_it_is(shell: Shell, tmp_path: Path) -> None:
    root, cold, file = str(tmp_path / "store"), f"file://{tmp_path}/cold", tmp_path / "some.log"
    file.write_text("\n".join(str(number) for number in range(900)))
    for _ in range(2):
        shell("load", str(file), "--topic", "t", "--queues", "1", "--root", root, "--cold", cold, *TINY)
        rows = shell.rows("tail", "t", "--root", root)
        shell("archive", "--all", "--drop-hot", "--root", root)
    since = ["tail", "t", "--from", str(rows[1_000]["store_ms"])]
    expected = [row["queue_offset"] for row in rows if row["store_ms"] >= rows[1_000]["store_ms"]]
    assert 0 < len(expected) <= 900
    for target in (["--root", root], ["--cold", cold]):
        assert [row["queue_offset"] for row in shell.rows(*since, *target)] == expected
    with served("--root", root) as url:
        assert [row["queue_offset"] for row in shell.rows(*since, "--url", url)] == expected
    shell("tail", "t", "--from", "9999-12-31", "--root", root, code=NOTHING)
    shell("tail", "t", "--from", "soon", "--root", root, code=WRONG_USE)


def test_following_a_queue_shows_what_comes_in_until_it_is_stopped(shell: Shell, tmp_path: Path) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_text("one")
    shell("load", str(file), "--topic", "t", "--queues", "1", "--root", root, *TINY)
    with served("--root", root) as url, followed("t", "--queue", "0", "--url", url) as lines:
        assert json.loads(lines.readline())["body"] == "one"
        file.write_text("two")
        shell("load", str(file), "--topic", "t", "--url", url)
        assert json.loads(lines.readline())["body"] == "two"


def test_every_format_holds_the_same_messages(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_bytes(b'a,"b" k1 k2\nk1 \xff\n')
    main(["load", str(file), "--topic", "t", "--key", r"k\d", "--root", root, *TINY])
    capfdbinary.readouterr()
    asked = ["query", "t", "--key", "k1", "--order", "oldest", "--root", root, "--format"]

    def said(form: str) -> bytes:
        assert main([*asked, form]) == DONE
        return capfdbinary.readouterr().out

    messages = json.loads(said("json"))["messages"]
    assert [json.loads(line) for line in said("ndjson").splitlines()] == messages
    rows = list(csv.DictReader(io.StringIO(said("csv").decode())))
    assert [row["body"] for row in rows] == ['a,"b" k1 k2', ""]
    assert [row["keys"].split() for row in rows] == [["k1", "k2"], ["k1"]]
    table = pa.ipc.open_stream(said("arrow")).read_all()
    assert table["body"].to_pylist() == [b'a,"b" k1 k2', b"k1 \xff"]
    assert table["message_id"].to_pylist() == [message["message_id"] for message in messages]
    assert b"k1 k2" in said("table")


def test_a_dry_run_of_an_archive_reads_its_manifest_and_says_what_the_query_costs(shell: Shell, tmp_path: Path) -> None:
    root, file, cold = str(tmp_path / "store"), tmp_path / "some.log", f"file://{tmp_path}/archive"
    file.write_text("".join(f"k{number % 9} {number}\n" for number in range(400)))
    shell("load", str(file), "--topic", "t", "--key", r"k\d", "--root", root, "--cold", cold, *TINY)
    shell("archive", "--all", "--drop-hot", "--root", root)
    (dry,) = shell.rows("query", "t", "--key", "k3", "--dry-run", "--cold", cold)
    assert dry["coverage"]["requests"] == dry["coverage"]["manifest_requests"] > 0
    *_, last = shell.rows(
        "query", "t", "--key", "k3", "--coverage", "--limit", "100", "--timeout", "60", "--cold", cold
    )
    requests = dry["estimate"]["requests"]
    assert requests["least"] <= last["coverage"]["requests"] <= requests["most"]


def test_coverage_is_shown_on_demand_and_nothing_found_is_1(shell: Shell, tmp_path: Path) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_text("".join(f"k {number}\n" for number in range(40)))
    shell("load", str(file), "--topic", "t", "--key", "k", "--root", root, *TINY)
    *messages, last = shell.rows("query", "t", "--key", "k", "--coverage", "--root", root)
    assert len(messages) == 32
    assert last["coverage"]["complete"] is True
    assert last["next_cursor"] in shell.err
    more = shell.rows("query", "t", "--key", "k", "--cursor", last["next_cursor"], "--root", root)
    assert len(more) == 8
    assert shell("query", "t", "--key", "absent", "--root", root, code=NOTHING) == ""
    assert "nothing found" in shell.err


@pytest.mark.parametrize(
    ("data", "flags", "said"),
    [
        (b"x\n" + b"y" * 5_000_000 + b"\n", [], "line 2"),
        (b"x\nkey= \n", ["--key", "key=(.*)"], "line 2"),
        (b"x\n" + b"k1 " * 20_000, ["--key", r"k\d"], None),
        (b"x\n" + b"".join(b"k%05d " % number for number in range(6_000)), ["--key", r"k\d+"], "line 2"),
        (b"x\n", ["--key", "("], "bad pattern"),
        (b"x\n", ["--born", "x"], "go together"),
        (b"x\n", ["--born", "x", "--born-format", "%H:%M"], "no day"),
        (b"x\n", ["--born", "x", "--born-format", "%b %d"], "--year"),
        (b"x\n", ["--queues", "0"], "queues"),
        (b"x\n", ["--segment-bytes", "1000"], "segment_bytes"),
        (b"x\n", ["--config", "/nonexistent/tierlog.toml"], "settings file"),
        (b"x\n", ["--cold", "ftp://x"], "ftp://x"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    shell: Shell, tmp_path: Path, data: bytes, flags: list[str], said: str | None
) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_bytes(b"good\n")
    shell("load", str(file), "--topic", "t", "--root", root, *TINY)
    before = shell("topics", "--root", root, "--format", "json")
    file.write_bytes(data)
    shell("load", str(file), "--topic", "new", "--root", root, *TINY, *flags, code=DONE if said is None else WRONG_USE)
    if said is not None:
        assert said in shell.err
        assert shell.err.count("\n") == 1
        assert shell("topics", "--root", root, "--format", "json") == before


def test_a_bad_line_refuses_its_batch_and_leaves_those_before(shell: Shell, tmp_path: Path) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_text("".join(f"{number}\n" for number in range(25_000)) + "key= \n")
    shell("load", str(file), "--topic", "t", "--key", "key=(.*)", "--root", root, *TINY, code=WRONG_USE)
    assert "line 25001" in shell.err
    assert "20000 messages" in shell.err
    assert json.loads(shell.out)["messages"] == 20_000
    assert len(shell.rows("query", "t", "--all", "--limit", "10000", "--root", root)) == 20_000


def test_a_store_is_not_opened_with_other_sizes_or_another_archive(shell: Shell, tmp_path: Path) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_text("x")
    shell("load", str(file), "--topic", "t", "--root", root, "--cold", f"file://{tmp_path}/cold", *TINY)
    shell("topics", "--root", root, "--segment-bytes", "131072", code=WRONG_USE)
    shell("topics", "--root", root, "--queue-file-units", "61", code=WRONG_USE)
    shell("topics", "--root", root, "--cold", f"file://{tmp_path}/other", code=WRONG_USE)
    shell("topics", "--root", root, "--store-id", "other", code=WRONG_USE)
    assert not (tmp_path / "other").exists()
    shell("topics", "--root", root, "--cold", f"file://{tmp_path}/cold/")


def test_a_command_that_looks_makes_no_store(shell: Shell, tmp_path: Path) -> None:
    for command in (["query", "t"], ["tail", "t"], ["topics"], ["files"], ["stats"], ["check"], ["archive"], ["flush"]):
        shell(*command, "--root", str(tmp_path / "none"), code=WRONG_USE)
    for command in (["query", "t"], ["topics"], ["files"], ["check"]):
        shell(*command, "--cold", f"file://{tmp_path}/none", code=WRONG_USE)
    assert not (tmp_path / "none").exists()


def test_what_is_no_store_is_said_to_be_none(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    shell("topics", "--root", str(tmp_path / "file"), code=WRONG_USE)
    assert "no store in this directory" in shell.err
    (tmp_path / "cold").mkdir()
    shell("topics", "--cold", f"file://{tmp_path}/cold", "--store-id", "other", code=FAILED)
    assert "no archive was ever made in this directory, or its disk is not mounted" in shell.err
    (tmp_path / "cold" / ".tmp").mkdir()
    for command in (["query", "t"], ["topics"], ["check", "--deep"]):
        shell(*command, "--cold", f"file://{tmp_path}/cold", "--store-id", "other", code=NOTHING)
        assert "no archive of store 'other' here" in shell.err


def test_a_port_in_use_is_refused_before_the_store_is_touched(shell: Shell, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        shell("serve", "--root", str(tmp_path / "store"), "--port", port, code=WRONG_USE)
    assert port in shell.err
    assert not (tmp_path / "store").exists()


def test_a_reader_that_closes_the_pipe_early_is_no_failure(shell: Shell, tmp_path: Path) -> None:
    root, file = str(tmp_path / "store"), tmp_path / "some.log"
    file.write_text("x" * 200 + "\n" + ("y" * 200 + "\n") * 5_000)
    shell("load", str(file), "--topic", "t", "--root", root, *TINY)
    process = subprocess.Popen(
        [sys.executable, "-m", "tierlog.service.main", "query", "t", "--all", "--root", root],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (DONE, b"")


def test_a_load_that_is_stopped_keeps_what_it_acknowledged(shell: Shell, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    process = subprocess.Popen(
        [sys.executable, "-m", "tierlog.service.main", "load", "-", "--topic", "t", "--root", root, *TINY],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"".join(b"%d\n" % number for number in range(10_000)))
    process.stdin.flush()
    commitlog = tmp_path / "store" / "commitlog"
    while not commitlog.is_dir() or not any(b"9999" in file.read_bytes() for file in commitlog.iterdir()):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(b"".join(b"%d\n" % number for number in range(10_000, 50_000)), timeout=60)
    assert process.returncode == FAILED
    summary = json.loads(out)
    asked = ["query", "t", "--all", "--order", "oldest", "--limit", "10000", "--root", root]
    assert [row["body"] for row in shell.rows(*asked)] == [str(number) for number in range(summary["messages"])]
    assert 10_000 <= summary["messages"] < 50_000
    shell("check", "--root", root)


@pytest.mark.slow
def test_a_service_ends_by_itself_although_its_object_store_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are taken and never answered: the worst way to be dead. Close gives up on them and says nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    config = tmp_path / "tierlog.toml"
    with socket.create_server(("127.0.0.1", 0)) as dead:
        endpoint = f"http://127.0.0.1:{dead.getsockname()[1]}"
        config.write_text(f'[cold]\ns3_endpoint = "{endpoint}"\nread_timeout_s = 1.0\nretry_interval_ms = 10\n')
        root = str(tmp_path / "store")
        (tmp_path / "first.log").write_text("k0\n")  # a store that was not there would wait for its archive
        assert main(["load", str(tmp_path / "first.log"), "--topic", "first", "--root", root, *TINY]) == DONE
        with served("--root", root, "--cold", "s3://bucket/prefix", "--config", str(config), *TINY, quiet=False) as url:
            file = tmp_path / "some.log"
            file.write_text("k1\nk2\n")
            assert main(["load", str(file), "--topic", "t", "--key", r"k\d", "--url", url]) == DONE
            assert main(["query", "t", "--key", "k2", "--url", url]) == DONE
    assert main(["query", "t", "--key", "k1", "--root", root, "--read-only", "--config", str(config)]) == DONE
