"""Building a test server: once, whole or not at all, and clear about what is missing. Go itself is a script here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.cache import ToolMissingError
from tests.tools.s3_servers import VERSITYGW, build_s3_server

_REPOSITORY = Path(__file__).parents[2]
_SLOW_GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
sleep 0.5
printf built > "$GOBIN/versitygw"
"""


def _pretend_go(folder: Path, script: str, patch: pytest.MonkeyPatch) -> Path:
    go = folder / "bin" / "go"
    go.parent.mkdir()
    go.write_text(script)
    go.chmod(0o755)
    patch.setenv("PATH", f"{go.parent}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    patch.setenv("GO_CALLS", str(folder / "calls"))
    return folder / "calls"


def test_two_builds_at_once_do_the_work_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _pretend_go(tmp_path, _SLOW_GO, monkeypatch)
    command = [sys.executable, "-m", "tests.tools.s3_servers", "versitygw"]
    running = [subprocess.Popen(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = {process.communicate(timeout=60)[0] for process in running}
    assert calls.read_text() == f"install -p 1 {VERSITYGW.package}@{VERSITYGW.version}\n"
    assert found == {f"versitygw: {build_s3_server(VERSITYGW)}\n"}
    assert build_s3_server(VERSITYGW).read_text() == "built"


def test_a_failed_build_says_why_and_leaves_nothing_that_looks_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_go(tmp_path, '#!/bin/sh\nprintf half > "$GOBIN/versitygw"\necho no such version\nexit 1\n', monkeypatch)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such version"):
            build_s3_server(VERSITYGW)
    assert [path.name for path in (tmp_path / "cache" / "tierlog-test-tools").iterdir() if path.is_dir()] == []


def test_without_go_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissingError, match="install Go"):
        build_s3_server(VERSITYGW)
