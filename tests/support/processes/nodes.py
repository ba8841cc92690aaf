"""Nodes of a cluster as processes: begun, killed, stopped and continued, and asked over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.conftest import ROOT
from tests.support.objects.real_s3 import free_port

Json = dict[str, Any]
#: What a request that got no answer, or none that can be used, may raise.
NO_ANSWER = (OSError, http.client.HTTPException, json.JSONDecodeError)
_START_S = 240.0


class RefusedError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, said: Json) -> None:
        super().__init__(f"{status}: {said.get('detail', said)}")
        self.status = status
        self.said = said


def ask(
    url: str, path: str, body: object = None, method: str | None = None, *, timeout_s: float = 60.0, **headers: str
) -> Json:
    """One request; ``body`` is sent as JSON unless it is bytes. Raises :class:`RefusedError`, or one of `NO_ANSWER`."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    named = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(f"{url}{path}", data, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise RefusedError(error.code, json.loads(error.read() or b"{}")) from error
    return json.loads(content) if content else {}


def pulled(url: str, topic: str) -> list[Json]:
    """All messages of a topic as consumers get them, queue by queue over whatever is in the way."""
    found: list[Json] = []
    for queue in ask(url, f"/v1/topics/{topic}")["offsets"]:
        offset = 0
        while True:
            page = ask(url, f"/v1/topics/{topic}/queues/{queue['queue_id']}/messages?offset={offset}&limit=500")
            found += page["messages"]
            if page["status"] == "NO_NEW_MESSAGE":
                break
            assert page["next_offset"] > offset
            offset = page["next_offset"]
    return found


def tierlog(*arguments: str, endpoint_url: str) -> subprocess.CompletedProcess[str]:
    """One command to its end, with this S3 server."""
    command = [sys.executable, "-m", "tierlog.service.main", *arguments]
    environment = {**os.environ, "TIERLOG_S3_ENDPOINT": endpoint_url}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


@dataclass
class Node:
    """A store's service with an address of its own; :meth:`start` may be called again after :meth:`kill`."""

    root: Path
    cold_url: str
    endpoint_url: str
    flags: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    command: str = "serve"

    def __post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.root.with_name(f"{self.root.name}.log")

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Begin, and wait until it answers."""
        self.begin()
        return self.wait()

    def wait(self) -> Self:
        """Until it answers."""
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the node ended with {self._process.returncode}: {self.said()}")
            try:
                ask(self.url, "/livez", timeout_s=5)
            except (*NO_ANSWER, RefusedError):
                time.sleep(0.1)
            else:
                return self
        raise AssertionError(f"the node did not answer within {_START_S} s: {self.said()}")

    def begin(self) -> None:
        """Begin without waiting."""
        command = [
            sys.executable, "-m", "tierlog.service.main", self.command, "--cold", self.cold_url,
            "--port", str(self.port), *self._role(), *self.flags,
        ]  # fmt: skip
        environment = {
            **os.environ, "TIERLOG_S3_ENDPOINT": self.endpoint_url, "TIERLOG_CLUSTER_REFRESH_MS": "500",
            **self._own_settings(), **self.settings,
        }  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def _role(self) -> tuple[str, ...]:
        return ("--root", str(self.root))

    def _own_settings(self) -> dict[str, str]:
        return {"TIERLOG_CLUSTER_ADDRESS": self.url}

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """Processor seconds that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ended(self, within_s: float = _START_S) -> int:
        """Wait for its end by itself; what it returned."""
        assert self._process is not None
        return self._process.wait(within_s)

    def kill(self) -> None:
        """As a machine that is lost; a process that is stopped dies too."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Lose the processor until :meth:`go_on`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have the processor again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        """The end of its log, without the requests."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(line for line in lines if "tierlog.access" not in line)[-3000:]


class Querier(Node):
    """A querier over whatever the cluster table of ``cold_url`` names; beside ``root`` it has its log, and no store."""

    def wait(self) -> Self:
        """Until it has read the table."""
        super().wait()
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                ask(self.url, "/readyz", timeout_s=30)
                return self
            except (*NO_ANSWER, RefusedError):
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)

    def _role(self) -> tuple[str, ...]:
        return ("--role", "querier")

    def _own_settings(self) -> dict[str, str]:
        # whether a store answers is asked here, not how fast
        return {"TIERLOG_CLUSTER_ASK_TIMEOUT_MS": "60000"}
