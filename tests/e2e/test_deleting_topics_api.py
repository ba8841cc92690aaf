"""Deleting a topic by command, on a store in this process and on a running service, and by REST."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes.shell import TINIEST, Shell, archived_lines, served
from tests.support.rocketmq.remoting_world import remoting_world
from tests.support.service.api_client import ApiClient
from tierlog.service.api.application.app import create_app
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.timers import NOTE_TOPIC
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import FAILED, WRONG_USE
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.waiting import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode


def test_the_command_on_a_store_opened_here(tmp_path: Path, shell: Shell) -> None:
    where = archived_lines(tmp_path, shell)
    plan = json.loads(shell("delete", "t", "--dry-run", *where))
    assert (plan["deleted"], sum(queue["next_offset"] for queue in plan["queues"])) == (False, 60)
    shell("delete", "t", "--wait", *where, code=WRONG_USE)
    assert "this deletes topic 't' as a whole: 60 messages, stored from 20" in shell.err
    assert "--all" in shell.err
    done = json.loads(shell("delete", "t", "--all", "--wait", *where))
    assert (done["deleted"], done["queues"]) == (True, plan["queues"])
    assert sum(row["records"] for row in done["receipt"]["segments_rewritten"]) == 60
    assert shell.rows("topics", *where) == []
    assert shell.rows("topics", *where[2:]) == []
    shell("query", "t", "--key", "order-1", *where, code=WRONG_USE)
    shell("tail", "t", *where[2:], code=WRONG_USE)
    shell("delete", "t", "--all", *where, code=WRONG_USE)
    shell("check", "--deep", *where)


@pytest.mark.slow
def test_the_command_on_a_running_service(tmp_path: Path, shell: Shell) -> None:
    with served("--root", str(tmp_path / "s"), *TINIEST) as url:
        shell("load", str(Path(__file__)), "--topic", "t", "--url", url)
        shell("delete", "t", "--url", url, code=WRONG_USE)
        lines = sum(line != "" for line in Path(__file__).read_text().splitlines())
        assert f"as a whole: {lines} messages, stored from 20" in shell.err
        assert json.loads(shell("delete", "t", "--all", "--url", url))["receipt"] is None
        assert shell.rows("topics", "--url", url) == []
        shell("delete", "t", "--all", "--url", url, code=WRONG_USE)


def test_the_route(tmp_path: Path) -> None:
    settings = Settings.load(None, {"hot": {"segment_bytes": 4096, "queue_file_units": 60}})
    engine = Store.open(tmp_path / "s", settings=settings, cold_url=f"file://{tmp_path / 'cold'}")
    client = ApiClient(create_app(engine, settings))
    try:
        engine.append([Message("t", b"old", ["k"], queue_id=0)])
        (message_id,) = [each.record.message_id for each in engine.pull("t", 0, 0, 1).messages]
        engine.removal.configure("t", hold=True)
        assert client.request("DELETE", "/v1/topics/t?all=true").status_code == 409
        engine.removal.configure("t", hold=False)
        assert client.request("DELETE", "/v1/topics/t?dry_run=true").json()["deleted"] is False
        for wordless in ("", "?all=false", "?wait=true"):
            refused = client.request("DELETE", f"/v1/topics/t{wordless}")
            assert (refused.status_code, "all=true" in refused.json()["hint"]) == (400, True)
        answer = client.request("DELETE", "/v1/topics/t?all=true")
        assert (answer.status_code, answer.json()["receipt"]["matched"]["hot"]) == (200, 1)
        receipt = answer.json()["receipt"]
        assert client.request("GET", f"/v1/admin/receipts/{receipt['tombstone_id']}").json()["topic"] == "t"
        for path in ("/v1/topics/t", "/v1/topics/t/messages?key=k", "/v1/topics/t/queues/0/messages?offset=0",
                     "/v1/topics/t/queues/0/offset?time_ms=0", f"/v1/messages/{message_id}"):  # fmt: skip
            assert client.request("GET", path).status_code == 404, path
        assert client.request("GET", "/v1/topics").json()["topics"] == []
        assert client.request("DELETE", "/v1/topics/t?all=true").status_code == 404
        assert client.request("PUT", "/v1/topics/t/hold", {"hold": True}).status_code == 404
        assert client.request("PUT", "/v1/topics/t", {"queues": 1}).status_code == 201
        pulled = client.request("GET", "/v1/topics/t/queues/0/messages?offset=0").json()
        assert (pulled["status"], pulled["min_offset"]) == ("OFFSET_TOO_SMALL", 1)
        assert client.request("GET", "/v1/topics/t/messages").json()["messages"] == []
    finally:
        engine.close()


SYSTEM_TOPICS = [
    NOTE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
]  # fmt: skip


@pytest.mark.parametrize("topic", SYSTEM_TOPICS)
def test_a_topic_that_the_service_keeps_its_state_in_is_not_deleted_in_any_way(
    tmp_path: Path, shell: Shell, topic: str
) -> None:
    with remoting_world(tmp_path / "s") as world, world.client() as tools:
        world.store.append([Message(topic, b"state", queue_id=0)])
        client = ApiClient(create_app(world.store, world.settings))
        for query in ("all=true", "dry_run=true"):
            answer = client.request("DELETE", f"/v1/topics/{topic}?{query}")
            assert (answer.status_code, "system topic" in answer.json()["detail"]) == (403, True)
        refused = tools.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        assert refused.code == ResponseCode.NO_PERMISSION
        assert world.store.find_queues(topic) is not None
    shell("delete", topic, "--all", "--root", str(tmp_path / "s"), code=FAILED)
    assert "system topic" in shell.err
    assert [row["topic"] for row in shell.rows("topics", "--root", str(tmp_path / "s"))].count(topic) == 1
