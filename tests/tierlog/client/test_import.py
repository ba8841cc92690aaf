"""The client is light: a program that only sends and reads messages loads nothing of the engine."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ROOT

#: Beside the standard library: the HTTP library for event loops with what it needs, and JSON.
LIBRARIES = {
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "frozenlist", "idna", "multidict", "orjson", "propcache",
    "typing_extensions", "yarl",
}  # fmt: skip
#: What aiohttp takes if it happens to be installed.
OPTIONAL = {"aiodns", "backports", "brotli", "brotlicffi", "certifi", "h2", "pycares", "socks", "zstandard"}
LEAVES = {
    "tierlog.tiering", "tierlog.tiering.base", "tierlog.tiering.base.backoff", "tierlog.tiering.base.clock",
    "tierlog.tiering.base.errors", "tierlog.tiering.base.randomness",
    "tierlog.tiering.base.types", "tierlog.tiering.remote", "tierlog.tiering.remote.endpoint",
    "tierlog.tiering.remote.http_client", "tierlog.tiering.remote.problems",
}  # fmt: skip

_LOADED = """
import json, sys
before = set(sys.modules)
import tierlog.client
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_client_loads_nothing_of_the_engine() -> None:
    ended = subprocess.run([sys.executable, "-c", _LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = json.loads(ended.stdout)
    libraries = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    libraries = {name for name in libraries if not name.startswith(("_cython", "cython_runtime"))}
    assert libraries - OPTIONAL <= LIBRARIES | {"tierlog"}
    ours = {name for name in loaded if name.startswith("tierlog.")}
    assert {name for name in ours if not name.startswith("tierlog.client")} <= LEAVES
