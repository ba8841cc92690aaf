"""schemathesis asks a running service everything that its document allows and forbids, and finds nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from tests.conftest import ROOT
from tests.support.service.access import line, token
from tests.support.service.served import served, served_app
from tests.support.stores.engines import tiny_settings
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.app import create_app
from tierlog.service.config.serve import AccessSettings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.message.batch import Message

_EXAMPLES = 6
#: Method, and path as the document has it.
_Call = tuple[str, str]
_SETTINGS = {"serve__max_request_bytes": 1_000_000}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    """A store with messages in both tiers, in a topic whose name has to be percent-encoded too."""
    settings = tiny_settings(**_SETTINGS)
    found = Store.open(tmp_path / "store", cold_url=f"file://{tmp_path}/cold", settings=settings)
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


def _run(url: str, tmp_path: Path, *more: str) -> None:
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", f"{ROOT}/tests/support/service/schemathesis.toml",
        "run", f"{url}/openapi.json", "--checks", "all", "--max-examples", str(_EXAMPLES),
        "--seed", os.environ["TIERLOG_SEED"], "--continue-on-failure", "--no-color", *more,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.support.service.contract_hooks"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    _, _, summary = done.stdout.partition("= SUMMARY =")
    print(summary)  # pytest -s shows it
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in done.stdout.lower(), done.stdout[-2000:]


@pytest.mark.slow
def test_no_answer_differs_from_the_document(engine: Store, tmp_path: Path) -> None:
    with served(engine, tiny_settings(**_SETTINGS)) as url:
        _run(url, tmp_path, "--phases", "examples,coverage,fuzzing,stateful")


class _Answers:
    """ASGI middleware that keeps which calls of the document were answered with which status."""

    def __init__(self, app: ASGIApp, calls: Collection[_Call], kept: set[tuple[_Call, int]]) -> None:
        self._app, self._kept = app, kept
        self._calls = {call: re.compile(re.sub(r"\{\w+\}", "[^/]+", call[1])) for call in calls}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watch(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                for call, form in self._calls.items():
                    if call[0] == scope["method"] and form.fullmatch(scope["path"]):
                        self._kept.add((call, message["status"]))
            await send(message)

        await self._app(scope, receive, watch)


@pytest.mark.slow
def test_every_call_is_refused_without_its_token_and_beyond_its_rights(engine: Store, tmp_path: Path) -> None:
    entries = [line("root", "produce,read,admin", "*"), line("reader", "read", "orders")]
    access = AccessSettings(tokens="\n".join(entries))
    settings = tiny_settings(**_SETTINGS).model_copy(update={"access": access})
    stopping, answers = threading.Event(), set[tuple[_Call, int]]()
    app = create_app(engine, settings, stopping, control=AccessControl(access, SystemClock()))
    calls = {
        (method.upper(), path)
        for path, methods in app.openapi()["paths"].items()
        for method, described in methods.items()
        if "security" in described
    }
    app.add_middleware(_Answers, calls=calls, kept=answers)
    with served_app(app, settings, stopping) as url:
        for name, phases in (("reader", "examples"), ("root", "examples,stateful")):
            header = f"Authorization: Bearer {token(name)}"
            _run(url, tmp_path, "--phases", phases, "--mode", "positive", "--header", header)
    # what was answered well is repeated without the token and with another one
    refused = {call for call, status in answers if status == 401}
    assert {call for call, status in answers if status < 300} <= refused
    assert {call for call in calls if "{" not in call[1]} <= refused, "whatever is drawn, these are answered well"
    changes = {call for call in calls if call[1].startswith("/v1/topics") and call[0] != "GET"}
    admins = {call for call in calls if call[1].startswith("/v1/admin/")}
    assert changes | admins <= {call for call, status in answers if status == 403}
