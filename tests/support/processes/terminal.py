"""Runs a command in a pseudo terminal of some width and keeps what a person would have seen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass

from tests.conftest import ROOT

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Seen:
    """What came to the terminal, standard error among it, as it was written."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without colours and movements; a line that was written over is as its last writing."""
        lines = _ESCAPES.sub("", self.raw).replace("\r\n", "\n").split("\n")
        return "\n".join(line.rpartition("\r")[2] for line in lines)

    @property
    def lines(self) -> list[str]:
        """Lines of the text that are not empty."""
        return [line for line in self.text.split("\n") if line.strip()]


def in_terminal(*argv: str, columns: int = 100, answer_s: float = 60, typed: str = "", **environment: str) -> Seen:
    """``tierlog`` with these arguments, and what is ``typed`` when it asks; fails if it does not end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    dropped = {"COLUMNS", "NO_COLOR", "FORCE_COLOR", "COLORTERM"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    process = subprocess.Popen(
        [sys.executable, "-m", "tierlog.service.main", *argv],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=kept | {"TERM": "xterm-256color"} | environment,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, typed.encode())
    found = b""
    old = signal.signal(signal.SIGALRM, lambda number, frame: process.kill())
    signal.setitimer(signal.ITIMER_REAL, answer_s)
    try:
        while data := _read(ours):
            found += data
        code = process.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        os.close(ours)
    return Seen(code, found.decode(errors="replace"))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other side was closed
        return b""
