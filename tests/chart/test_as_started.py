"""What the chart tells a pod is run here: a store answers, the chart's own test passes, tokens have their rights."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.processes.shell import served
from tests.support.service.chart import Chart, Json, Rendered


@dataclass(frozen=True)
class Node:
    """A machine's folders in the place of volumes: ``/data`` of a pod is a folder of the test."""

    folder: Path
    rendered: Rendered

    def here(self, text: str) -> str:
        for place in ("/etc/tierlog", "/data"):
            text = text.replace(place, f"{self.folder}{place}")
        return text

    def fill(self) -> None:
        """The files of the ConfigMap and of the secret."""
        config, tokens = (self.folder / "etc/tierlog" / name for name in ("config", "tokens"))
        config.mkdir(parents=True)
        tokens.mkdir()
        (config / "stores.toml").write_text(self.here(self.rendered.settings("stores")))
        for name, text in self.rendered.tokens().items():
            (tokens / name).write_text(text)

    def environment(self, container: Json) -> dict[str, str]:
        return {one["name"]: self.here(one["value"]) for one in container["env"] if "value" in one}


@contextmanager
def _store(chart: Chart, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    small = {"hot": {"segment_bytes": 1 << 20, "queue_file_units": 1000}, "index": {"slots": 1000, "items": 4000}}
    values = {"listen": {"host": "127.0.0.1", "port": port}, "settings": small}
    node = Node(folder, chart.render(values))
    node.fill()
    container = node.rendered.container("StatefulSet")
    for name, value in node.environment(container).items():
        monkeypatch.setenv(name, value)
    (folder / "data/lost+found").mkdir(parents=True)
    first, *rest = (node.here(each.replace("$(POD_NAME)", "tl-tierlog-store-0")) for each in container["args"])
    assert first == "serve"
    with served(*rest, quiet=False) as url:
        yield node, url


def _run(container: Json, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The container's own command, where ``tierlog`` is this checkout's."""
    folder.joinpath("bin").mkdir()
    program = folder / "bin/tierlog"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tierlog.service.main "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*container["command"], *container["args"]], env={**os.environ, **environment, "PATH": path},
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def _status(url: str, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_store_starts_and_the_charts_test_reads_back_what_it_wrote(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _store(chart, tmp_path, monkeypatch) as (node, url):
        probes = node.rendered.container("StatefulSet")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert _status(url + probes[probe]["httpGet"]["path"]) == 200
        tokens = node.rendered.tokens()
        assert _status(f"{url}/metrics") == 401
        assert _status(f"{url}/metrics", tokens["metrics-token"]) == 200
        assert _status(f"{url}/v1/topics", tokens["node-token"]) == 200

        container = node.rendered.one("Pod", "-test")["spec"]["containers"][0]
        done = _run(container, {**node.environment(container), "FRONT": url}, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "every message came back by its key" in done.stdout
        request = urllib.request.Request(
            f"{url}/v1/topics", headers={"Authorization": f"Bearer {tokens['metrics-token']}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["topics"] == [], "who may read numbers sees no topic"


def test_the_charts_test_fails_where_nothing_answers(chart: Chart, tmp_path: Path) -> None:
    container = chart.render().one("Pod", "-test")["spec"]["containers"][0]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        done = _run(container, {"FRONT": f"http://127.0.0.1:{taken.getsockname()[1]}"}, tmp_path)
    assert done.returncode != 0
    assert "no answer from" in done.stderr
    assert "came back" not in done.stdout
