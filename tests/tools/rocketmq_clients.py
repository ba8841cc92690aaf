"""Builds the real clients of ``tests/rocketmq/clients``: ``python -m tests.tools.rocketmq_clients [NAME…]``.

Each program is one of ours around a published client library, at versions that a file beside its source pins. Libraries
come from where this machine's Maven, Go, pip, npm and Cargo are set up to look. The result lies in the user's cache
folder under a name that holds a hash of the sources and pins, so that a second run only looks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.tools.cache import ToolMissingError, alone, cache_folder

_SOURCES = Path(__file__).resolve().parents[1] / "rocketmq" / "clients"
_BUILD_LIMIT_S = 900


@dataclass(frozen=True)
class ClientProgram:
    """What is built out of which files below ``tests/rocketmq/clients``, with which tools of the machine."""

    name: str
    sources: tuple[str, ...]
    tools: tuple[tuple[str, str], ...]
    build: Callable[[Path], None]
    """Makes the given folder, which is not there."""

    def files(self) -> list[Path]:
        """All files that decide what comes out."""
        found = [_SOURCES / source for source in self.sources]
        return sorted(
            path for each in found for path in ([each] if each.is_file() else each.rglob("*")) if path.is_file()
        )


_JDK = (("java", "a JDK, 17 or newer"), ("javac", "a JDK, 17 or newer"), ("mvn", "Maven"))


def built(program: ClientProgram) -> Path:
    """The folder of the built program; raises :class:`ToolMissingError` without its tools, RuntimeError if it fails."""
    folder = cache_folder() / f"rocketmq-{program.name}-{_hash_of(program.files())}"
    if folder.is_dir():
        return folder
    for tool, package in program.tools:
        if shutil.which(tool) is None:
            raise ToolMissingError(f"no {tool} found: install {package}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"rocketmq-{program.name}-half-") as half:
                program.build(Path(half) / "built")
                (Path(half) / "built").rename(folder)
    return folder


def class_path(folder: Path) -> str:
    """Of a Java program that was built there."""
    return f"{folder / 'classes'}{os.pathsep}{folder / 'lib'}/*"


def _hash_of(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_SOURCES)} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12]


def _run(*command: str | Path, folder: Path | None = None, **settings: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=_BUILD_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout[-4000:]}")


def _java(pom: str, *sources: str, version: str = "") -> Callable[[Path], None]:
    """Jars as the pom names them, and the classes that are compiled against them; ``version`` is RocketMQ's."""

    def build(target: Path) -> None:
        target.mkdir()
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        _run(
            "mvn", "--batch-mode", "--quiet", "--file", _SOURCES / "java" / pom, goal,
            f"-DoutputDirectory={target / 'lib'}", "-DincludeScope=runtime",
            *([f"-Drocketmq.version={version}"] if version else []),
        )  # fmt: skip
        files = sorted(path for source in sources for path in (_SOURCES / "java" / source).rglob("*.java"))
        lint = ("-Xlint:all", "-Werror", "--release", "17")
        _run("javac", *lint, "-cp", f"{target / 'lib'}/*", "-d", target / "classes", *files)

    return build


def _go(target: Path) -> None:
    # one compiler at a time: the tests run beside it
    _run("go", "build", "-p", "1", "-o", target / "client", ".", folder=_SOURCES / "go", GOMAXPROCS="1", GOFLAGS="")


def _python(target: Path) -> None:
    """An environment of its own: what the client needs is none of ours."""
    _run(sys.executable, "-m", "venv", "--without-pip", target)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", target / "bin" / "python")
    _run(*pip, "install", "--require-hashes", "-r", _SOURCES / "python" / "requirements.txt")
    shutil.copy(_SOURCES / "python" / "client.py", target)


def _node(target: Path) -> None:
    shutil.copytree(_SOURCES / "node", target)
    _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=target)


def _rust(target: Path) -> None:
    # one compiler at a time, as for Go; its hundreds of megabytes beside the program go again
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        _run("cargo", "build", "--quiet", "--locked", "--jobs", "1", folder=_SOURCES / "rust", CARGO_TARGET_DIR=work)
        target.mkdir()
        shutil.copy(Path(work) / "debug" / "client", target)


def _java_program(name: str, pom: str, *sources: str, version: str = "") -> ClientProgram:
    folders = tuple(f"java/{source}" for source in sources)
    return ClientProgram(f"java-{name}", (f"java/{pom}", *folders), _JDK, _java(pom, *sources, version=version))


JAVA_5 = _java_program("5", "pom_5.xml", "lines", "remoting", "remoting5", "real_server")
JAVA_4_9 = _java_program("4.9", "pom_4_9.xml", "lines", "remoting")
JAVA_SPRING = _java_program("spring", "pom_spring.xml", "lines", "spring")
JAVA_GRPC = _java_program("grpc", "pom_grpc.xml", "lines", "grpc")
#: The nameserver and broker of each version that a follower is tried beside.
SERVERS = {
    version: _java_program(f"server-{version}", "pom_server.xml", "server", version=version)
    for version in ("5.1.4", "5.3.3", "5.4.0", "5.5.0")
}
GO = ClientProgram("go", ("go",), (("go", "Go, 1.24 or newer"),), _go)
PYTHON = ClientProgram("python", ("python",), (), _python)
NODE = ClientProgram("node", ("node",), (("node", "Node.js, 18 or newer"), ("npm", "npm")), _node)
RUST = ClientProgram("rust", ("rust",), (("cargo", "Rust, 1.88 or newer"), ("cc", "a C compiler")), _rust)
_ALL = (JAVA_5, JAVA_4_9, JAVA_SPRING, JAVA_GRPC, *SERVERS.values(), GO, PYTHON, NODE, RUST)
PROGRAMS = {program.name: program for program in _ALL}


def command_of(program: ClientProgram) -> list[str]:
    """What runs a built program that is not Java's."""
    folder = built(program)
    return {
        "go": [f"{folder / 'client'}"],
        "python": [f"{folder / 'bin' / 'python'}", "-P", f"{folder / 'client.py'}"],
        "node": ["node", f"{folder / 'client.js'}"],
        "rust": [f"{folder / 'client'}"],
    }[program.name]


def main(names: list[str]) -> int:
    """Build the named programs, or all; one line for each."""
    failed = 0
    for name in names or list(PROGRAMS):
        try:
            print(f"{name}: {built(PROGRAMS[name])}", flush=True)
        except (ToolMissingError, RuntimeError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
