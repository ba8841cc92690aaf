"""Real file systems that fill up, turn read-only or forget: what was acknowledged is there, once, and work goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.processes.disk_world import CANNOT

pytestmark = pytest.mark.slow


@pytest.fixture
def play(tmp_path: Path, seed: int, record_property: Callable[[str, object], None]) -> Callable[[str, int], Any]:
    """Plays a scenario of ``tests.support.processes.disk_world`` in a mount namespace of its own, or skips."""
    private = ["unshare", "--mount", "--propagation", "private"]
    for tool in ("unshare", "mount", "mkfs.ext4"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: install util-linux, mount and e2fsprogs")
    if subprocess.run([*private, "true"], capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only")

    def run(scenario: str, number: int) -> Any:
        folder = tmp_path / f"{scenario}-{number}"
        folder.mkdir()
        worker = [
            sys.executable,
            "-m",
            "tests.support.processes.disk_world",
            scenario,
            str(folder),
            str(seed * 4 + number),
        ]
        done = subprocess.run([*private, *worker], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
        if done.returncode == CANNOT:
            pytest.skip(done.stderr.splitlines()[-1])
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        record_property(scenario, found)
        print(f"{scenario}: {found}; nothing lost, nothing twice")
        return found

    return run


def test_a_full_disk_loses_nothing_and_takes_writes_again_once_there_is_room(play: Callable[[str, int], Any]) -> None:
    for number in range(4):
        found = play("full_disk", number)
        assert found["acknowledged"] > 0
        assert "no space left" in found["reason"]


def test_a_full_disk_ends_no_process_that_gives_a_mapped_file_its_blocks(play: Callable[[str, int], Any]) -> None:
    for number in range(2):
        assert play("full_disk_while_growing", number)["acknowledged"] > 0


def test_a_disk_remounted_read_only_is_refused_unchanged_and_can_be_read(play: Callable[[str, int], Any]) -> None:
    assert play("read_only", 0)["acknowledged"] > 0


def test_ext4_that_forgets_what_was_not_flushed_keeps_what_was_acknowledged(play: Callable[[str, int], Any]) -> None:
    found = play("power", 0)
    assert found["rounds"] == 6
    assert found["acknowledged"] > 0
