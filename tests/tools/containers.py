"""buildah and podman with storage of the tests' own, in the tools' cache folder, set up for machines with few rights.

Such a machine may not raise limits of open files and processes, has mixed control groups and no systemd: runc runs
there, with limits that are named, and chroot is the isolation of builds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.tools.cache import ToolMissingError, cache_folder

PROGRAMS = ("buildah", "podman", "runc", "mmdebstrap")
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def missing_program() -> str | None:
    """What is not installed of what the tests of the image need; None if all is there."""
    for name in PROGRAMS:
        if shutil.which(name) is None:
            return name
    return None


def storage_options() -> list[str]:
    """Options that come before a command of buildah and podman."""
    folder = cache_folder() / "containers"
    return ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]


def environment() -> dict[str, str]:
    """Of buildah and podman."""
    configuration = cache_folder() / "containers" / "containers.conf"
    if not configuration.is_file() or configuration.read_text() != _CONFIGURATION:
        configuration.parent.mkdir(parents=True, exist_ok=True)
        configuration.write_text(_CONFIGURATION)
    storage = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    return {**storage, **os.environ, "CONTAINERS_CONF": str(configuration)}


def run_tool(program: str, *arguments: str, limit_s: float = 120, check: bool = True) -> str:
    """What ``buildah`` or ``podman`` said on standard output; RuntimeError with all of it if it failed."""
    if shutil.which(program) is None:
        raise ToolMissingError(f"no {program} found: apt-get install {' '.join(PROGRAMS)}")
    command = [program, *storage_options(), *arguments]
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s,
        check=False,
    )  # fmt: skip
    if check and done.returncode:
        said = f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        raise RuntimeError(f"{program} {' '.join(arguments)} ended with {done.returncode}:\n{said}")
    return done.stdout


def folder_of_tests() -> Path:
    """Where the storage and the archives of images are."""
    return cache_folder() / "containers"
