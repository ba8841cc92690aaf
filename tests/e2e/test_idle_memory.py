"""What a service takes that has nothing to do: on the disk and in memory, with head-room (docs/operations.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

MIB = 1 << 20
#: Measured: 193 MiB with an archive in a directory.
MOST_RSS = 230 * MIB
#: Measured: 59 MB, of which 40 are an index file's slots and 16 the log's zeros.
MOST_DISK = 70 * MIB


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, str]]:
    """A service with default settings; its process id and URL."""
    command = [
        sys.executable, "-m", "tierlog.service.main", "serve", "--root", str(folder / "store"),
        "--cold", f"file://{folder}/archive", "--port", "0",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERLOG_")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
    try:
        while "serving http" not in (said := (folder / "log").read_text()):
            assert process.poll() is None, said
            time.sleep(0.1)
        yield process.pid, said.split()[-1]
    finally:
        process.kill()
        process.wait()


def rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def test_an_idle_service_stays_small_also_after_the_start_that_compiles(tmp_path: Path) -> None:
    """It took 440 MiB after its first start: the compiler and what it had made."""
    with serving(tmp_path) as (pid, _):
        for _ in range(30):  # until all kernels are loaded, and what loads them is gone
            before = rss(pid)
            time.sleep(2)
            if abs(rss(pid) - before) < MIB:
                break
        assert rss(pid) < MOST_RSS
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "libarrow" in maps, "it is that process"


def test_no_first_request_waits_for_a_kernel() -> None:
    """The first query by key after a start took 786 ms: it loaded its kernels one by one, and made an index file."""
    code = (
        "from tierlog.service.api.application.process import _warm_up\n"
        "from tierlog.index.kernels.precompile import kernels\n"
        "_warm_up()\n"
        "print([each.py_func.__name__ for each in kernels() if not each.overloads])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_one_message_takes_some_tens_of_megabytes_of_disk(tmp_path: Path) -> None:
    """It took 1.8 GB: a segment and an index file, both with all their blocks."""
    with serving(tmp_path) as (_, url):
        request = urllib.request.Request(
            f"{url}/v1/topics/t/messages", b'{"messages": [{"body": "x", "keys": ["k"]}]}',
            {"content-type": "application/json"},
        )  # fmt: skip
        urllib.request.urlopen(request).close()
        with urllib.request.urlopen(f"{url}/v1/topics/t/messages?key=k") as answer:
            assert b'"complete": true' in answer.read().replace(b'":true', b'": true')
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        taken = {path.name: path.stat().st_blocks * 512 for path in files}
        assert sum(taken.values()) < MOST_DISK, taken
        assert max(path.stat().st_size for path in files) == 1 << 30, "RocketMQ finds the whole segment"
