"""schemathesis asks a running service everything that its document allows and forbids, and finds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.engine import Engine
from tests.conftest import ROOT
from tests.support.engines import tiny_settings
from tests.support.served import served
from tiering.batch import Message

_EXAMPLES = 6
_SETTINGS = {"serve__max_request_bytes": 1_000_000}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A store with messages in both tiers, in a topic whose name has to be percent-encoded too."""
    settings = tiny_settings(**_SETTINGS)
    found = Engine.open(tmp_path / "store", cold_url=f"file://{tmp_path}/cold", settings=settings)
    found.start()
    for count in (400, 20):
        for topic in ("orders", "%RETRY%billing"):
            found.append([Message(topic, b"body %d" % n, [f"k{n % 7}", "4711"], tag="a") for n in range(count)])
        if count == 400:
            found.archive(everything=True, drop_hot=True)
    yield found
    findings = found.check()
    found.close()
    assert findings == []


def _run(url: str, tmp_path: Path, seed: str, *more: str) -> None:
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", f"{ROOT}/tests/support/schemathesis.toml",
        "run", f"{url}/openapi.json", "--checks", "all", "--phases", "examples,coverage,fuzzing,stateful",
        "--max-examples", str(_EXAMPLES), "--seed", seed, "--continue-on-failure", "--no-color", *more,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.support.contract_hooks"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    _, _, summary = done.stdout.partition("= SUMMARY =")
    print(summary)  # pytest -s shows it
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in done.stdout.lower(), done.stdout[-2000:]


@pytest.mark.slow
def test_no_answer_differs_from_the_document(engine: Engine, tmp_path: Path) -> None:
    with served(engine, tiny_settings(**_SETTINGS)) as url:
        _run(url, tmp_path, os.environ["TIERLOG_SEED"])
