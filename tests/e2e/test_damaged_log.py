"""The procedures of docs/disaster.md for a log that the disk has damaged, with commands and processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.conftest import ROOT
from tests.support.processes.shell import Shell, archived_lines, served
from tierlog.service.exit_codes import FAILED, NOTHING, WRONG_USE


def hurt(root: Path, number: int) -> int:
    """Turns over the body of one line that was loaded; returns the segment's base offset."""
    wanted = f"line {number} ".encode()
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        at = data.find(wanted)
        if at >= 0:
            path.write_bytes(data[:at] + b"\xff" * 8 + data[at + 8 :])
            return int(path.name)
    raise AssertionError("no segment holds the line")


def ready(url: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def lines_of(shell: Shell, *where: str) -> list[int]:
    rows = shell.rows("query", "t", "--key", "order-0", "--limit", "100", *where)
    rows += shell.rows("query", "t", "--key", "order-1", "--limit", "100", *where)
    return sorted(int(row["body"].split()[2]) for row in rows if "body" in row)


def test_what_the_archive_has_is_put_back(tmp_path: Path, shell: Shell) -> None:
    where = archived_lines(tmp_path, shell)
    root = tmp_path / "store"
    whole = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    hurt(root, 7)
    only = ["--root", str(root)]
    # nobody asks for that part, and the service says so all the same
    with served(*where, quiet=False) as url:
        deadline_s = time.monotonic() + 60
        while ready(url)["damage"] is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert "t/" in str(ready(url)["damage"])
    with served(*where) as url:
        assert "the log cannot be read in [" in str(ready(url)["damage"])
        assert json.loads(shell("stats", "--url", url, "--format", "json"))["damaged_ranges"] == 1
    # what repair says, and what it does
    said = shell("repair", *only, code=NOTHING)
    assert "the archive has it: `tierlog repair --root DIR --from-archive` puts it back" in said
    assert "would be put back" in shell("repair", "--from-archive", "--dry-run", *only, code=NOTHING)
    assert "was put back from the archive" in shell("repair", "--from-archive", *only)
    assert {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()} == whole
    shell("check", "--deep", *only)
    assert lines_of(shell, *only, "--read-only") == list(range(60))
    with served(*where) as url:
        assert ready(url)["damage"] is None


def test_a_start_with_known_damage_says_so_on_standard_error(tmp_path: Path, shell: Shell) -> None:
    where = archived_lines(tmp_path, shell)
    hurt(tmp_path / "store", 7)
    shell("check", "--root", str(tmp_path / "store"), code=NOTHING)
    assert "t/" in shell.err, "what is lost is named beside the finding"
    command = [sys.executable, "-m", "tierlog.service.main", "serve", *where, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as service:
        assert service.stderr is not None
        said = ""
        try:
            for line in service.stderr:
                if "serving http" in line:
                    break
                said += line
        finally:
            service.terminate()
    assert "the log cannot be read in [" in said, "as the check without a service found"
    assert "tierlog repair" in said


def test_what_the_archive_lacks_is_named_and_all_else_moves_to_a_new_volume(tmp_path: Path, shell: Shell) -> None:
    """The damaged part is not archived yet, and cannot be: a new volume takes everything else over."""
    where = archived_lines(tmp_path, shell)
    old, new = tmp_path / "store", tmp_path / "new"
    more = tmp_path / "more.txt"
    more.write_text("".join(f"order-{number % 2} line {number} {'x' * 60}\n" for number in range(60, 90)))
    shell("load", str(more), "--topic", "t", "--key", r"order-\d", *where)
    hurt(old, 65)
    shell("archive", "--all", *where, code=FAILED)
    said = shell("repair", "--from-archive", "--root", str(old), code=NOTHING)
    assert "the archive does not have it" in said
    assert "t/" in said
    assert "docs/disaster.md" in said
    to_new = ["--root", str(new), "--cold", where[-1]]
    shell("flush", *to_new, "--restore")
    report = json.loads(shell("salvage", str(old), "--root", str(new), "--format", "json", code=NOTHING))
    assert (report["appended"], len(report["not_saved"])) == (29, 1)
    assert lines_of(shell, "--root", str(new), "--read-only") == [*range(65), *range(66, 90)]


def test_from_archive_is_about_a_directory_alone(tmp_path: Path, shell: Shell) -> None:
    shell("repair", "--from-archive", "--cold", f"file://{tmp_path}", code=WRONG_USE)
    assert "--root" in shell.err
