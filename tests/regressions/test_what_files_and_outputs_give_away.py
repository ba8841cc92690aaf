"""Commit logs were everybody's to read, CSV carried formulas, and a terminal obeyed what was in a message."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service.access import line, token
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.access.audit import AuditLog
from tierlog.service.access.control import AccessControl
from tierlog.service.cli.errors import say_error
from tierlog.service.cli.output import Rows, messages_out, rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.table import Column
from tierlog.service.config.serve import AccessSettings
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.message.batch import Message
from tierlog.tiering.remote.endpoint import ServiceAccess

OBEYED = "\x9b31m\x1b]0;x\x07\x7f\u202e\u2066\x85"
CONTROLS = {letter for letter in OBEYED if not letter.isprintable()}
FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\r=1")


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("loose_umask")
def test_what_a_store_makes_is_its_owners_alone(tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    settings = tiny_settings(index__classic=True, index__classic_slots=10, index__classic_items=20)
    engine = Store.open(root, settings=settings, cold_url=(tmp_path / "cold").as_uri())
    for number in range(60):
        engine.append([Message("t", bytes(3000), [f"k{number}"])])
    engine.groups.commit("g", {("t", engine.store_id, 0): 1})
    engine.flush()
    engine.archive(everything=True)
    engine.removal.erase(Query("t", "k1"))
    audit = AuditLog(LocalFileSystem(), root / "tierlog" / "audit", ManualClock(), SystemRandomness(), 1 << 20)
    with audit.call({}, {}):
        pass
    audit.close()
    engine.close()
    made = [root.parent, root, *root.rglob("*")]
    names = {path.name for path in made}
    assert {"commitlog", "consumequeue", "store.json", "groups.json", "topics.json", "lock", "audit"} <= names
    wrong = {
        str(path): oct(path.stat().st_mode)
        for path in made
        if stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)
    }
    assert wrong == {}


def test_a_store_from_before_is_opened_as_it_is(tmp_path: Path) -> None:
    settings = tiny_settings()
    Store.open(tmp_path / "s", settings=settings).close()
    (segment,) = (tmp_path / "s" / "commitlog").iterdir()
    segment.chmod(0o640)
    engine = Store.open(tmp_path / "s", settings=settings)
    assert stat.S_IMODE(segment.stat().st_mode) == 0o640
    engine.close()


@pytest.mark.parametrize(("mode", "is_open"), [(0o644, True), (0o640, True), (0o604, True), (0o600, False)])
def test_a_file_with_tokens_that_others_may_read_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_open: bool
) -> None:
    entries, own = tmp_path / "tokens.toml", tmp_path / "own"
    _, digest, scopes, topics = line("one", "read", "*").split(":")
    entries.write_text(f'[[token]]\nname = "one"\nsha256 = "{digest}"\nscopes = ["{scopes}"]\ntopics = ["{topics}"]\n')
    own.write_text(token("one"))
    for path in (entries, own):
        path.chmod(mode)
    with caplog.at_level(logging.WARNING, "tierlog"):
        for _ in range(2):
            assert AccessControl(AccessSettings(tokens_file=str(entries)), ManualClock()).is_on
            assert ServiceAccess.of({}, token_file=own).token == token("one")
    told = [record.getMessage() for record in caplog.records]
    assert [path for path in (entries, own) for text in told if str(path) in text] == [entries, own] * is_open


def shown(capsys: pytest.CaptureFixture[str], out: Rows, row: Json) -> str:
    capsys.readouterr()
    out.write([row])
    out.end()
    return capsys.readouterr().out


def message(text: str) -> Json:
    return {
        "message_id": "00", "store_id": "s", "physical_offset": 0, "topic": "t", "queue_id": 0, "queue_offset": -5,
        "keys": [text], "tag": text, "properties": {text: text}, "born_ms": 1, "store_ms": 1, "tier": "hot",
        "size_bytes": 1, "body": text,
    }  # fmt: skip


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_spreadsheet_calculates_nothing_that_is_in_a_message(
    capsys: pytest.CaptureFixture[str], formula: str
) -> None:
    capsys.readouterr()
    out = messages_out(OutputStyle("csv"))
    out.write([message(formula), {**message("plain"), "body": None, "body_base64": "+/8="}])
    out.end()
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out, newline=""))
    assert [first[name] for name in ("body", "keys", "tag")] == [f"'{formula}"] * 3
    assert (first["queue_offset"], json.loads(first["properties"])) == ("-5", {formula: formula})
    assert (second["body"], second["body_base64"]) == ("", "+/8=")
    row = json.loads(shown(capsys, messages_out(OutputStyle("ndjson")), message(formula)))
    assert row == message(formula)


@pytest.mark.parametrize("form", ["table", "json", "ndjson", "csv"])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_terminal_obeys_nothing_that_is_in_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str, is_full: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = message(f"a{OBEYED}b")
    text = shown(capsys, messages_out(OutputStyle(form, is_full=is_full)), row)
    text += shown(
        capsys, rows_out(OutputStyle(form), "rows", columns=("n",), shown=(Column("n"),)), {"n": f"c{OBEYED}d"}
    )
    assert not CONTROLS & set(text)
    if form == "ndjson":
        assert json.loads(text.splitlines()[0]) == row


@pytest.mark.parametrize("form", [None, "json"])
@pytest.mark.parametrize("error", [StoreError, InvalidRequestError])
def test_a_terminal_obeys_nothing_that_is_in_an_error(
    capsys: pytest.CaptureFixture[str], form: str | None, error: type[StoreError]
) -> None:
    say_error(error(f"bad {OBEYED}", path=f"/{OBEYED}", hint=f"try {OBEYED}"), form)
    assert not CONTROLS & set(capsys.readouterr().err)
