"""What every test can rely on: one seed per session, the shared data, and skips that CI does not let pass."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.fs.empty_disk import disk_is_empty

ROOT = Path(__file__).resolve().parent.parent

# The first example of a kernel includes compiling it, so neither a deadline nor "too slow" says anything.
hypothesis.settings.register_profile(
    "tierlog",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tierlog")

# How full the disk of this machine is must not decide about a test, nor about what a test starts.
disk_is_empty()
for _name in ("TIERLOG_HOT_DISK_MAX_USED_PERCENT", "TIERLOG_HOT_DISK_FULL_PERCENT"):
    os.environ[_name] = "100"

_session_seed = pytest.StashKey[int]()
_skips = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Fix the session's seed (``TIERLOG_SEED``, else drawn) before Hypothesis looks for its own.

    A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start, and send it to.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    given = os.environ.get("TIERLOG_SEED", "")
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    os.environ["TIERLOG_SEED"] = str(seed)  # the processes that share the tests have one seed
    config.stash[_session_seed] = seed
    config.stash[_skips] = {}
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The line that makes a red run repeatable."""
    seed = config.stash[_session_seed]
    lines = [f"seed: {seed} (again with: make test SEED={seed})"]
    if _no_skips():
        lines.append("skipped tests count as failures (TIERLOG_NO_SKIPS)")
    return lines


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the collector of garbage from looking at all modules and tests again and again."""
    gc.collect()
    gc.freeze()


def _seed_of(request: pytest.FixtureRequest) -> int:
    session_seed = request.config.stash[_session_seed]
    return zlib.crc32(request.node.nodeid.encode(), session_seed & 0xFFFFFFFF)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number for this test alone: the same for one session seed, whatever else runs and in what order."""
    return _seed_of(request)


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seed the global generator, for a test that did not ask for a seed of its own."""
    state = random.getstate()
    random.seed(_seed_of(request))
    yield
    random.setstate(state)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Put back whom lines go to: a service that began in this process wrote to what this test alone has open."""
    loggers = [logging.getLogger(name) for name in ("", "tierlog", "uvicorn", "uvicorn.error")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


def shared_data_folder() -> Path:
    """Where real logs and RocketMQ stores lie: ``TIERLOG_DATA``, else ``../shared/data`` beside the checkout."""
    given = os.environ.get("TIERLOG_DATA", "")
    return Path(given) if given else ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of :func:`shared_data_folder`, or a skip."""
    folder = shared_data_folder()
    if not folder.is_dir():
        pytest.skip("no shared data: set TIERLOG_DATA, or put it into ../shared/data beside the checkout")
    return folder


# ---- a skip is a failure when TIERLOG_NO_SKIPS is set


def _no_skips() -> bool:
    return os.environ.get("TIERLOG_NO_SKIPS", "") not in ("", "0")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)


class _SkipWatch:
    def __init__(self, config: pytest.Config) -> None:
        self._skips = config.stash[_skips]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skips[report.nodeid] = _reason(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skips[report.nodeid] = _reason(report)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch for skipped tests, and for files skipped whole at collection."""
    if _no_skips():
        session.config.pluginmanager.register(_SkipWatch(session.config), "tierlog-skip-watch")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn a green session with skips red; one of several processes tells the first of its own."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["skips"] = session.config.stash[_skips]
    if session.config.stash[_skips] and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process has skipped: files skipped whole are in no test's report."""
    node.config.stash[_skips].update(getattr(node, "workeroutput", {}).get("skips", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the skipped tests that made the session red."""
    skips = config.stash[_skips]
    if skips:
        terminalreporter.section("skipped, which counts as a failure here", red=True)
        for nodeid, reason in skips.items():
            terminalreporter.write_line(f"{nodeid}: {reason}")
