"""Racing writers in processes of their own, for ``tierlog doctor``: ``python -m tierlog.service.cli.race_process`` is
one of them.

A racer reads a line of JSON with what it needs to open the store, answers ``ready``, and then runs a round for each
further line. It ends at the end of its input, also when its parent was killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tierlog.service.config.settings import Settings
from tierlog.tiering.base.errors import ObjectStoreUnavailableError
from tierlog.tiering.objects.races import ThreadRacers, WriteAnswer

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 10.0


class ProcessRacers:
    """``writers`` threads spread over ``processes`` processes, which start every round together."""

    def __init__(self, running: list[subprocess.Popen[str]], writers: int, round_limit_s: float) -> None:
        self._running = running
        self._writers = writers
        self._round_limit_s = round_limit_s

    @property
    def writers(self) -> int:
        """The number of threads in all."""
        return self._writers

    def run(self, key: str, etag: str | None) -> Sequence[WriteAnswer]:
        """Runs one round in all processes; raises ObjectStoreUnavailableError if one of them was lost."""
        line = json.dumps([key, etag]) + "\n"
        for process in self._running:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.write(line)
                process.stdin.flush()
        outcomes: list[WriteAnswer] = []
        for answer in _answers(self._running, self._round_limit_s):
            outcomes += [WriteAnswer(text) for text in json.loads(answer)]
        return outcomes


@contextmanager
def process_racers(cold_url: str, settings: Settings, *, writers: int, processes: int) -> Iterator[ProcessRacers]:
    """Yields racers on the store behind a cold URL; their processes are gone when the context ends."""
    share, rest = divmod(writers, processes)
    running: list[subprocess.Popen[str]] = []
    try:
        first = 0
        for number in range(processes):
            count = share + (number < rest)
            process = subprocess.Popen(
                [sys.executable, "-m", "tierlog.service.cli.race_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            running.append(process)
            assert process.stdin is not None
            start = {"cold_url": cold_url, "cold": settings.cold.model_dump(), "count": count, "first": first}
            process.stdin.write(json.dumps(start) + "\n")
            process.stdin.flush()
            first += count
        for answer in _answers(running, _START_LIMIT_S):
            if answer != "ready\n":
                raise ObjectStoreUnavailableError("a racing process did not start")
        cold = settings.cold
        limit_s = cold.max_attempts * (cold.connect_timeout_s + cold.read_timeout_s + 2.0**cold.max_attempts)
        yield ProcessRacers(running, writers, 2 * limit_s)
    finally:
        for process in running:
            with suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
        for process in running:
            try:
                process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _answers(running: list[subprocess.Popen[str]], limit_s: float) -> list[str]:
    """Reads a line of each; ObjectStoreUnavailableError if one does not come within the limit."""
    lines = [""] * len(running)

    def read(number: int) -> None:
        stdout = running[number].stdout
        assert stdout is not None
        with suppress(OSError, ValueError):
            lines[number] = stdout.readline()

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(len(running))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
    if not all(lines):
        raise ObjectStoreUnavailableError("a racing process was lost")
    return lines


def main() -> None:
    """Runs one racing process."""
    from tierlog.service.engine.opening import open_archive
    from tierlog.tiering.base.clock import SystemClock

    start = json.loads(sys.stdin.readline())
    settings = Settings.load(overrides={f"cold.{name}": value for name, value in start["cold"].items()})
    store = open_archive(start["cold_url"], settings, SystemClock())
    racers = ThreadRacers(store, start["count"], start["first"])
    print("ready", flush=True)
    for line in sys.stdin:
        key, etag = json.loads(line)
        print(json.dumps(racers.run(key, etag)), flush=True)


if __name__ == "__main__":
    main()
