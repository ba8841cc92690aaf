"""Apache RocketMQ's own Java classes beside a benchmark: one warmed process that does a run whenever it is told.

What it can be told is in ``rocketmq_java`` (``Main.java`` and the methods that it names).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tools.java_programs import build_java_peer, java_program
from tests.tools.line_programs import LineProgram

_MAIN = "tierlog.peer.Main"
_HEAP = "6g"
_LIMIT_S = 600.0
#: What a command takes when it is not told otherwise.
_DEFAULTS: dict[str, dict[str, object]] = {
    "append": {"n": 1_000_000, "threads": 1, "body": 256, "sync": False, "batch": 1, "prewritten": True},
    "fill": {"n": 1_000_000, "body": 256},
    "consume": {"n": 1 << 62, "decode": True},
    "query_message": {"queries": 200_000, "decode": False},
    "index_put": {"n": 20_000_000, "slots": 5_000_000, "items": 20_000_002},
    "compact": {},
    "query_before": {"queries": 200_000},
    "query_after": {"queries": 20_000},
}
_KEYED = ("append", "fill", "index_put")


class RocketMQ:
    """A running process; files of ``index_put`` and ``fill`` stay until it is told so again."""

    def __init__(self, program: LineProgram) -> None:
        self._program = program

    def run(self, command: str, **options: object) -> dict[str, Any]:
        """Do it once: at least ``seconds`` and ``rate`` (per second)."""
        keys = {"keys": "random"} if command in _KEYED else {}
        return _ask(self._program, {"command": command, **_DEFAULTS[command], **keys, **options})

    def rate(self, command: str, key: str = "rate", **options: object) -> float:
        """The figure that a side of a row is: :meth:`run`, and only that."""
        return float(self.run(command, **options)[key])

    def prepare_killed(self, folder: Path, *, n: int, body: int = 256, linger_ms: int = 2000) -> int:
        """Leave a store in the folder as a process leaves it that is killed; bytes of its log."""
        command = {"command": "wait_to_be_killed", "keys": "random", "n": n, "body": body, "linger_ms": linger_ms}
        with _process(folder) as program:
            found = _ask(program, command)
            program.kill()
        return int(found["bytes"])

    def recovered_seconds(self, folder: Path, *, with_start: bool = False) -> float:
        """A process of its own opens the killed store until queues and index are there, and is killed again.

        The start of Java itself only counts if that is asked for.
        """
        begun_s = time.perf_counter()
        with _process(folder) as program:
            found = _ask(program, {"command": "recover"})
            seconds = time.perf_counter() - begun_s if with_start else float(found["seconds"])
            program.kill()
        return seconds


@contextmanager
def rocketmq(folder: Path) -> Iterator[RocketMQ]:
    """Start Java with a folder for its files; raises ``ToolMissingError`` without Maven or a JDK."""
    with _process(folder) as program:
        yield RocketMQ(program)


@contextmanager
def _process(folder: Path) -> Iterator[LineProgram]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve()
    with java_program(build_java_peer(), _MAIN, path, heap=_HEAP, arguments=[str(path)]) as program:
        yield program


def _ask(program: LineProgram, command: dict[str, object]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(program.ask(json.dumps(command), limit_s=_LIMIT_S))
    if "error" in answer:
        raise RuntimeError(f"RocketMQ failed on {command}:\n{answer['error']}\n{program.end_of_log()}")
    return answer
