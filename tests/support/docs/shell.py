"""A shell that a page's commands run in, one after another, as in a terminal of 120 columns; variables stay."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_COLUMNS = 120
_LIMIT_S = 120.0


class Shell:
    """One bash; what is left running is ended with it."""

    def __init__(self, folder: Path, scratch: Path, environment: Mapping[str, str]) -> None:
        self._scratch = scratch
        self._errors = scratch / "stderr"
        self._errors.touch()
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _COLUMNS, 0, 0))
        modes = termios.tcgetattr(inside)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(inside, termios.TCSANOW, modes)
        self._ends, ended = os.pipe()
        os.set_blocking(self._terminal, False)
        with self._errors.open("ab") as errors:
            self._bash = subprocess.Popen(
                ["bash", "--norc", "--noprofile"],
                stdin=subprocess.PIPE, stdout=inside, stderr=errors, cwd=folder, env=dict(environment),
                pass_fds=(ended,), start_new_session=True, text=True,
            )  # fmt: skip
        os.close(inside)
        self._ended = ended
        os.close(ended)
        self._left: list[int] = []
        self._started = 0

    def run(self, command: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        seen = self._errors.stat().st_size
        script = self._scratch / "command"
        script.write_text(command + "\n")
        code, out = self._tell(f". {script} </dev/null; printf '%d\\n' $? >&{self._ended}")
        return int(code), out, self._errors.read_text()[seen:]

    def start(self, command: str, until: tuple[str, ...]) -> tuple[int, str]:
        """Leave a command running once it has said one of the words; its process, and what it said by then."""
        said = self._scratch / f"background-{self._started}"  # of its own: the shell empties it in its own time
        self._started += 1
        script = self._scratch / "command"
        command = command.rstrip().removesuffix("&")
        script.write_text(f"{command} >{said} 2>&1 </dev/null &\n")
        pid, _ = self._tell(f". {script}; printf '%d\\n' $! >&{self._ended}")
        self._left.append(int(pid))
        for _ in _tries():
            text = said.read_text() if said.exists() else ""
            if any(word in text for word in until):
                return int(pid), text
            if not _is_alive(int(pid)):
                raise AssertionError(f"{command}\nended: {text}")
        raise AssertionError(f"{command}\nnever said {until}: {text}")

    def stop(self, pid: int, number: signal.Signals = signal.SIGINT) -> int:
        """End what was left running, and wait for it; returns its exit code."""
        self._left.remove(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        code, _ = self._tell(f"wait {pid} 2>/dev/null; printf '%d\\n' $? >&{self._ended}")
        return int(code)

    def close(self) -> None:
        """End everything."""
        for pid in list(self._left):
            self.stop(pid, signal.SIGTERM)
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(_LIMIT_S)
        os.close(self._terminal)
        os.close(self._ends)

    def _tell(self, line: str) -> tuple[str, str]:
        assert self._bash.stdin is not None
        self._bash.stdin.write(line + "\n")
        self._bash.stdin.flush()
        out, answer = b"", b""
        until = time.monotonic() + _LIMIT_S
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._terminal, self._ends], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self._bash.kill()
                raise AssertionError(f"no end after {_LIMIT_S} s: {line}\n{out.decode()}")
            if self._ends in ready:
                piece = os.read(self._ends, 100)
                if not piece:
                    raise AssertionError(f"the shell is gone: {line}\n{out.decode()}")
                answer += piece
            out += self._read()
        return answer.decode().strip(), (out + self._read()).decode()

    def _read(self) -> bytes:
        out = b""
        with contextlib.suppress(OSError):
            while piece := os.read(self._terminal, 1 << 16):
                out += piece
        return out


def _tries() -> Iterator[None]:
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        yield
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """Whether a child of the shell runs; one that ended is a zombie until the shell asks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
