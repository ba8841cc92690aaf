"""Builds the project's image with no registry: ``python -m tests.tools.image [--target spark] [--save FILE]``.

The base is a Debian of packages alone (mmdebstrap), the rest is ``docker/build.sh`` with buildah. Both are kept in the
tools' cache folder under names that hold a hash of all that goes into them, so that a second run only looks. The last
line on standard output is the image's name; with ``--save`` it is written to a file in docker's form as well
(``ctr images import``, ``podman load``).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools.cache import ToolMissingError, cache_folder
from tests.tools.containers import environment, folder_of_tests, run_tool, storage_options

ROOT = Path(__file__).resolve().parents[2]
_BASE_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates,libgomp1"
#: As Debian's slim images have it.
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
_SUITE = "bookworm"
_INPUTS = (
    "docker/Dockerfile", "docker/build.sh", ".dockerignore", "pyproject.toml", "LICENSE", "README.md",
    "requirements/image.txt", "service", "index", "tiering", "pipeline", "tierlog",
)  # fmt: skip
_BASE_LIMIT_S = 600
_BUILD_LIMIT_S = 1500
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def build_image(target: str = "runtime") -> str:
    """The name of the image of what is checked out, built if it is not there; one build at a time.

    Raises :class:`ToolMissingError` for a program that is not installed and RuntimeError for a build that failed.
    """
    name = f"localhost/tierlog{'' if target == 'runtime' else f'-{target}'}:{_content_key(target)}"
    with _alone():
        if not _is_there(name):
            base = _base_image()
            _build(name, base, target)
            _forget_older(name)
    return name


def save_image(name: str, file: Path) -> Path:
    """The image as an archive of docker's, which containerd and podman import under the same name."""
    file.unlink(missing_ok=True)
    run_tool("buildah", "push", "--quiet", name, f"docker-archive:{file}:{name}", limit_s=300)
    return file


def _content_key(target: str) -> str:
    digest = hashlib.sha256(f"{target} {_base_key()}".encode())
    inputs = (*_INPUTS, "requirements/spark.txt", "requirements/dev.txt") if target == "spark" else _INPUTS
    for name in inputs:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _base_key() -> str:
    return hashlib.sha256(f"{_SUITE} {_BASE_PACKAGES} {_LEFT_OUT}".encode()).hexdigest()[:12]


def _is_there(name: str) -> bool:
    return bool(run_tool("buildah", "images", "--quiet", "--filter", f"reference={name}", check=False).strip())


def _base_image() -> str:
    name = f"localhost/tierlog-base:{_base_key()}"
    if _is_there(name):
        return name
    archive = cache_folder() / f"debian-{_SUITE}-{_base_key()}.tar"
    if not archive.is_file():
        half = archive.with_name(f"{archive.name}.half.tar")
        leave_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_BASE_PACKAGES}", *leave_out, _SUITE]
        _run([*command, str(half)], _BASE_LIMIT_S)
        half.rename(archive)
    container = run_tool("buildah", "from", "scratch").strip()
    try:
        run_tool("buildah", "add", "--quiet", container, str(archive), "/", limit_s=300)
        run_tool("buildah", "commit", "--quiet", container, name, limit_s=300)
    finally:
        run_tool("buildah", "rm", container)
    return name


def _build(name: str, base: str, target: str) -> None:
    options = ["--layers", "--network", "host", "--isolation", "chroot"]
    if _AUTHORITIES.is_file():
        options += ["-v", f"{_AUTHORITIES}:{_AUTHORITIES}:ro"]
    set_up = {
        "BUILDER": "buildah", "BUILDER_OPTIONS": " ".join(storage_options()), "BASE_IMAGE": base, "TARGET": target,
    }  # fmt: skip
    _run(["docker/build.sh", name, *options], _BUILD_LIMIT_S, {**environment(), **set_up})


def _forget_older(name: str) -> None:
    """Keep the two newest images of a target: each takes as much of the disk as a release."""
    listed = run_tool("buildah", "images", "--format", "{{.Name}}:{{.Tag}}").split()  # newest first
    same = [found for found in listed if found.rpartition(":")[0] == name.rpartition(":")[0]]
    for older in same[2:]:
        run_tool("buildah", "rmi", "--force", older, check=False)


def _run(command: list[str], limit_s: float, variables: dict[str, str] | None = None) -> None:
    if shutil.which(command[0]) is None and not (ROOT / command[0]).is_file():
        raise ToolMissingError(f"no {command[0]} found")
    done = subprocess.run(
        command, cwd=ROOT, env=variables or dict(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-6000:]}")


@contextmanager
def _alone() -> Iterator[None]:
    folder_of_tests().mkdir(parents=True, exist_ok=True)
    with (folder_of_tests() / "build.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go by the system if the holder dies
        yield


def main(argv: list[str]) -> int:
    """Build, say the name, and save if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.image")
    parser.add_argument("--target", choices=("runtime", "spark"), default="runtime")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write it as an archive of docker's")
    arguments = parser.parse_args(argv)
    try:
        name = build_image(arguments.target)
        if arguments.save is not None:
            save_image(name, arguments.save)
    except (ToolMissingError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
