"""Every request has an id, one log line and its numbers; none of them tells what a client wrote."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.service.api.application.app import create_app
from tierlog.service.config.settings import LogSettings, Settings
from tierlog.service.observing.logs import JsonLines, Lines, TextLines, configure_logs, log_request
from tierlog.service.observing.request_context import is_sane_id, request_ids
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.message.batch import Message

SECRET = "4711-do-not-tell"


class LoggedWorld(World):
    """A service on a store in memory, and the lines that it logs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings=settings)
        logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)  # a server that ran here before left its own
        self.client = TestClient(create_app(self.open(), settings), "http://localhost", raise_server_exceptions=False)
        self.written = io.StringIO()

    def lines(self) -> list[dict[str, Any]]:
        for handler in logging.getLogger().handlers:
            handler.flush()  # lines of requests wait for the end of the turn
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    def access_lines(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["logger"] == "tierlog.access"]


@pytest.fixture
def world() -> LoggedWorld:
    return world_with()


def world_with(level: str = "info", form: str = "json", **overrides: object) -> LoggedWorld:
    world = LoggedWorld(tiny_settings(**overrides))
    configure_logs(LogSettings.model_validate({"level": level, "format": form}), world.written)
    return world


def test_a_sane_request_id_is_taken_and_any_other_replaced(world: LoggedWorld) -> None:
    for given in ("abc-123", "01HZX/9:7=", "a" * 128):
        assert world.client.get("/livez", headers={"X-Request-Id": given}).headers["x-request-id"] == given
    for given in ("", "a" * 129, "two words", 'quo"te', "new\\nline", "é", "{}"):
        found = world.client.get("/livez", headers={b"X-Request-Id": given.encode("latin-1")}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", found), given
    assert world.client.get("/livez").headers["x-request-id"] != world.client.get("/livez").headers["x-request-id"]


def test_a_problem_names_the_request_that_its_log_lines_name(world: LoggedWorld) -> None:
    answer = world.client.get("/v1/topics/nothing/messages", headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.json()["request_id"], answer.headers["x-request-id"]) == (404, "mine", "mine")
    (line,) = world.access_lines()
    assert (line["request_id"], line["status"], line["problem"]) == ("mine", 404, "topic not found")
    assert line["route"] == "/v1/topics/{topic}/messages"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_the_id_is_on_lines_of_pool_threads_too(world: LoggedWorld) -> None:
    def log(*arguments: object) -> None:
        logging.getLogger("tierlog").warning("on a thread of the pool")
        world.engine._searcher._pool.submit(  # type: ignore[union-attr]  # made with one
            lambda: logging.getLogger("tierlog").warning("on a thread of queries")
        ).result()

    world.engine.query = log  # type: ignore[assignment,method-assign]  # a query that logs
    world.client.get("/v1/topics/orders/messages", headers={"X-Request-Id": "q-1"})
    told = {line["event"]: line.get("request_id") for line in world.lines() if line["level"] == "warning"}
    assert told == {"on a thread of the pool": "q-1", "on a thread of queries": "q-1"}


def test_an_unexpected_error_is_a_problem_with_an_id_and_logged_once_with_it(world: LoggedWorld) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("nobody foresaw this")

    world.engine.query = fail  # type: ignore[assignment,method-assign]  # as a defect would
    answer = world.client.get("/v1/topics/orders/messages", headers={"X-Request-Id": "bad"})
    assert (answer.status_code, answer.json()["request_id"]) == (500, "bad")
    (told,) = [line for line in world.lines() if "error" in line]
    assert told["request_id"] == "bad"
    assert "nobody foresaw this" in told["error"]
    assert world.access_lines()[-1]["status"] == 500


def test_neither_keys_nor_bodies_nor_query_strings_nor_tokens_are_logged(world: LoggedWorld) -> None:
    headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": SECRET}
    body = {"messages": [{"body": SECRET, "keys": [SECRET], "properties": {"p": SECRET}}]}
    assert world.client.post("/v1/topics/orders/messages", json=body, headers=headers).status_code == 200
    assert world.client.post("/v1/topics/orders/messages", json={"messages": SECRET}).status_code == 422
    assert world.client.get("/v1/topics/orders/messages", params={"key": SECRET}).status_code == 200
    assert world.client.get("/v1/topics/orders/messages", params={"key": SECRET, "limit": SECRET}).status_code == 400
    assert world.client.get("/nowhere/" + SECRET).status_code == 404
    assert len(world.access_lines()) == 5
    assert SECRET not in world.written.getvalue()


def test_requests_of_probes_and_scrapes_have_no_line_unless_asked_for() -> None:
    for level, lines in (("info", 0), ("debug", 3)):
        world = world_with(level)
        for path in ("/livez", "/readyz", "/metrics"):
            world.client.get(path)
        assert len(world.access_lines()) == lines


def test_every_tenth_request_has_a_line_and_every_failed_one() -> None:
    world = world_with(log__access_every=10)
    for _ in range(20):
        world.client.get("/v1/topics")
        world.client.get("/v1/topics/nothing")
    statuses = [line["status"] for line in world.access_lines()]
    assert (statuses.count(200), statuses.count(404)) == (2, 20)


def test_text_has_one_line_an_event_whatever_is_in_it() -> None:
    world = world_with(form="text")
    logging.getLogger("tierlog").warning("one\ntwo: %s", "three\nfour")
    world.client.get("/v1/topics", headers={"X-Request-Id": "mine"})
    first, second = world.written.getvalue().splitlines()
    assert first.endswith("warning one two: three four")
    assert "info    request request_id=mine method=GET route=/v1/topics status=200 ms=" in second


def test_lines_of_the_web_server_come_in_the_same_form(world: LoggedWorld) -> None:
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
    assert world.lines()[0]["logger"] == "uvicorn.error"


def test_an_archive_that_stays_dead_is_logged_once(world: LoggedWorld) -> None:
    world.engine.append([Message("orders", b"x")])
    world.engine._hot.roll()
    world.bucket.die()
    archiving = world.engine._background._tiers[1]
    for _ in range(5):
        archiving.run_once()
        world.clock.advance(120_000)
    assert [line["event"].split(",")[0] for line in world.lines()] == ["archiving failed"]
    world.bucket.revive()
    archiving.run_once()
    assert world.lines()[-1]["event"] == "archiving goes well again"


def test_a_line_of_text_moves_no_terminal() -> None:
    """Paths and messages of libraries hold what a client sent, escapes and ends of lines too."""
    record = logging.makeLogRecord({"msg": "failed at /a\x1b[2J\u2028b\x07\u202ec", "levelname": "INFO"})
    line = TextLines().format(record)
    assert line.isprintable()
    assert line.endswith(r"failed at /a\x1b[2J b\x07\u202ec")


def test_lines_of_requests_wait_for_the_end_of_the_turn_and_all_keep_their_order(world: LoggedWorld) -> None:
    access, other = logging.getLogger("tierlog.access"), logging.getLogger("tierlog")

    async def run() -> None:
        log_request(access, logging.INFO, "first", {})
        log_request(access, logging.INFO, "second", {"number": 2})
        assert world.written.getvalue() == ""
        other.warning("third")  # whatever else is logged waits for nothing
        assert world.written.getvalue().count("\n") == 3
        log_request(access, logging.INFO, "fourth", {})
        await asyncio.sleep(0)
        assert world.written.getvalue().count("\n") == 4

    asyncio.run(run())
    assert [line["event"] for line in world.lines()] == ["first", "second", "third", "fourth"]
    assert world.lines()[1]["number"] == 2


def test_a_line_with_half_a_surrogate_pair_is_json_all_the_same() -> None:
    record = logging.makeLogRecord({"msg": "failed at %s", "args": ("/a\ud800",)})  # logged, no report could hold it
    assert json.loads(JsonLines().format(record))["event"] == "failed at /a\ud800"


def test_lines_whose_stream_is_gone_reach_nobody_and_harm_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    failed: list[dict[str, Any]] = []

    async def turn() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        logger = logging.getLogger("test.lines")
        logger.setLevel(logging.INFO)
        logger.addHandler(lines)
        log_request(logger, logging.INFO, "request", {})
        stream.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    try:
        asyncio.run(turn())
    finally:
        logging.getLogger("test.lines").removeHandler(lines)
    assert failed == []
    assert "I/O operation on closed file" in capsys.readouterr().err


def test_no_two_requests_have_one_new_id() -> None:
    ids = list(itertools.islice(request_ids(SeededRandomness(1)), 1_000))
    assert len(set(ids)) == 1_000
    assert all(is_sane_id(one) and len(one) == 16 for one in ids)
