"""Programs in other languages beside the tests: each line of their input is answered with a line."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: What would print where answers are read, or lead a program to libraries that are not its own.
_LEFT_OUT = ("JAVA_TOOL_OPTIONS", "PYTHONPATH")


class LineProgram:
    """A running program that answers each line with a line, in order."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ask(self, line: str, *, limit_s: float) -> str:
        """The answer; one that takes longer than the limit ends the process, and fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(limit_s, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert answer, f"the process died or did not answer in {limit_s:.0f} s:\n{self.end_of_log()}"
        return answer

    def stop(self, line: str, *, limit_s: float) -> None:
        """Tell a program to end by itself, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._process.wait(limit_s)

    def kill(self) -> None:
        """As SIGKILL does."""
        self._process.kill()
        self._process.wait()

    def end_of_log(self) -> str:
        """What the libraries logged last."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([line for line in lines if "|-INFO" not in line][-40:])


@contextmanager
def line_program(command: Sequence[str], work: Path) -> Iterator[LineProgram]:
    """Run a command in a folder until its input ends; what it writes to standard error lies there too."""
    log = work / "errors.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", cwd=work,
            env={**{name: value for name, value in os.environ.items() if name not in _LEFT_OUT}, "HOME": str(work)},
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield LineProgram(process, log)
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
