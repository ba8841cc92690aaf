"""Erasing by command, on a store in this process and on a running service, and by REST."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.shell import TINIEST, Shell, archived_lines, served
from tests.support.service.api_client import ApiClient
from tierlog.service.api.application.app import create_app
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, FAILED, NOTHING, WRONG_USE
from tierlog.tiering.base.times import format_time
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.message.batch import Message

ORDERS = ("oldest", "newest")


def found(shell: Shell, key: str, *where: str) -> int:
    rows = shell.rows("query", "t", "--key", key, "--all", *where, code=DONE if key == "order-0" else NOTHING)
    return len([row for row in rows if "message_id" in row])


def test_erase_wait_and_receipts_on_a_store_opened_here(tmp_path: Path, shell: Shell) -> None:
    where = archived_lines(tmp_path, shell)
    plan = json.loads(shell("erase", "t", "--key", "order-1", "--dry-run", *where))
    assert (plan["state"], plan["matched"]["hot"] + plan["matched"]["cold"]) == ("dry run", 30)
    receipt = json.loads(shell("erase", "t", "--key", "order-1", "--wait", *where))
    assert receipt["matched"] == plan["matched"]
    assert sum(row["records"] for row in receipt["segments_rewritten"]) == 30
    assert (found(shell, "order-1", *where), found(shell, "order-0", *where)) == (0, 30)
    assert (found(shell, "order-1", *where[2:]), found(shell, "order-0", *where[2:])) == (0, 30)
    (listed,) = [json.loads(line) for line in shell("receipts", *where).splitlines()]
    assert listed == json.loads(shell("receipts", receipt["tombstone_id"], *where))
    assert listed["segments_rewritten"] == receipt["segments_rewritten"]
    shell("check", "--deep", *where)


def test_what_the_commands_refuse(tmp_path: Path, shell: Shell) -> None:
    where = archived_lines(tmp_path, shell)
    shell("receipts", *where, code=NOTHING)
    shell("receipts", "0123", *where, code=NOTHING)
    shell("erase", "nobody", *where, code=WRONG_USE)
    shell("erase", "t", "--from", "2026-01-02", "--to", "2026-01-01T10:00:00Z", *where, code=WRONG_USE)
    assert "from (2026-01-02T00:00:00.000Z) is not before to (2026-01-01T10:00:00.000Z)" in shell.err
    shell("hold", "t", "on", *where)
    shell("erase", "t", "--all", *where, code=FAILED)
    assert "on hold" in shell.err
    assert "tierlog hold t off" in shell.err
    (topic,) = shell.rows("topics", *where)
    assert topic["hold"] is True
    shell("hold", "t", "off", *where)
    shell("erase", "t", "--to", "2001-01-01T00:00:00Z", *where)
    no_cold = ["--root", str(tmp_path / "other")]
    shell("load", str(tmp_path / "lines.txt"), "--topic", "t", *no_cold, *TINIEST)
    shell("erase", "t", "--all", *no_cold, code=WRONG_USE)
    assert "hot.retention_ms" in shell.err


def test_a_whole_topic_needs_its_word_and_who_leaves_it_out_learns_what_would_go(tmp_path: Path, shell: Shell) -> None:
    where = archived_lines(tmp_path, shell)
    first, last = (shell.rows("query", "t", "--limit", "1", "--order", order, *where)[0] for order in ORDERS)
    stored = f"60 messages, stored from {format_time(first['store_ms'])} to {format_time(last['store_ms'])}"
    for whole in ((), ("--from", "0"), ("--from", "1970-01-01", "--yes")):
        shell("erase", "t", *whole, *where, code=WRONG_USE)
        assert f"this erases topic 't' as a whole: {stored}; " in shell.err
        assert "--all" in shell.err
    shell("erase", "t", "--all", "--key", "order-1", *where, code=WRONG_USE)
    assert found(shell, "order-0", *where) == 30
    assert json.loads(shell("erase", "t", "--dry-run", *where))["matched"]["complete"] is True
    assert json.loads(shell("erase", "t", "--all", *where))["state"] == "hidden"
    shell("query", "t", *where, code=NOTHING)
    shell("erase", "t", *where, code=WRONG_USE)
    assert "as a whole: no messages; " in shell.err


def test_the_commands_on_a_running_service(tmp_path: Path, shell: Shell) -> None:
    where = archived_lines(tmp_path, shell)
    with served(*where) as url:
        shell("hold", "t", "on", "--url", url)
        shell("erase", "t", "--all", "--url", url, code=FAILED)
        shell("hold", "t", "off", "--url", url)
        for command in ("erase", "delete"):
            shell(command, "t", "--url", url, code=WRONG_USE)
            assert "60 messages, stored from 20" in shell.err
        receipt = json.loads(shell("erase", "t", "--key", "order-1", "--wait", "--url", url))
        assert receipt["matched"]["complete"]
        assert (found(shell, "order-1", "--url", url), found(shell, "order-0", "--url", url)) == (0, 30)
        assert json.loads(shell("receipts", receipt["tombstone_id"], "--url", url))["topic"] == "t"
        shell("tail", "t", "--url", url)
        assert "order-1" not in shell.out


@pytest.fixture
def api(tmp_path: Path) -> Any:
    settings = Settings.load(None, {"hot.segment_bytes": 4096, "hot.queue_file_units": 60})
    engine = Store.open(tmp_path / "store", settings=settings, cold_url=f"file://{tmp_path / 'cold'}")
    engine.append([Message("t", b"body", ["k"]), Message("u", b"body", ["k"])])
    yield ApiClient(create_app(engine, settings))
    engine.close()


def test_erase_by_rest(api: ApiClient) -> None:
    sent = api.request("GET", "/v1/topics/t/messages?key=k").json()["messages"]
    answer = api.request("POST", "/v1/admin/erase", {"topic": "t", "key": "k", "to": "2100-01-01T00:00:00Z"})
    assert (answer.status_code, answer.json()["matched"]) == (200, {"hot": 1, "cold": 0, "complete": True})
    page = api.request("GET", "/v1/topics/t/messages?key=k").json()
    assert (page["messages"], page["coverage"]["segments"]["erased"], page["coverage"]["complete"]) == ([], 1, True)
    assert api.request("GET", f"/v1/messages/{sent[0]['message_id']}").status_code == 404
    tombstone_id = answer.json()["tombstone_id"]
    assert api.request("GET", f"/v1/admin/receipts/{tombstone_id}").json()["state"] == "hidden"
    assert len(api.request("GET", "/v1/admin/receipts").json()["receipts"]) == 1
    assert api.request("GET", f"/v1/admin/receipts/{16 * '0'}").status_code == 404
    assert api.request("GET", "/v1/admin/receipts/none").status_code == 400
    assert api.request("POST", "/v1/admin/erase", {"topic": "x", "all": True}).status_code == 404
    assert api.request("POST", "/v1/admin/erase", {"topic": "t", "from": 5, "to": 4}).status_code == 400
    assert api.request("POST", "/v1/admin/erase", {"topic": "t", "until": 4}).status_code == 422


def test_a_whole_topic_needs_its_word_by_rest_too(api: ApiClient) -> None:
    for whole in ({}, {"key": None}, {"from": 0}, {"to": END_OF_TIME_MS}, {"all": False, "wait": True}):
        refused = api.request("POST", "/v1/admin/erase", {"topic": "t", **whole})
        assert refused.status_code == 400
        assert refused.json()["title"] == "invalid request"
        assert '"all": true' in refused.json()["hint"]
    assert api.request("POST", "/v1/admin/erase", {"topic": "t", "key": "k", "all": True}).status_code == 400
    assert api.request("POST", "/v1/admin/erase", {"topic": "t", "dry_run": True}).json()["matched"]["hot"] == 1
    assert len(api.request("GET", "/v1/topics/t/messages").json()["messages"]) == 1
    assert api.request("POST", "/v1/admin/erase", {"topic": "t", "all": True}).json()["matched"]["hot"] == 1
    assert api.request("GET", "/v1/topics/t/messages").json()["messages"] == []


def test_topic_options_by_rest(api: ApiClient) -> None:
    made = api.request("PUT", "/v1/topics/v", {"cold_retention_ms": 1000, "archive": False})
    assert (made.status_code, made.json()["queues"]) == (201, 8)
    shown = {name: made.json()[name] for name in ("archive", "cold_retention_ms", "hold")}
    assert shown == {"archive": False, "cold_retention_ms": 1000, "hold": False}
    assert api.request("PUT", "/v1/topics/v", {"queues": 9}).json()["cold_retention_ms"] == 1000
    assert api.request("PUT", "/v1/topics/v", {"cold_retention_ms": None}).json()["cold_retention_ms"] is None
    assert api.request("PUT", "/v1/topics/v", {"cold_retention_ms": 0}).status_code == 422
    assert api.request("PUT", "/v1/topics/v/hold", {"hold": True}).json()["hold"] is True
    refused = api.request("POST", "/v1/admin/erase", {"topic": "v", "all": True})
    assert (refused.status_code, refused.json()["title"]) == (409, "topic held")
    assert "off" in refused.json()["hint"]
    assert api.request("PUT", "/v1/topics/v/hold", {}).status_code == 422
    assert api.request("PUT", "/v1/topics/nobody/hold", {"hold": True}).status_code == 404
    assert [topic["hold"] for topic in api.request("GET", "/v1/topics").json()["topics"]] == [False, False, True]
