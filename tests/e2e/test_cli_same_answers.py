"""One store asked in every way: opened, opened read-only, by a service, and, all archived, in its bucket alone.

What differs by where it is asked, and is left out here: ``tier`` once messages have moved, coverage (its cost and its
stores), and of ``stats`` what belongs to a process or to a volume.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.processes.shell import TINY, served
from tierlog.service.exit_codes import DONE
from tierlog.service.main import main

Rows = list[dict[str, Any]]
_HALF = 400
#: Of stats: what is of the store, and not of the process that was asked, its disk or the moment.
_STORE_STATS = (
    "store_id", "cold_url", "topics", "log_begin", "log_end", "flushed_to", "archived_to", "indexed_to", "cold_min",
    "open_erasures", "hot_bytes", "unarchived_bytes",
)  # fmt: skip


@dataclass
class Place:
    """What was asked there while messages were in both tiers, and after all were archived."""

    target: list[str]
    said: dict[str, Any] = field(default_factory=dict)


@dataclass
class Asked:
    both: dict[str, Place]
    moved: dict[str, Place]


def lines(first: int, count: int) -> str:
    return "".join(
        f"{(number * 7919) % 100_000:05d} k{number % 23} {'wide ü' * (number % 9)} {number}\n"
        for number in range(first, first + count)
    )


def run(capfd: pytest.CaptureFixture[bytes], *argv: str) -> tuple[int, bytes]:
    code = main(argv)
    return code, capfd.readouterr().out


def rows_of(form: str, out: bytes, name: str) -> Rows:
    """The rows, whichever format they came in, as far as that keeps them apart."""
    match form:
        case "ndjson":
            return [json.loads(line) for line in out.splitlines()]
        case "json":
            found: Rows = json.loads(out)[name]
            return found
        case "csv":
            return list(csv.DictReader(io.StringIO(out.decode())))
        case _:
            table: Rows = pa.ipc.open_stream(out).read_all().to_pylist()
            return table


def without(rows: Rows, *names: str) -> Rows:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


QUESTIONS: dict[str, list[str]] = {
    "key": ["query", "t", "--key", "k7"],
    "newest": ["query", "t", "--limit", "9"],
    "oldest": ["query", "t", "--order", "oldest", "--limit", "9"],
    "all": ["query", "t", "--all", "--limit", "100"],
    "born": ["query", "t", "--time", "born", "--from", "20000000", "--to", "70000000", "--all"],
    "born and key": ["query", "t", "--time", "born", "--key", "k3", "--order", "oldest", "--all"],
    "filtered": ["query", "t", "--tag", "k3 || k5", "--contains", "wide", "--contains", "ü", "--all"],
    "nothing": ["query", "t", "--key", "absent"],
    "unknown": ["query", "nope"],
    "tail": ["tail", "t"],
    "tail of one queue": ["tail", "t", "--queue", "2", "--offset", "5", "--limit", "7"],
    "newest of all queues": ["tail", "t", "-n", "13"],
    "newest of one queue": ["tail", "t", "--queue", "1", "--last", "450", "--limit", "7"],
    "newest by tag": ["tail", "t", "-n", "20", "--tag", "k3 || k5"],
    "tail by tag": ["tail", "t", "--tag", "k3 || k5"],
    "topics": ["topics"],
}
FORMATS = ("ndjson", "json", "csv", "arrow")
NAMES = {"topics": "topics"}


def ask(place: Place, capfd: pytest.CaptureFixture[bytes], *, is_cold: bool = False) -> None:
    for name, argv in QUESTIONS.items():
        for form in FORMATS if name == "key" else FORMATS[:1]:
            code, out = run(capfd, *argv, "--format", form, *place.target)
            if out and code == DONE:
                answer = rows_of(form, out, NAMES.get(name, "messages"))
                place.said[f"{name}, {form}"] = code, without(answer, "tier") if name != "topics" else answer
            else:
                place.said[f"{name}, {form}"] = code
    _, out = run(capfd, *QUESTIONS["key"], "--limit", "4", "--format", "json", *place.target)
    page = json.loads(out)
    _, out = run(capfd, *QUESTIONS["key"], "--cursor", page["next_cursor"], "--format", "json", *place.target)
    for form in FORMATS:
        code, one = run(capfd, "message", page["messages"][0]["message_id"], "--format", form, *place.target)
        place.said[f"message, {form}"] = code, without(rows_of(form, one, "messages"), "tier")
    place.said["cursor"] = page["next_cursor"], without(json.loads(out)["messages"], "tier")
    middle = page["messages"][-1]["store_ms"]
    for name, more in (("since", ["--from", str(middle)]), ("until", ["--to", str(middle)])):
        code, out = run(capfd, "query", "t", *more, "--all", "--format", "ndjson", *place.target)
        place.said[name] = code, without(rows_of("ndjson", out, "messages"), "tier")
    code, out = run(capfd, "tail", "t", "--from", str(middle), "--format", "ndjson", *place.target)
    place.said["tail since"] = code, without(rows_of("ndjson", out, "messages"), "tier")
    place.said["check"] = run(capfd, "check", "--deep", *place.target)
    _, out = run(capfd, "files", "--format", "json", *place.target)
    files: Rows = json.loads(out)["files"]
    place.said["files"] = [row for row in files if not is_cold or row["tier"] == "cold"]
    place.said["cold files"] = [row for row in files if row["tier"] == "cold"]
    _, out = run(capfd, "stats", "--format", "json", *place.target)
    stats = json.loads(out)
    place.said.update({f"stats.{name}": value for name, value in stats.items() if name in _STORE_STATS})


@pytest.fixture
def asked(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Asked:
    root, cold, file = str(tmp_path / "store"), f"file://{tmp_path}/cold", tmp_path / "some.log"
    where = ["--root", root, "--cold", cold]
    how = [
        "--topic",
        "t",
        "--key",
        r"k\d+",
        "--tag",
        r"k\d+",
        "--born",
        r"^\d+",
        "--born-format",
        "epoch_s",
        "--queues",
        "4",
    ]
    file.write_text(lines(0, _HALF))
    assert main(["load", str(file), *how, *where, *TINY]) == DONE
    assert main(["archive", "--all", "--drop-hot", *where]) == DONE
    file.write_text(lines(_HALF, _HALF))
    assert main(["load", str(file), *how, *where]) == DONE
    capfdbinary.readouterr()
    both = {"opened": Place(["--root", root]), "read-only": Place(["--root", root, "--read-only"])}
    for place in both.values():
        ask(place, capfdbinary)
    with served("--root", root) as url:
        both["service"] = Place(["--url", url])
        ask(both["service"], capfdbinary)
        assert main(["archive", "--all", "--drop-hot", "--url", url]) == DONE
        capfdbinary.readouterr()
        moved = {"service": Place(["--url", url])}
        ask(moved["service"], capfdbinary)
    moved["archive"] = Place(["--cold", cold])
    ask(moved["archive"], capfdbinary, is_cold=True)
    return Asked(both, moved)


@pytest.mark.slow
def test_the_answer_is_the_same_wherever_it_is_asked(asked: Asked) -> None:
    first = asked.both["opened"].said
    assert first["key, ndjson"][0] == DONE
    assert len(first["all, ndjson"][1]) == len(first["tail, ndjson"][1]) == 2 * _HALF
    assert first["check"] == (DONE, b"")
    for name in ("read-only", "service"):
        said = asked.both[name].said
        assert [question for question in first if said.get(question) != first[question]] == [], name
    for name, place in asked.moved.items():
        differing = {question for question in first if place.said.get(question) != first[question]}
        assert {one for one in differing if not one.startswith(("stats.", "files", "cold files"))} <= {"topics, ndjson"}
        assert place.said["cold files"] == asked.moved["service"].said["cold files"], name
