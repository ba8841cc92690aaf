"""A call goes on while that may help, says what was wrong when it does not, and repeats nothing twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.client.scripted import AsyncScripted, Said, Scripted, good, in_turn, problem
from tests.support.service.raw_server import Connection, raw_server
from tierlog.client import AsyncClient, Client, Message, RetryPolicy
from tierlog.client.async_transport import run as run_async
from tierlog.client.errors import (
    CapacityError,
    ClosedError,
    ForbiddenError,
    InvalidRequestError,
    MessageTooLargeError,
    NoAnswerError,
    NotFoundError,
    OverloadedError,
    StaleGenerationError,
    StoreError,
    TopicNotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from tierlog.client.requests import Answer, Request
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SeededRandomness

URL = "http://127.0.0.1:1"
HOME: Said = good({"topic": "orders", "store_id": "store-a", "url": None, "is_routed": False})
APPENDED: Said = good({"results": [{"message_id": "A", "queue_id": 0, "queue_offset": 0, "store_ms": 5}]})


def client_of(*answers: Said, within_s: float = 60.0) -> tuple[Client, Scripted]:
    clock = ManualClock()
    transport = Scripted(in_turn(*answers), clock)
    retries = RetryPolicy(within_s=within_s)
    return Client(URL, retries=retries, clock=clock, randomness=SeededRandomness(1), transport=transport), transport


def test_a_service_that_is_away_for_a_while_is_waited_for() -> None:
    client, transport = client_of(
        NoAnswerError("refused"), problem(503, "unavailable"), problem(429, "overloaded", retry_after_s=3),
        good({"topics": []}),
    )  # fmt: skip
    assert client.topics() == []
    first, second, third = transport.pauses
    assert 0.05 <= first <= 0.1 < second <= 0.2 < third
    assert third == 3.0


def test_a_call_ends_when_its_time_is_over_and_raises_the_last_error() -> None:
    client, transport = client_of(*[problem(503, "unavailable")] * 50, within_s=20)
    with pytest.raises(UnavailableError):
        client.topics()
    assert sum(transport.pauses) <= 20


def test_more_patience_than_there_is_ends_a_call_at_once() -> None:
    client, transport = client_of(problem(429, "overloaded", retry_after_s=90))
    with pytest.raises(OverloadedError):
        client.topics()
    assert transport.pauses == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(400, "invalid-request"), InvalidRequestError),
        (problem(401, "unauthenticated"), UnauthenticatedError),
        (problem(403, "forbidden"), ForbiddenError),
        (problem(404, "topic-not-found"), TopicNotFoundError),
        (problem(409, "stale-generation"), StaleGenerationError),
        (problem(422, "a-newer-kind"), InvalidRequestError),
        (problem(500, "corruption"), StoreError),
        (problem(507, "disk-full"), CapacityError),
        (Answer(302, {"location": "/"}, b""), StoreError),
        (Answer(400, {}, b"<html>"), InvalidRequestError),
    ],
)
def test_what_waiting_does_not_mend_is_raised_at_once_by_its_class(answer: Answer, kind: type[StoreError]) -> None:
    client, transport = client_of(answer)
    with pytest.raises(kind):
        client.topics()
    assert transport.pauses == []


def test_a_service_that_closes_its_store_is_waited_for_like_one_that_is_away() -> None:
    client, _ = client_of(problem(503, "closed"), good({"topics": []}))
    assert client.topics() == []


def test_an_append_is_repeated_with_its_key_and_for_the_same_store() -> None:
    client, transport = client_of(HOME, NoAnswerError("cut off"), problem(409, "request-under-way"), APPENDED)
    client.append("orders", [Message(b"a", keys=["k"])])
    _, *tries = transport.requests
    assert len(tries) == 3
    assert {one.path for one in tries} == {"/v1/topics/orders/messages?durability=flushed&store_id=store-a"}
    assert len({(one.headers["Idempotency-Key"], one.body) for one in tries}) == 1


def test_two_appends_have_two_keys_and_ask_once_for_the_home() -> None:
    client, transport = client_of(HOME, APPENDED, APPENDED)
    client.append("orders", [Message("a")])
    client.append("orders", [Message("a")])
    _, one, other = transport.requests
    assert one.headers["Idempotency-Key"] != other.headers["Idempotency-Key"]


def test_an_append_that_failed_asks_for_the_home_again() -> None:
    client, transport = client_of(HOME, problem(503, "unavailable"), HOME, APPENDED, within_s=0)
    with pytest.raises(UnavailableError):
        client.append("orders", [Message("a")])
    client.append("orders", [Message("a")])
    assert [one.path for one in transport.requests].count("/v1/cluster/topics/orders") == 2


def test_no_message_is_no_request() -> None:
    client, transport = client_of()
    assert client.append("orders", []) == []
    assert transport.requests == []


def test_names_cannot_leave_their_place_in_a_path() -> None:
    client, transport = client_of(problem(404, "topic-not-found"))
    with pytest.raises(TopicNotFoundError):
        client.topic("../admin?x=1#%")
    assert transport.requests[0].path == "/v1/topics/..%2Fadmin%3Fx%3D1%23%25"


def test_an_event_loop_works_a_flow_off_in_the_same_way() -> None:
    client, _ = client_of()
    clock = ManualClock()
    transport = AsyncScripted(in_turn(NoAnswerError("refused"), problem(503, "closed"), good({"topics": []})), clock)
    assert asyncio.run(run_async(client.calls.topics(), transport)) == []
    assert len(transport.inner.pauses) == 2


def test_what_a_flow_raises_comes_out_of_both_runners() -> None:
    client, _ = client_of(problem(403, "forbidden"))
    with pytest.raises(ForbiddenError):
        client.topics()
    transport = AsyncScripted(in_turn(problem(403, "forbidden")), ManualClock())
    with pytest.raises(ForbiddenError):
        asyncio.run(run_async(client.calls.topics(), transport))


def test_a_request_says_how_long_its_answer_may_stay_away() -> None:
    page = {"status": "NO_NEW_MESSAGE", "next_offset": 7, "min_offset": 0, "max_offset": 7, "messages": []}
    client, transport = client_of(good(page))
    assert client.pull("orders", 0, 7, wait_ms=20_000).next_offset == 7
    request: Request = transport.requests[0]
    assert client.service.read_s(request) == 20 + client.service.timeout_s


def test_a_token_is_not_sent_in_the_clear_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERLOG_TOKEN_OVER_HTTP", raising=False)
    with pytest.raises(InvalidRequestError, match="plain HTTP"):
        Client("http://logs.example.com", token="tierlog_secret")
    client = Client("https://logs.example.com", token="tierlog_secret")
    assert client.service.headers(Request("GET", "/"))["Authorization"] == "Bearer tierlog_secret"
    assert "secret" not in repr(client.service)


def test_a_consumer_speaks_as_its_client_does_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("tierlog_secret")
    file.chmod(0o600)
    monkeypatch.delenv("TIERLOG_TOKEN", raising=False)
    monkeypatch.setenv("TIERLOG_TOKEN_FILE", str(tmp_path / "none"))
    client = Client(URL, token_file=file)
    like = AsyncClient.like(client)
    assert like.service.headers(Request("GET", "/"))["Authorization"] == "Bearer tierlog_secret"


def test_a_key_that_no_header_can_have_is_refused_and_not_tried_again() -> None:
    client, transport = client_of(HOME)
    for key in ("ключ", "a\nb"):
        with pytest.raises(InvalidRequestError, match="printable ASCII"):
            client.append("orders", [Message("a")], idempotency_key=key)
    assert transport.requests == []


def test_a_connection_that_was_closed_meanwhile_costs_no_retry() -> None:
    def act(connection: Connection) -> None:
        heads.append(connection.head())
        connection.send(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"topics":[]}')

    heads: list[bytes] = []
    with raw_server(act) as url, Client(url, retries=RetryPolicy(within_s=0)) as client:
        for _ in range(3):
            assert client.run(client.calls.attempts.document(Request("POST", "/v1/topics", b"{}"))) == {"topics": []}
    assert len(heads) == 3


def test_silence_is_told_with_its_reason() -> None:
    with (
        Client(URL, retries=RetryPolicy(within_s=0)) as client,
        pytest.raises(NoAnswerError, match="refused") as raised,
    ):
        client.topics()
    assert str(raised.value).count("no answer from") == 1


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b"])
def test_a_name_that_no_machine_can_have_is_silence_for_both_clients(host: str) -> None:
    async def ask() -> None:
        async with AsyncClient(f"http://{host}", retries=RetryPolicy(within_s=0)) as client:
            await client.topics()

    with Client(f"http://{host}", retries=RetryPolicy(within_s=0)) as client, pytest.raises(NoAnswerError):
        client.topics()
    with pytest.raises(NoAnswerError):
        asyncio.run(ask())


def test_one_key_is_not_taken_for_a_key_a_letter() -> None:
    with pytest.raises(InvalidRequestError, match="keys is a list of keys, not one"):
        Message("paid", keys="4711").line()


def test_one_topic_is_not_taken_for_a_topic_a_letter() -> None:
    membership = {"member_id": "m", "generation": 1, "session_timeout_ms": 30_000, "assignment": []}
    client, scripted = client_of(good(membership))
    client.join("audit", "orders")
    assert json.loads(scripted.requests[-1].body or b"")["topics"] == ["orders"]


OTHER_HOME: Said = good({"topic": "orders", "store_id": "store-b", "url": None, "is_routed": False})


def test_a_home_that_was_taken_out_is_asked_for_again() -> None:
    client, transport = client_of(HOME, APPENDED, problem(404, "not-found"), OTHER_HOME, APPENDED)
    client.append("orders", [Message("a")])
    client.append("orders", [Message("b")])
    *_, refused, _, again = transport.requests
    assert (refused.path[-7:], again.path[-7:]) == ("store-a", "store-b")
    assert (refused.headers, refused.body) == (again.headers, again.body)


def test_a_home_that_may_have_taken_the_messages_is_not_left_for_another() -> None:
    client, transport = client_of(HOME, APPENDED, NoAnswerError("cut off"), problem(404, "not-found"))
    client.append("orders", [Message("a")])
    with pytest.raises(NotFoundError):
        client.append("orders", [Message("b")])
    assert len(transport.requests) == 4


def test_a_home_that_is_not_there_is_asked_for_again_once() -> None:
    away: Said = problem(404, "not-found")
    client, transport = client_of(HOME, APPENDED, away, HOME, away)
    client.append("orders", [Message("a")])
    with pytest.raises(NotFoundError):
        client.append("orders", [Message("b")])
    assert len(transport.requests) == 5


def test_an_answer_of_another_length_is_none() -> None:
    client, _ = client_of(HOME, APPENDED)
    with pytest.raises(StoreError, match="2 messages were answered with 1 results"):
        client.append("orders", [Message("a"), Message("b")])


def test_a_group_that_is_removed_twice_is_removed() -> None:
    client, _ = client_of(NoAnswerError("cut off"), problem(404, "not-found"))
    client.remove_group("audit")
    for answers in ([problem(404, "not-found")], [problem(429, "overloaded"), problem(404, "not-found")]):
        client, _ = client_of(*answers)
        with pytest.raises(NotFoundError):
            client.remove_group("audit")


def test_an_error_says_for_how_long_a_service_asked_to_be_left_alone() -> None:
    client, _ = client_of(problem(429, "overloaded", retry_after_s=7), within_s=0)
    with pytest.raises(OverloadedError) as raised:
        client.topics()
    assert raised.value.retry_after_s == 7


def test_a_closed_async_client_ends_its_pauses() -> None:
    async def work() -> None:
        client = AsyncClient("http://127.0.0.1:9", retries=RetryPolicy(within_s=3_600, first_s=600, most_s=600))
        asking = asyncio.create_task(client.topics())
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(ClosedError):
            await asking

    asyncio.run(asyncio.wait_for(work(), 60))


def _both(
    url: str, call: Callable[[Client], object], over: threading.Event, **settings: Any
) -> Iterator[Callable[[], None]]:
    """One call of each client; ``over`` is set when both have ended."""

    def wait() -> None:
        with Client(url, **settings) as client:
            call(client)

    async def work() -> None:
        async with AsyncClient(url, **settings) as client:
            try:
                await cast("Awaitable[object]", call(cast("Client", client)))
            finally:
                over.set()
                await asyncio.sleep(0.5)  # for connections that end by themselves

    yield wait
    yield lambda: asyncio.run(asyncio.wait_for(work(), 60))


def test_a_service_that_takes_no_more_of_a_body_is_silence_for_both_clients() -> None:
    def act(connection: Connection) -> None:
        connection.head()
        over.wait(60)

    def send(client: Client) -> object:
        return client.run(client.calls.attempts.answer(Request("POST", "/v1/topics", b"x" * 64_000_000, within_s=0.3)))

    over = threading.Event()
    with raw_server(act) as url:
        for ask in _both(url, send, over, retries=RetryPolicy(within_s=0)):
            with pytest.raises(NoAnswerError):
                ask()


def test_a_request_that_is_too_large_is_that_for_both_clients() -> None:
    body = b'{"type": "about:blank", "title": "request too large", "status": 413, "detail": "over the limit"}'

    def act(connection: Connection) -> None:
        connection.head()
        connection.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        threading.Event().wait(0.2)  # a reset that comes in the same moment may be seen before the answer

    def send(client: Client) -> object:
        return client.run(client.calls.attempts.answer(Request("POST", "/v1/topics", b"x" * 64_000_000)))

    with raw_server(act) as url:
        for ask in _both(url, send, threading.Event(), retries=RetryPolicy(within_s=0)):
            with pytest.raises(MessageTooLargeError, match="over the limit"):
                ask()
