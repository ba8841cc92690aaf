"""MinIO and versitygw as processes of a test session: own port, own folder, own credentials, ended with it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.objects.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, s3_environment, server_at
from tests.tools.cache import ToolMissingError
from tests.tools.s3_servers import MINIO, VERSITYGW, ServerProgram, build_s3_server

NAMES = ("minio", "versitygw")
_READY_LIMIT_S = 60
_STOP_LIMIT_S = 10
_STARTS = 3
#: The kernel ends the server with us, also when we are killed; where we are gone already, it does not start.
_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
)


@contextlib.contextmanager
def running_server(name: str, folder: Path, extra: Mapping[str, str] | None = None) -> Iterator[S3Server]:
    """A server that answers, with its data below ``folder``; ``extra`` are variables of its environment."""
    program = {"minio": MINIO, "versitygw": VERSITYGW}[name]
    with s3_environment(), contextlib.ExitStack() as stack:
        process, endpoint_url = _start(program, folder, dict(extra or {}), stack)
        yield replace(stack.enter_context(server_at(endpoint_url)), process_id=process.pid)


@contextlib.contextmanager
def server_or_skip(name: str, folder: Path) -> Iterator[S3Server]:
    """The same, and a skip where it cannot be built."""
    try:
        with running_server(name, folder) as server:
            yield server
    except ToolMissingError as error:
        pytest.skip(f"{name} cannot be built: {error}")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[S3Server]:
    """A versitygw of one test alone, which may stop it."""
    folder = tmp_path / "s3"
    folder.mkdir()
    with server_or_skip("versitygw", folder) as server:
        yield server


def _start(
    program: ServerProgram, folder: Path, extra: dict[str, str], stack: contextlib.ExitStack
) -> tuple[subprocess.Popen[bytes], str]:
    for attempt in range(_STARTS):  # the free port may be taken between our look and the server's
        port, log = free_port(), folder / f"{program.name}-{attempt}.log"
        command, environment = _command(program, folder, port)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _WITH_PARENT, str(os.getpid()), *command],
                env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment, **extra},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            )  # fmt: skip
        endpoint_url = f"http://127.0.0.1:{port}"
        if _ready(process, endpoint_url):
            stack.callback(_stop, process)
            return process, endpoint_url
        _stop(process)
    raise RuntimeError(f"{program.name} did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _command(program: ServerProgram, folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
    path = str(build_s3_server(program))
    data, versions = folder / "data", folder / "versions"
    for made in (data, versions):
        made.mkdir(exist_ok=True)
    address = f"127.0.0.1:{port}"
    if program is MINIO:
        environment = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
        return [path, "server", "--quiet", "--address", address, str(data)], environment
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    return [path, "--port", address, "posix", "--versioning-dir", str(versions), str(data)], environment


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ready(process: subprocess.Popen[bytes], endpoint_url: str) -> bool:
    """Whether it takes our credentials before the limit; another server on this port does not."""
    deadline = time.monotonic() + _READY_LIMIT_S
    with server_at(endpoint_url) as server:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(BotoCoreError, ClientError):
                server.client.list_buckets()
                return process.poll() is None
            time.sleep(0.1)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_LIMIT_S)
