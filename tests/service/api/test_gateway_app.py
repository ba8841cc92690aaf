"""What a gateway tells over HTTP: alive, ready with the stores that it reaches, and its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.support.rocketmq.grpc_client import Code, GrpcClient, message
from tests.support.rocketmq.grpc_world import grpc_world
from tests.support.service.served import served
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.process import gateway_app
from tierlog.service.config.settings import Settings
from tierlog.service.rocketmq.doors import gateway
from tierlog.service.server.connections import Connections
from tierlog.tiering.base.clock import SystemClock

STORE = "broker-a"


@contextmanager
def told(url: str) -> Iterator[tuple[str, TestClient]]:
    """A gateway: where it takes messages, and a client of what it tells."""
    settings = Settings.load(overrides={"rocketmq.grpc_listen": "127.0.0.1:0"})
    control = AccessControl(settings.access, SystemClock())
    with gateway(url, settings, control) as (where, opened):
        yield where, TestClient(gateway_app(opened, settings, control, Connections(10)), "http://localhost")


def ask(client: TestClient, path: str) -> tuple[int, Any]:
    answer = client.get(path)
    return answer.status_code, answer.json()


def test_a_gateway_is_ready_while_it_reaches_a_store_and_names_it(tmp_path: Path) -> None:
    with grpc_world(tmp_path / "store", store_id=STORE) as world:
        with served(world.store, world.settings) as url, told(url) as (_, client):
            assert ask(client, "/livez") == (200, {"status": "alive"})
            assert ask(client, "/readyz") == (200, {"status": "ready", "stores": [{"store_id": STORE, "error": None}]})
        with told(url) as (_, client):
            status, problem = ask(client, "/readyz")
            assert (status, problem["title"]) == (503, "not ready")
            assert ask(client, "/livez")[0] == 200, "a restart would not help"


def test_metrics_of_a_gateway_count_its_calls(tmp_path: Path) -> None:
    with (
        grpc_world(tmp_path / "store", store_id=STORE) as world,
        served(world.store, world.settings) as url,
        told(url) as (where, client),
    ):
        with GrpcClient(where) as producer:
            assert producer.send(message(b"hello")).status.code == Code.OK
            assert producer.send(message(tag="a|b")).status.code == Code.ILLEGAL_MESSAGE_TAG
        text = client.get("/metrics").text
    named = 'door="grpc",request="SendMessage"'
    for answer in ("ok", "illegal_message_tag"):
        line = f'^tierlog_rocketmq_requests_total{{answer="{answer}",{named}}} 1.0$'
        assert re.search(line, text, re.MULTILINE), text
    assert "tierlog_appended_messages" not in text, "it has no store"


def test_there_is_nothing_else(tmp_path: Path) -> None:
    with told("http://127.0.0.1:1") as (_, client):
        assert client.get("/v1/topics").status_code == 404
