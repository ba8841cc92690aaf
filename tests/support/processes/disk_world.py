"""Real disks that fill up, turn read-only, or forget what was not flushed: a store on a file system of its own.

``unshare -m python -m tests.support.processes.disk_world SCENARIO FOLDER SEED`` mounts below FOLDER, where nobody else
sees it, writes through :mod:`tests.support.processes.fault_worker` in a child process, opens what is left in another,
compares it with the ledgers in FOLDER, and prints one JSON line. Needs root; exits with 77 where nothing can be
mounted.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.oracles.ledger import Ledger, compare
from tests.support.processes.fault_worker import unread, work, worker_settings, write
from tests.support.stores.small_steps import small_steps
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import DiskFailedError, StoreError
from tierlog.tiering.base.fs import LocalFileSystem

_EXT4_IOC_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
WRITERS = 3
#: Exit code for a machine on which a scenario cannot be played.
CANNOT = 77
ENDLESS = 1 << 40


class Disk:
    """A file system of its own for ``FOLDER/store``; the ledgers beside it lie on the machine's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mountpoint = folder / "store"
        self.mountpoint.mkdir()

    def mount(self, *arguments: str) -> None:
        done = subprocess.run(
            ["mount", *arguments, str(self.mountpoint)], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            print(f"cannot mount: {done.stderr.strip()}", file=sys.stderr)
            raise SystemExit(CANNOT)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.mountpoint)], check=True)

    def ballast(self, size_bytes: int) -> None:
        """Something else that takes room; 0 gives it back."""
        path = self.mountpoint / "ballast"
        path.write_bytes(bytes(size_bytes)) if size_bytes else path.unlink()

    def compare(self, writers: int) -> dict[str, Any]:
        """Open what is left, compare, write a little more, and do so again; in a child, whose maps end with it."""

        def look() -> dict[str, int]:
            found: dict[str, int] = {}
            for _ in range(2):
                engine = Store.open(self.folder / "store", settings=worker_settings())
                found["acknowledged"], found["found"] = compare(engine, self.folder, writers, deep=True)
                engine.close()
                outcome = work(self.folder, 1, 3, 0)
                assert outcome["stage"] == "none", outcome
            return found

        found = answer(in_child(look))
        assert found, "the store that is left is not as it should be"
        return dict(found)


def in_child(step: Callable[[], Any]) -> tuple[int, int]:
    """Run a step in a child; its process id and a pipe from which its JSON answer can be read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, json.dumps(step()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def answer(child: tuple[int, int]) -> Any:
    """The answer of a child that ended well, None of one that did not."""
    with os.fdopen(child[1], "rb") as pipe:
        text = pipe.read()
    os.waitpid(child[0], 0)
    return json.loads(text) if text else None


def full_disk(folder: Path, seed: int, index_items: int = 60) -> dict[str, Any]:
    """A disk of a megabyte and a half is written full; room is made; the store goes on where it was."""
    disk = Disk(folder)
    disk.mount("-t", "tmpfs", "-o", "size=1536k", "none")
    disk.ballast(random.Random(seed).randrange(256, 768) << 10)
    outcome = answer(in_child(lambda: work(folder, seed, ENDLESS, WRITERS if seed % 2 else 0, index_items)))
    assert outcome is not None, "the process died, as one does that writes to a page of a map without a block"
    assert outcome["stage"] == "write", outcome
    assert "no space left" in outcome["error"], outcome
    assert outcome["refused"], outcome
    assert outcome["unread"] == 0 or outcome["undispatched"], outcome
    disk.ballast(0)
    return {**disk.compare(WRITERS if seed % 2 else 1), "reason": outcome["reason"]}


def full_disk_while_growing(folder: Path, seed: int) -> dict[str, Any]:
    """The same while the index file, long enough for all of it, and the segments get their blocks page by page."""
    with small_steps(4096):
        return full_disk(folder, seed, index_items=15_000)


def read_only(folder: Path, seed: int) -> dict[str, Any]:
    """A disk that was remounted read-only: opening is refused and changes nothing; reading works."""
    disk = Disk(folder)
    disk.mount("-t", "tmpfs", "-o", "size=16m", "none")
    child = in_child(lambda: write_and_die(folder, seed))
    assert answer(child) is None
    before = {path: path.read_bytes() for path in sorted(disk.mountpoint.rglob("*")) if path.is_file()}
    disk.mount("-o", "remount,ro")
    refused = ""
    try:
        Store.open(folder / "store", settings=worker_settings())
    except DiskFailedError as error:
        refused = str(error)
    assert "Read-only file system" in refused, refused
    engine = Store.open(folder / "store", settings=worker_settings(), read_only=True)
    places = unread(engine, folder, 1)
    engine.close()
    assert places == (0, False), places
    assert len(Ledger(folder, 0).promised()) > 100
    assert {path: path.read_bytes() for path in sorted(disk.mountpoint.rglob("*")) if path.is_file()} == before
    disk.mount("-o", "remount,rw")
    return {**disk.compare(1), "reason": refused}


def write_and_die(folder: Path, seed: int) -> None:
    """Leave a store as a killed process does, so that there is something to recover."""
    engine = Store.open(folder / "store", settings=worker_settings())
    write(engine, Ledger(folder, 0), seed, 150, [])
    os.kill(os.getpid(), signal.SIGKILL)


def power(folder: Path, seed: int) -> dict[str, Any]:
    """ext4 goes down while several threads write, and forgets what was not flushed."""
    chance = random.Random(seed)
    disk = Disk(folder)
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    totals: dict[str, Any] = {"rounds": 0}
    for number in range(6):
        disk.mount("-o", "loop", str(image))
        child = in_child(lambda number=number: work(folder, seed * 10 + number, ENDLESS, WRITERS))  # type: ignore[misc]
        time.sleep(chance.choice((0.05, 0.3, 0.8, 1.5)))
        folder_fd = os.open(disk.mountpoint, os.O_RDONLY)
        fcntl.ioctl(folder_fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        os.close(folder_fd)
        outcome = answer(child)
        assert outcome["stage"] in ("open", "write", "close"), outcome
        disk.unmount()
        disk.mount("-o", "loop", str(image))
        totals.update(disk.compare(WRITERS))
        disk.unmount()
        totals["rounds"] += 1
    return totals


SCENARIOS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "full_disk": full_disk, "full_disk_while_growing": full_disk_while_growing, "read_only": read_only, "power": power,
}  # fmt: skip


if __name__ == "__main__":
    scenario, folder, seed = sys.argv[1:]
    LocalFileSystem().make_dirs(Path(folder))
    try:
        print(json.dumps(SCENARIOS[scenario](Path(folder), int(seed))))
    except StoreError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
