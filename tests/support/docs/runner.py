"""A page run from top to bottom: each block by its language, in one folder, shell and Python namespace."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.docs import client
from tests.support.docs.outputs import is_as_shown
from tests.support.docs.pages import ROOT, Block, Command, Page, commands_of
from tests.support.docs.shell import Shell
from tests.support.docs.usage import unknown_words
from tierlog.service.config.settings import Settings

_ADDRESS = re.compile(r"(?P<host>\b127\.0\.0\.1|\blocalhost|\bnode|\bnew-node):(?P<port>\d{4,5})\b")
_PORT = re.compile(r"(?<=--port[ =])\d{4,5}\b")
#: What goes on until it is stopped, and what it says when it is ready.
_SERVING = re.compile(r"^(\w+=\S+ )*(tierlog serve|make run)\b")
_READY = ("serving http", "The page:")
#: A script that fails if one of its commands does, and keeps its variables for what follows.
_STRICT = "DOCS_FAILED=0; trap 'DOCS_FAILED=$?' ERR\n{}\ntrap - ERR; (exit $DOCS_FAILED)"
#: A new store writes two whole segments before it takes the first message: 2 GiB by default.
_SMALL = {
    "TIERLOG_HOT_SEGMENT_BYTES": "4194304", "TIERLOG_HOT_QUEUE_FILE_UNITS": "5000",
    "TIERLOG_INDEX_SLOTS": "5000", "TIERLOG_INDEX_ITEMS": "20000",
}  # fmt: skip
_IN_THIS_PROCESS = re.compile(r"^python -m (pipeline\.jobs\.\w+) ")


@dataclass(slots=True)
class Counts:
    """What was done on a page."""

    executed: int = 0
    compared: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class PageRun:
    """What a page has while it runs."""

    shell: Shell
    folder: Path
    environment: dict[str, str]
    names: dict[str, Any] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    printed: str = ""

    def run(self, block: Block) -> None:
        """Run one block; AssertionError says where and how it is not as the page has it."""
        if block.not_run is not None:
            return
        if block.is_printed:
            assert is_as_shown(self._placed(block.text), self.printed), (
                f"{block} shows\n{block.text}\nnot\n{self.printed}"
            )
            self.counts.compared += 1
            return
        match block.language:
            case "console":
                commands = commands_of(block)
                for command in commands:
                    self._command(block, command, block.exit_code if command is commands[-1] else 0)
            case "sh":
                self._script(block)
            case "python":
                self._python(block)
            case "usage":
                assert unknown_words(block.text) == [], block
            case "toml":
                file = self.folder / "as-settings.toml"
                file.write_text(block.text)
                Settings.load(file)
            case "json":
                json.loads(block.text)
            case "yaml":
                list(yaml.safe_load_all(block.text))
            case "text" | "promql":
                return
            case _:
                raise AssertionError(f"{block}: nobody knows the language {block.language!r}")
        self.counts.executed += not block.is_hidden

    def _placed(self, text: str) -> str:
        """The page's ports are free ones here, and its environment is the test's."""
        text = text.replace(".venv/bin/", "").replace("/mnt/", f"{self.folder}/mnt/")
        if "spark" in self.names:  # its workers have the environment of the session's start, without an S3 server
            text = text.replace("s3://", f"file://{self.folder}/s3/")

        def port(number: str) -> str:
            if number not in self.ports:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    self.ports[number] = free.getsockname()[1]
            return str(self.ports[number])

        text = _ADDRESS.sub(lambda match: f"127.0.0.1:{port(match['port'])}", text)
        return _PORT.sub(lambda match: port(match[0]), text)

    def _script(self, block: Block) -> None:
        """All of it as one script, but for services, which are waited for and left running."""
        script: list[str] = []
        for line in [*self._placed(block.text).split("\n"), None]:
            serves = line is not None and _SERVING.match(line) is not None
            if (line is None or serves) and script:
                code, out, errors = self.shell.run(_STRICT.format("\n".join(script)))
                assert code == (0 if serves else block.exit_code), f"{block} ended with {code}:\n{out}{errors}"
                script = []
            if serves and line is not None:
                self.shell.start(line, _READY)
            elif line is not None:
                script.append(line)

    def _command(self, block: Block, command: Command, code: int) -> None:
        text, shown = self._placed(command.text), self._placed(command.shown)
        stopped = shown.endswith("^C")
        shown = shown.removesuffix("^C").strip("\n")
        if _SERVING.match(text) or stopped:
            text = re.sub(
                r"\bmake run\b", f"python -m tierlog.service.demo --port {self._placed('127.0.0.1:8080')[10:]}", text
            )
            pid, out = self.shell.start(
                text, _READY if _SERVING.match(self._placed(command.text)) else self._last(shown)
            )
            self.names.setdefault("_servers", []).append(pid)
            said = [out]
            if stopped:
                self.shell.stop(pid)
        elif (job := _IN_THIS_PROCESS.match(text)) is not None:
            with self._here():
                ended, out = _job(job[1], shlex.split(text.replace("\\\n", " "))[3:])
            assert ended == code, f"{block}: {command.text}\nended with {ended}:\n{out}"
            said = [out, out.splitlines()[-1] if out else ""]
        else:
            ended, out, errors = self.shell.run(text)
            assert ended == code, f"{block}: {command.text}\nended with {ended}:\n{out}{errors}"
            said = [out, out + errors, errors + out, errors]
        if shown:
            assert any(is_as_shown(shown, one) for one in said), (
                f"{block}: {command.text}\nshows:\n{shown}\nbut said:\n{said[min(1, len(said) - 1)]}"
            )
            self.counts.compared += 1

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        before = Path.cwd()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                if name.startswith(("TIERLOG_", "AWS_")) or name == "HOME":
                    patch.setenv(name, value)
            os.chdir(self.folder)
            try:
                yield
            finally:
                os.chdir(before)

    @staticmethod
    def _last(shown: str) -> tuple[str, ...]:
        """A word of the last line shown, for which to wait before a command is stopped."""
        pieces = [piece.strip() for piece in shown.split("\n")[-1].split("…") if piece.strip()]
        return (max(pieces, key=len),)

    def _python(self, block: Block) -> None:
        code = compile("\n" * block.line + self._placed(block.text), str(ROOT / block.page), "exec")
        with self._here(), contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.names)
        self.printed = printed.getvalue()


def _job(module: str, arguments: list[str]) -> tuple[int, str]:
    """A Spark job in this process, which has a session; a process of its own would start another."""
    import importlib

    job = importlib.import_module(module).JOB
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = job.main(arguments)
    return code, out.getvalue() or errors.getvalue()


@contextlib.contextmanager
def forks(folder: Path) -> Iterator[dict[str, str]]:
    """What the environment needs so that ``tierlog``, ``python`` and ``given`` are forks of one process."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("tierlog", "python", "python3", "given"):
        program = programs / name
        program.write_text(f"#!{sys.executable} -IS\n" + Path(client.__file__).read_text())
        program.chmod(0o755)
    path = folder / "socket"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.docs.commands", str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield {"PATH": f"{programs}:{os.environ['PATH']}", "DOCS_SOCKET": str(path), "DOCS_PYTHON": sys.executable}
        process.stdin.close()
        process.wait()


@contextlib.contextmanager
def opened(page: Page, scratch: Path, environment: dict[str, str]) -> Iterator[PageRun]:
    """A fresh folder and shell for a page."""
    folder = scratch / "page"
    folder.mkdir()
    kept = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "NO_PROXY")
    sizes = ("TIERLOG_HOT_DISK_MAX_USED_PERCENT", "TIERLOG_HOT_DISK_FULL_PERCENT", "LANG", "SPARK_LOCAL_IP")
    whole = {name: os.environ[name] for name in (*kept, *sizes) if name in os.environ}
    whole |= {"HOME": str(folder), "TERM": "dumb", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC", **environment}
    whole["PYTHONPATH"] = str(ROOT)
    if "sizes" not in page.needs:
        whole |= _SMALL
    shell = Shell(folder, scratch, whole)
    try:
        run = PageRun(shell, folder, whole)
        whole["TIERLOG_SERVE_PORT"] = run._placed("127.0.0.1:8080")[10:]
        shell.run(f"export TIERLOG_SERVE_PORT={whole['TIERLOG_SERVE_PORT']}")
        yield run
    finally:
        shell.close()
