"""Builds the programs of a Kubernetes cluster for ``make test-k8s``: ``python -m tests.tools.kubernetes``.

They are Go programs, built at pinned versions into the user's cache folder, each below a name that holds its version,
so that a second run only looks. From nothing that takes about twenty minutes on one core.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tools.cache import ToolMissingError, alone, cache_folder

KUBERNETES = "1.36.3"
CONTAINERD = "v2.4.2"
COREDNS = "v1.15.0"
_MINOR = KUBERNETES.split(".")[1]
_BUILD_LIMIT_S = 1800


@dataclass(frozen=True)
class Programs:
    """The commands that one Go module gives, which lie in one folder of the cache."""

    folder_name: str
    names: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return cache_folder() / self.folder_name

    def missing(self) -> list[str]:
        return [name for name in self.names if not (self.folder / name).is_file()]


_CONTROL = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
OF_KUBERNETES = Programs(f"kubernetes-{KUBERNETES}", (*_CONTROL, "kubelet", "kube-proxy", "kubectl"))
OF_CONTAINERD = Programs(f"containerd-{CONTAINERD}", ("containerd", "containerd-shim-runc-v2", "ctr"))
OF_COREDNS = Programs(f"coredns-{COREDNS}", ("coredns",))
PAUSE = Programs("pause-1", ("pause",))
ALL = (OF_KUBERNETES, OF_CONTAINERD, OF_COREDNS, PAUSE)


def program(name: str) -> Path:
    """Where a built program lies."""
    return next(programs.folder / name for programs in ALL if name in programs.names)


def at_hand() -> bool:
    """Whether everything is built already."""
    return not any(programs.missing() for programs in ALL)


def build_all() -> None:
    """Build what is missing; raises :class:`ToolMissingError` without Go, RuntimeError if a build fails."""
    for programs in ALL:
        if not programs.missing():
            continue
        if shutil.which("go") is None:
            raise ToolMissingError("no go found: install Go, 1.26 or newer")
        programs.folder.mkdir(parents=True, exist_ok=True)
        with alone(programs.folder.with_name(programs.folder.name + ".lock")):
            _build_missing(programs)


def _build_missing(programs: Programs) -> None:
    half = f"{programs.folder.name}-half-"
    with tempfile.TemporaryDirectory(dir=programs.folder.parent, prefix=half) as folder:
        for name in programs.missing():
            _build(name, programs, Path(folder)).rename(programs.folder / name)
            print(f"{name}: {programs.folder / name}", flush=True)


def _build(name: str, programs: Programs, half: Path) -> Path:
    if programs is OF_KUBERNETES:
        if not (half / "go.mod").exists():
            _write_module(half)
        facts = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": _MINOR}
        told = " ".join(f"-X k8s.io/component-base/version.{field}={value}" for field, value in facts.items())
        _go("build", "-p", "1", "-ldflags", f"-s -w {told}", "-o", name, f"k8s.io/kubernetes/cmd/{name}", folder=half)
    elif programs is OF_CONTAINERD:
        package = f"github.com/containerd/containerd/v2/cmd/{name}@{CONTAINERD}"
        _go("install", "-p", "1", "-tags", "no_btrfs", "-ldflags", "-s -w", package, folder=half)
    elif programs is PAUSE:
        _go("build", "-ldflags", "-s -w", "-o", name, str(Path(__file__).with_name("pause.go")), folder=half)
    else:
        _go("install", "-p", "1", "-ldflags", "-s -w", f"github.com/coredns/coredns@{COREDNS}", folder=half)
    return half / name


def _write_module(folder: Path) -> None:
    """A module of our own around Kubernetes, whose own replacements of its parts only its own tree can resolve."""
    (folder / "go.mod").write_text(
        f"module example.test/cluster\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v{KUBERNETES}\n"
    )
    commands = "\n".join(f'import _ "k8s.io/kubernetes/cmd/{name}"' for name in OF_KUBERNETES.names)
    (folder / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{commands}\n")
    module = json.loads(_go("mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}", folder=folder, mod="mod"))
    replaced = json.loads(_go("mod", "edit", "-json", module["GoMod"], folder=folder))["Replace"]
    paths = [entry["Old"]["Path"] for entry in replaced]
    _go("mod", "edit", *(f"-replace={path}={path}@v0.{KUBERNETES.partition('.')[2]}" for path in paths), folder=folder)
    _go("mod", "tidy", folder=folder)


def _go(*arguments: str, folder: Path, mod: str = "") -> str:
    # One compiler at a time: the tests run beside it, and two of them may want more memory than there is.
    environment = {**os.environ, "GOBIN": str(folder), "GOMAXPROCS": "1", "CGO_ENABLED": "0", "GOWORK": "off"}
    for name in ("GOOS", "GOARCH", "GOFLAGS"):
        environment.pop(name, None)
    environment["GOFLAGS"] = "-buildvcs=false" + (f" -mod={mod}" if mod else "")
    command: Sequence[str] = ["go", *arguments]
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_BUILD_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(command)} took longer than {_BUILD_LIMIT_S} s") from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Build what is missing, a line for each; with ``--look``, only say (exit 1) whether something is."""
    if arguments == ["--look"]:
        return 0 if at_hand() else 1
    try:
        build_all()
    except (ToolMissingError, RuntimeError) as error:
        print(f"kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
