"""``tierlog adopt``: a broker's store in an archive and in a volume, without Spark; nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.processes.shell import Shell
from tests.support.rocketmq.golden import expected, unpack
from tierlog.index.new_store.broker_log import LogPlan
from tierlog.service.exit_codes import FAILED, NOTHING, WRONG_USE
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.lifecycle.takeover import take_over

NAME = "crashed-plain"


@pytest.fixture
def broker(tmp_path: Path) -> str:
    return str(unpack(NAME, tmp_path / "broker"))


def objects(folder: Path) -> dict[str, int]:
    """Every object and when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != ".tmp"]
    return {str(path): path.stat().st_mtime_ns for path in files}


def adopted(shell: Shell, *argv: str, code: int = 0) -> dict[str, object]:
    found: dict[str, object] = json.loads(shell("adopt", *argv, "--format", "json", code=code))
    return found


def test_a_brokers_messages_are_in_an_archive_that_needs_nothing_else(
    shell: Shell,
    broker: str,
    tmp_path: Path,
) -> None:
    cold = f"file://{tmp_path}/archive"
    summary = adopted(shell, broker, "--cold", cold, "--store-id", "broker-a")
    messages = expected(NAME)["messages"]
    assert (summary["store"], summary["messages"], summary["already_there"]) == ("broker-a", len(messages), False)
    topics = {each["topic"] for each in messages}
    ids = {row["message_id"] for topic in topics for row in shell.rows("query", topic, "--all", "--cold", cold)}
    assert ids == {each["msgId"] for each in messages if each["sysFlag"] & 12 in (0, 8)}
    assert shell("check", "--deep", "--cold", cold) == ""
    before = objects(tmp_path / "archive")
    assert adopted(shell, broker, "--cold", cold, "--store-id", "broker-a")["already_there"] is True
    assert objects(tmp_path / "archive") == before


def test_a_volume_continues_the_brokers_queues_and_is_made_once(
    shell: Shell,
    broker: str,
    tmp_path: Path,
) -> None:
    root = str(tmp_path / "store")
    summary = adopted(shell, broker, "--root", root)
    assert summary["cold"] == f"file://{tmp_path}/cold"
    topics = {row["topic"] for row in shell.rows("topics", "--root", root)}
    assert topics >= {each["topic"] for each in expected(NAME)["messages"]}
    lines = tmp_path / "lines.txt"
    lines.write_text("the first one of tierlog\n")
    topic = min(topics)
    shell("load", str(lines), "--topic", topic, "--root", root)
    newest = shell.rows("query", topic, "--limit", "1", "--root", root)[0]
    assert newest["body"] == "the first one of tierlog"
    again = adopted(shell, broker, "--root", root)
    assert (again["already_there"], shell.rows("query", topic, "--limit", "1", "--root", root)[0]) == (True, newest)
    shell("adopt", broker, "--root", str(tmp_path / "other"), "--cold", f"file://{tmp_path}/cold", code=FAILED)
    assert "has taken store 'rocketmq' over already" in shell.err
    assert not (tmp_path / "other").exists()


def test_killed_between_archive_and_volume_it_makes_the_volume_when_it_is_run_again(
    shell: Shell,
    broker: str,
    tmp_path: Path,
) -> None:
    cold, root = f"file://{tmp_path}/cold", str(tmp_path / "store")
    adopted(shell, broker, "--cold", cold)  # as far as the kill left it
    assert adopted(shell, broker, "--root", root)["already_there"] is True
    assert shell.rows("topics", "--root", root)


def test_killed_while_the_volume_is_made_it_goes_on_when_it_is_run_again(
    shell: Shell,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = str(tmp_path / "store")

    def last_deed(*arguments: Any) -> NoReturn:
        take_over(*arguments)
        raise StoreError("the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr("tierlog.service.engine.restore.take_over", last_deed)
        shell("adopt", broker, "--root", root, code=FAILED)
    assert "the power is gone" in shell.err
    assert adopted(shell, broker, "--root", root)["already_there"] is True
    assert shell.rows("topics", "--root", root)


def test_what_fails_before_the_commit_leaves_no_store_and_no_object(
    shell: Shell,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, calls = LogPlan.tasks, list[int]()

    class Failing:
        def __init__(self, task: object) -> None:
            self._task = task

        def run(self) -> object:
            calls.append(1)
            if len(calls) == 2:
                raise StoreError("the archive is full")
            return self._task.run()  # type: ignore[attr-defined]

    with monkeypatch.context() as patched:
        patched.setattr(LogPlan, "tasks", lambda plan, store: [Failing(task) for task in run(plan, store)])
        shell("adopt", broker, "--cold", f"file://{tmp_path}/cold", code=FAILED)
    assert objects(tmp_path / "cold") == {}
    assert adopted(shell, broker, "--cold", f"file://{tmp_path}/cold")["already_there"] is False


def test_messages_that_damage_cut_off_are_counted(shell: Shell, tmp_path: Path) -> None:
    broker = str(unpack("crashed-flip", tmp_path / "broker"))
    summary = adopted(shell, broker, "--cold", f"file://{tmp_path}/cold", code=NOTHING)
    assert (summary["messages"], summary["cut_off"]) == (len(expected("crashed-flip")["messages"]), 7)
    assert "7 whole messages behind it are not archived" in shell.err


def test_without_a_place_or_over_another_store_it_is_refused(
    shell: Shell,
    broker: str,
    tmp_path: Path,
) -> None:
    shell("adopt", broker, code=WRONG_USE)
    assert "no archive" in shell.err
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n")
    shell("load", str(lines), "--topic", "t", "--root", str(tmp_path / "store"))
    shell("adopt", broker, "--root", str(tmp_path / "store"), code=WRONG_USE)
    assert "this is the directory of store" in shell.err
    assert not (tmp_path / "cold").exists()


@pytest.mark.parametrize(
    ("missing", "says"), [("pyspark", "pip install 'tierlog[spark]', and Java 17"), ("java", "Spark needs Java")]
)
def test_a_job_without_spark_or_java_says_what_to_install(missing: str, says: str, tmp_path: Path) -> None:
    hidden = "sys.modules['pyspark'] = None" if missing == "pyspark" else "pass"
    program = f"import sys; {hidden}; from tierlog.pipeline.jobs.ingest import main; main(sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--cold", f"file://{tmp_path}/c", "--store", "s", "--json", "x"],
        capture_output=True, text=True, check=False, env={"PATH": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert says in ended.stderr
