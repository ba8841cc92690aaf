"""Over Spark Connect every scan of one ``load()`` has rows of its own too."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

_LIMIT_S = 240


@pytest.mark.slow
def test_scans_over_spark_connect_have_their_own_rows(tmp_path: Path) -> None:
    """A server, its Java process and the client belong to one process beside this one."""
    url = f"file://{tmp_path}/cold"
    with contextlib.closing(Store.open(tmp_path / "s", settings=tiny_settings(), cold_url=url)) as engine:
        for number in range(90):
            engine.append([Message(f"t{number % 3}", b"%d" % number, [f"k{number % 7}"])])
        engine.archive(everything=True)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # a free port
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.pipeline.connect_scans", url],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "a part": [number for number in range(90) if number % 3 == 0],
        "all, after a part": list(range(90)),
        "union": [number for number in range(90) if number % 3 != 2],
        "self-join": [number for number in range(90) if number % 3 == 0 and number % 7 == 3],
        "subquery": [number for number in range(90) if number % 3 == 2 and number % 7 == 5],
        "view": list(range(90)),
        "option": [number for number in range(90) if number % 3 == 1],
    }
