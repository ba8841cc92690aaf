"""How long until `tierlog --help` or another command has ended, and until `tierlog serve` answers /readyz?

In turns, each in a process of its own: help, and beside it what an interpreter takes that does nothing; a command that
opens no store (`dump` of a store's checkpoint), and two that open a local one that was closed (`topics`, and `query` of
a key), which call no kernel if it is small; the same query of one that was archived, where kernels look the key up; a
service with warm kernels on a new store (its segments are 64 MiB: to write zeros is not the question), and on one that
was killed. At the end once with no compiled kernel at all, which is what the first start on a machine takes, and what
building the image takes off its first start.

``python benchmarks/start.py [--runs 5] [--dir build/bench] [--no-first]``
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Report, Row, as_installed, in_turns
from tests.support.objects.real_s3 import free_port

_TIERLOG = (sys.executable, "-m", "tierlog.service.main")
_SETTINGS = {"TIERLOG_HOT_SEGMENT_BYTES": str(64 << 20), "TIERLOG_LOG_LEVEL": "warning"}
_POLL_S = 0.005


def to_its_end(*command: str) -> float:
    begun_s = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=as_installed())
    return time.perf_counter() - begun_s


def loaded(folder: Path, name: str) -> Path:
    """A store with a few hundred messages."""
    lines, store = folder / "lines", folder / name
    lines.write_text("".join(f"id={number} line {number}\n" for number in range(500)))
    command = ("load", str(lines), "--topic", "orders", "--key", r"id=(\d+)", "--root", str(store))
    to_its_end(*_TIERLOG, *command)
    return store


def until_ready(root: Path, **environment: str) -> float:
    """Seconds from its start to the first answer of /readyz; it is killed then."""
    port = free_port()
    command = (*_TIERLOG, "serve", "--root", str(root), "--port", str(port))
    begun_s = time.perf_counter()
    with subprocess.Popen(command, env=as_installed(**_SETTINGS, **environment), stderr=subprocess.DEVNULL) as process:
        try:
            while not _is_ready(f"http://127.0.0.1:{port}/readyz"):
                if process.poll() is not None:
                    raise SystemExit(f"the service ended with {process.returncode}")
                time.sleep(_POLL_S)
            return time.perf_counter() - begun_s
        finally:
            process.kill()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    parser.add_argument("--no-first", action="store_true", help="leave out the start without compiled kernels")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    report = Report.of(__file__, __doc__)
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        folder = Path(name)
        stores = iter(range(1_000_000))
        store, archived = loaded(folder, "loaded"), loaded(folder, "archived")
        to_its_end(*_TIERLOG, "archive", "--all", "--root", str(archived), "--cold", f"file://{folder.absolute()}/cold")
        local = ("--root", str(store), "--read-only")
        query = ("query", "orders", "--key", "7", "--read-only")
        figures = in_turns(
            {
                "dump": lambda: to_its_end(*_TIERLOG, "dump", str(store / "checkpoint")),
                "topics": lambda: to_its_end(*_TIERLOG, "topics", *local),
                "query": lambda: to_its_end(*_TIERLOG, *query, "--root", str(store)),
                "kernels": lambda: to_its_end(*_TIERLOG, *query, "--root", str(archived)),
                "help": lambda: to_its_end(*_TIERLOG, "--help"),
                "pass": lambda: to_its_end(sys.executable, "-c", "pass"),
                "new": lambda: until_ready(folder / f"store-{next(stores)}"),
                "old": lambda: until_ready(folder / "store"),
            },
            given.runs,
        )
        report.add(Row("tierlog --help", "s", {"tierlog": figures["help"]}, target=0.3, smaller_is_better=True))
        report.add(Row("python -c pass", "s", {"python": figures["pass"]}, smaller_is_better=True))
        for name, what, target in (
            ("dump", "", 0.4),
            ("topics", "of a local store", 0.4),
            ("query", "of a local store", 0.7),
            ("kernels", "of a local store that was archived", 0.7),
        ):
            command = "query, by kernels" if name == "kernels" else name
            row = Row(f"tierlog {command}", "s", {"tierlog": figures[name]}, target=target, smaller_is_better=True)
            report.add(replace(row, note=what))
        for name, what in (("new", "tierlog serve, a new store"), ("old", "tierlog serve, a killed store")):
            report.add(Row(f"{what}, until ready", "s", {"tierlog": figures[name]}, target=2.0, smaller_is_better=True))
        if not given.no_first:
            first_s = until_ready(folder / "first", NUMBA_CACHE_DIR=str(folder / "kernels"))
            report.add(Row("the first start of all, until ready", "s", {"tierlog": [first_s]}, smaller_is_better=True))
    report.save()


if __name__ == "__main__":
    main()
