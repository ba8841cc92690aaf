"""A process that works on a store and kills itself with SIGKILL at a chosen call to the disk or the archive.

``python -m tests.support.processes.kill_worker`` reads one JSON request a line, forks a child for each (everything is
imported and compiled by then), and answers with the child's wait status once it is dead. The child appends batches that
nobody sent before, writes down what was acknowledged, archives, removes hot copies, and goes on until it is killed. A
request with ``writers`` starts that many threads, beside those of the store itself; one without is a single thread.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.oracles.ledger import TOPIC, Ledger, Numbers
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.local import LocalObjectStore

_CHANGING_FILES = {"write_at", "zero", "flush"}
CHANGING_CALLS = {"create", "open", "rename", "unlink", "flush_dir", "make_dirs", "put", "upload", "head", "get_range"}


class Countdown:
    """Kills this process at the given number of calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Counted:
    """Delegates everything and counts the calls that change something, files opened here included."""

    def __init__(self, inner: Any, countdown: Countdown, names: set[str]) -> None:
        self._inner, self._countdown, self._names = inner, countdown, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._call, name, found) if name in self._names else found

    def _call(self, name: str, found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._countdown.step()
        result = found(*args, **kwargs)
        return Counted(result, self._countdown, _CHANGING_FILES) if name == "open" else result


def work(folder: Path, lines_file: Path, seed: int, kill_at: int) -> None:
    """Go on where the file ``sent`` says, until killed or all lines were sent."""
    chance = random.Random(seed)
    lines = [json.loads(line) for line in lines_file.read_text().splitlines()]
    countdown = Countdown(kill_at)
    sent = Numbers(folder / "sent")
    acknowledged = Numbers(folder / "acknowledged")
    clock = SystemClock()
    engine = Store.open(
        folder / "store",
        settings=tiny_settings(),
        cold_url=f"file://{folder}/cold",
        fs=Counted(LocalFileSystem(), countdown, CHANGING_CALLS),
        objects=Counted(LocalObjectStore(folder / "cold", clock), countdown, CHANGING_CALLS),
    )
    at = sent.last()
    while at < len(lines):
        end = min(at + chance.randrange(1, 10), len(lines))
        sent.add(end)
        engine.append([Message(TOPIC, bytes.fromhex(body), keys) for body, keys in lines[at:end]])
        acknowledged.add((at, end))
        at = end
        what = chance.randrange(10)
        if what == 0:
            engine.archive(everything=True, drop_hot=chance.random() < 0.7)
        elif what == 1:
            engine.archive(drop_hot=chance.random() < 0.5)
        elif what == 2:
            engine.flush()
    engine.archive(everything=True, drop_hot=True)
    engine.close()


def work_together(folder: Path, seed: int, kill_at: int, writers: int) -> None:
    """Several threads append at once until the process is killed; the store's own threads run beside them."""
    countdown = Countdown(kill_at)
    engine = Store.open(
        folder / "store",
        settings=tiny_settings(
            hot__flush_interval_ms=5, hot__checkpoint_interval_ms=20, hot__retention_ms=0, cold__tail_interval_ms=0
        ),
        cold_url=f"file://{folder}/cold",
        fs=Counted(LocalFileSystem(), countdown, CHANGING_CALLS),
        objects=Counted(LocalObjectStore(folder / "cold", SystemClock()), countdown, CHANGING_CALLS),
    )
    engine.start()
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            _write(engine, Ledger(folder, writer), random.Random(seed * 100 + writer))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise failures[0]


def _write(engine: Store, ledger: Ledger, chance: random.Random) -> None:
    at = ledger.sent.last()
    while True:
        end = at + chance.randrange(1, 6)
        ledger.sent.add(end)
        durability = chance.choice(list(Durability))  # a kill loses nothing that was written, flushed or not
        engine.append([ledger.message(number, chance) for number in range(at, end)], durability)
        ledger.acknowledged.add((at, end))
        at = end
        if ledger.writer == 0 and chance.randrange(40) == 0:
            engine.archive(everything=True, drop_hot=True)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                folder, seed, kill_at = Path(request["folder"]), request["seed"], request["kill_at"]
                if "writers" in request:
                    work_together(folder, seed, kill_at, request["writers"])
                else:
                    work(folder, Path(request["lines"]), seed, kill_at)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
