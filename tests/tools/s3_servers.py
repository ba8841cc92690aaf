"""Builds the real S3 servers of ``tests/s3``: ``python -m tests.tools.s3_servers [NAME…]``.

MinIO and versitygw are Go programs, installed at pinned versions from where this machine's Go is set up to look. The
result lies in the user's cache folder under a name that holds the version, so that a second run only looks. Two
builds at once do the work once: the second waits for the first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.tools.cache import ToolMissingError, alone, cache_folder

_BUILD_LIMIT_S = 1500


@dataclass(frozen=True)
class ServerProgram:
    """A Go program at one version; the last part of the package is the program's name."""

    package: str
    version: str

    @property
    def name(self) -> str:
        return self.package.rpartition("/")[2]


MINIO = ServerProgram("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
VERSITYGW = ServerProgram("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
PROGRAMS = {program.name: program for program in (MINIO, VERSITYGW)}


def build_s3_server(program: ServerProgram) -> Path:
    """The path of the built program; raises :class:`ToolMissingError` without Go, RuntimeError if the build fails."""
    folder = cache_folder() / f"{program.name}-{program.version}"
    built = folder / program.name
    if built.is_file():
        return built
    if shutil.which("go") is None:
        raise ToolMissingError("no go found: install Go, 1.24 or newer")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_name(folder.name + ".lock")):
        if not built.is_file():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{program.name}-half-") as half:
                _install(program, Path(half))
                folder.mkdir(exist_ok=True)
                (Path(half) / program.name).rename(built)
    return built


def _install(program: ServerProgram, folder: Path) -> None:
    # One compiler at a time: the tests run beside it, and two of them may want more memory than there is.
    command = ["go", "install", "-p", "1", f"{program.package}@{program.version}"]
    environment = {**os.environ, "GOBIN": str(folder), "GOMAXPROCS": "1"}
    for name in ("GOOS", "GOARCH", "GOFLAGS"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=_BUILD_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(command)} took longer than {_BUILD_LIMIT_S} s") from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def main(names: list[str]) -> int:
    """Build the named programs, or all; one line for each."""
    for name in names or list(PROGRAMS):
        try:
            print(f"{name}: {build_s3_server(PROGRAMS[name])}", flush=True)
        except (ToolMissingError, RuntimeError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
