"""A container of the project's image, run by podman as a cautious operator would run it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.tools.containers import environment, run_tool, storage_options

USER = 10001
#: Health checks of podman want systemd; the image's own command is run by `exec` instead.
HARDENED = (
    "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp:size=64m,mode=1777",
    "--memory", "2g", "--pids-limit", "512", "--no-healthcheck",
)  # fmt: skip
#: How full this machine's disk is decides about no test.
_ANY_DISK = {"TIERLOG_HOT_DISK_MAX_USED_PERCENT": "100", "TIERLOG_HOT_DISK_FULL_PERCENT": "100"}
_READY_LIMIT_S = 120
_numbers = itertools.count()


def volume(folder: Path, user: int = USER) -> Path:
    """A folder for ``/data`` that belongs to the image's user."""
    folder.mkdir(parents=True)
    os.chown(folder, user, user)
    return folder


class Container:
    """A container that was started; :meth:`removed` ends and removes it whatever happened."""

    def __init__(self, image: str, *arguments: str, options: tuple[str, ...] = (), variables: Mapping[str, str]):
        self.name = f"tierlog-test-{os.getpid()}-{next(_numbers)}"
        given = [part for name, value in {**_ANY_DISK, **variables}.items() for part in ("--env", f"{name}={value}")]
        run_tool("podman", "run", "--detach", "--name", self.name, *HARDENED, *given, *options, image, *arguments)

    def execute(self, *command: str, check: bool = True) -> str:
        """What a command inside said on standard output."""
        return run_tool("podman", "exec", self.name, *command, check=check)

    def stop(self, grace_s: int = 20) -> int:
        """SIGTERM, and SIGKILL after the grace; the exit code, 137 for the latter."""
        run_tool("podman", "stop", "--time", str(grace_s), self.name)
        return self.exit_code()

    def kill(self) -> None:
        run_tool("podman", "kill", "--signal", "KILL", self.name)
        self.exit_code()

    def exit_code(self, limit_s: float = 60) -> int:
        """Of a container that ends, waited for."""
        return int(run_tool("podman", "wait", self.name, limit_s=limit_s).split()[-1])

    def logs(self) -> str:
        """All it said, on either stream."""
        command = ["podman", *storage_options(), "logs", self.name]
        done = subprocess.run(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        return done.stdout

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run_tool("podman", "inspect", self.name))[0]["State"]
        return found

    def remove(self) -> None:
        run_tool("podman", "rm", "--force", "--time", "0", "--volumes", self.name, check=False)


@contextlib.contextmanager
def running(
    image: str, *arguments: str, options: tuple[str, ...] = (), variables: Mapping[str, str] | None = None
) -> Iterator[Container]:
    """A container, gone at the end."""
    container = Container(image, *arguments, options=options, variables=variables or {})
    try:
        yield container
    finally:
        container.remove()


def wait_until_ready(container: Container, url: str) -> None:
    """Until ``/readyz`` answers 200; AssertionError with its logs if it ends before, or does not get there."""
    deadline = time.monotonic() + _READY_LIMIT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            if not container.state()["Running"]:
                raise AssertionError(f"the container ended:\n{container.logs()}") from None
        time.sleep(0.05)
    raise AssertionError(f"not ready:\n{container.logs()}")


class Caller:
    """Requests with a token; a status of 400 or more is an error that says the answer."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error
