"""One cluster for all tests, whose programs are in the tools' cache or are built now."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.cluster import Cluster, running_cluster
from tests.tools.cache import ToolMissingError
from tests.tools.kubernetes import build_all

ROOT = Path(__file__).resolve().parents[2]
#: Kept after the run, for who wants to know why.
LOGS = ROOT / "build" / "k8s-logs"
_counted = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster whose node is ready."""
    shutil.rmtree(LOGS, ignore_errors=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    try:
        build_all()
        with (
            tempfile.TemporaryDirectory(prefix="tierlog-k8s-", ignore_cleanup_errors=True) as folder,
            running_cluster(Path(folder), LOGS) as started,
        ):
            yield started
    except ToolMissingError as error:
        pytest.skip(f"no cluster: {error}")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def count(request: pytest.FixtureRequest) -> list[str]:
    """Lines that are printed at the end of the session."""
    return request.config.stash.setdefault(_counted, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was counted."""
    for line in config.stash.get(_counted, []):
        terminalreporter.write_line(f"k8s: {line}")
