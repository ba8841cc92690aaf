"""Builds and runs Java programs with Apache RocketMQ's classes: ``python -m tests.tools.java_programs`` builds them.

The results lie in the user's cache folder, not in the checkout, under names that hold RocketMQ's version and a hash of
the sources, so that a second run only looks. Maven gets the jars from where this machine's Maven is set up to.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.tools.cache import ToolMissingError, cache_folder
from tests.tools.line_programs import LineProgram, line_program

_CHECKOUT = Path(__file__).resolve().parents[2]
_VERIFIER = _CHECKOUT / "tests" / "rocketmq"
_PEER = _CHECKOUT / "benchmarks" / "peers" / "rocketmq_java"
_BUILD_LIMIT_S = 900
#: Options of Java for a program that lives for seconds: it is compiled quickly.
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: What RocketMQ reaches into, which newer Java versions keep closed otherwise.
_OPENED = ("java.nio", "java.lang", "sun.nio.ch", "jdk.internal.ref")


def build_java_verifier() -> str:
    """The class path of ``tests/rocketmq``, jars included; raises :class:`ToolMissingError` without Maven or a JDK."""
    for program, package in (("java", "a JDK, 17 or newer"), ("javac", "a JDK, 17 or newer"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise ToolMissingError(f"no {program} found: install {package}")
    sources = [_VERIFIER / "pom.xml", *sorted(path for path in (_VERIFIER / "src").rglob("*") if path.is_file())]
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(_VERIFIER / "pom.xml"), "compile"]
    built = _built("rocketmq", sources, lambda target: [*command, f"-DbuildDirectory={target}"])
    return f"{built / 'classes'}{os.pathsep}{built / 'lib'}/*"


def build_java_peer() -> str:
    """The class path of the program that benchmarks run, which is compiled against the verifier's jars."""
    jars = build_java_verifier()
    sources = sorted(_PEER.rglob("*.java"))
    command = ["javac", "-Xlint:all", "-Werror", "--release", "17", "-cp", jars, *map(str, sources)]
    return f"{_built('rocketmq-peer', sources, lambda target: [*command, '-d', str(target)])}{os.pathsep}{jars}"


def _built(name: str, sources: Sequence[Path], command: Callable[[Path], list[str]]) -> Path:
    """The folder that a command makes out of sources, unless it is there."""
    folder = cache_folder() / f"{name}-{rocketmq_version()}-{_hash_of(sources)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as half:
            _run(command(Path(half) / "built"))
            try:
                (Path(half) / "built").rename(folder)
            except OSError:
                if not folder.is_dir():  # else somebody else was faster
                    raise
    return folder


def rocketmq_version() -> str:
    """The one whose classes both programs run."""
    found = re.search(r"<rocketmq\.version>([\w.]+)<", (_VERIFIER / "pom.xml").read_text(encoding="utf-8"))
    assert found, "pom.xml names no version of RocketMQ"
    return found[1]


def _hash_of(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in sources:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_CHECKOUT)} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12]


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_BUILD_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


@contextmanager
def java_program(
    class_path: str,
    main: str,
    work: Path,
    *,
    heap: str = "1g",
    arguments: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Iterator[LineProgram]:  # fmt: skip
    """Run a main class until its input ends; the libraries' logs and temporary files lie in ``work``.

    ``options`` are more of Java's own.
    """
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    exports = "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"
    command = ["java", f"-Xmx{heap}", f"-Duser.home={work}", f"-Djava.io.tmpdir={work}", *opens, exports]
    with line_program([*command, *options, "-cp", class_path, main, *arguments], work) as program:
        yield program


if __name__ == "__main__":
    print(build_java_peer())
