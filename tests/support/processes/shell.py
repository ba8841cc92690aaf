"""Commands as somebody at a shell gives them: in this process, as a service in its own, and as a tail that follows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.conftest import ROOT
from tierlog.service.exit_codes import DONE
from tierlog.service.main import main

_COMMAND = [sys.executable, "-m", "tierlog.service.main"]
_SMALL_FILES = ["--queue-file-units", "60", "--index-slots", "100", "--index-items", "400"]
#: Sizes of a store of many files.
TINY = ["--segment-bytes", "65536", *_SMALL_FILES]
#: The same with segments of a page each.
TINIEST = ["--segment-bytes", "4096", *_SMALL_FILES]


class Shell:
    """Runs commands in this process and keeps what they said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *argv: str, code: int = DONE) -> str:
        ended = main(argv)
        self.out, self.err = self._capsys.readouterr()
        assert ended == code, (argv, self.out, self.err)
        return self.out

    def rows(self, *argv: str, code: int = DONE) -> list[Any]:
        return [json.loads(line) for line in self(*argv, "--format", "ndjson", code=code).splitlines()]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def archived_lines(tmp_path: Path, shell: Shell) -> list[str]:
    """A store with 60 lines of topic ``t`` under two keys, archived; the flags that name it."""
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"order-{number % 2} line {number} {'x' * 60}\n" for number in range(60)))
    where = ["--root", str(tmp_path / "store"), "--cold", f"file://{tmp_path / 'cold'}"]
    shell("load", str(lines), "--topic", "t", "--key", r"order-\d", *where, *TINIEST)
    shell("archive", "--all", *where)
    return where


def served(*argv: str, quiet: bool = True) -> AbstractContextManager[str]:
    """The URL of ``tierlog serve`` in a process of its own, which is ended and must end well, by itself."""
    return command("serve", *argv, says="serving", quiet=quiet)


@contextmanager
def command(name: str, *argv: str, says: str, quiet: bool = True) -> Iterator[str]:
    """The URL of a command that serves, told in the line with ``says``; as :func:`served`."""
    process = subprocess.Popen(
        [*_COMMAND, name, "--port", "0", *argv],
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if says in line:
                break
        else:
            raise AssertionError(said)
        more: list[str] = []
        reader = threading.Thread(target=more.extend, args=(process.stderr,), daemon=True)
        reader.start()  # a pipe that nobody reads would stop the service in the middle of a line
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, more
        reader.join(30)
        rest = "".join(line for line in more if '"event":"request"' not in line)
        assert "too long" not in rest
        assert rest == "" or not quiet
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()


@contextmanager
def followed(*argv: str) -> Iterator[IO[str]]:
    """What ``tierlog tail --follow`` writes in a process of its own, which is interrupted and must end well."""
    tail = subprocess.Popen([*_COMMAND, "tail", *argv, "--follow"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert tail.stdout is not None
    try:
        yield tail.stdout
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == DONE
    finally:
        tail.kill()
        tail.wait()
        tail.stdout.close()
