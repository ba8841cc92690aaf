"""Pages follow each other to the end, and an answer that is not everything is never taken for it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.support.client.scripted import Said, Scripted, good, in_turn
from tierlog.client import Client, StoredMessage
from tierlog.client.errors import IncompleteAnswerError, InvalidRequestError
from tierlog.tiering.base.clock import ManualClock


def message(offset: int) -> dict[str, Any]:
    return {
        "message_id": f"{offset:032X}", "store_id": "s", "physical_offset": offset * 100, "topic": "orders",
        "queue_id": 0, "queue_offset": offset, "keys": ["k"], "tag": "", "properties": {}, "born_ms": 1, "store_ms": 2,
        "tier": "hot", "size_bytes": 100, "body": f"order {offset}",
    }  # fmt: skip


def page(
    offsets: range, cursor: str | None, *, complete: bool = True, cut_by: str | None = None, requests: int = 3,
    **more: Any,
) -> Said:  # fmt: skip
    coverage = {
        **more,
        "complete": complete, "cut_by": cut_by, "requests": requests, "bytes": 10, "cost_usd": 0.0, "failures": [],
        "stores": [{"store_id": "s", "hot": {"from_ms": 0, "to_ms": 9}, "cold": None, "error": None}],
    }  # fmt: skip
    return good({"messages": [message(one) for one in offsets], "next_cursor": cursor, "coverage": coverage})


def client_of(*answers: Said) -> tuple[Client, Scripted]:
    clock = ManualClock()
    transport = Scripted(in_turn(*answers), clock)
    return Client("http://127.0.0.1:1", clock=clock, transport=transport), transport


def test_filters_are_sent_as_they_are_and_each_of_several_by_itself() -> None:
    client, transport = client_of(page(range(1), None))
    pages = client.query("orders", tag="a || b", contains=["ü&", "x"], where={"order.id": "4=7"})
    assert [len(found.messages) for found in pages] == [1]
    sent = parse_qsl(urlsplit(transport.requests[0].path).query)
    filters = [(name, value) for name, value in sent if name in ("tag", "contains", "where")]
    assert filters == [("tag", "a || b"), ("contains", "ü&"), ("contains", "x"), ("where", "order.id=4=7")]
    with pytest.raises(InvalidRequestError):
        client.query("orders", where={"a=b": "c"})


@pytest.mark.parametrize("timeout_ms", [None, 500])
def test_the_service_s_own_time_for_filtering_ends_a_page_and_not_the_query_but_one_asked_for_does(
    timeout_ms: int | None,
) -> None:
    cut = page(range(1), "c1", complete=False, cut_by="timeout", examined_to_ms=5)
    client, _ = client_of(cut, page(range(1, 2), None))
    pages = client.query("orders", contains="x", timeout_ms=timeout_ms)
    if timeout_ms is None:
        assert [one.queue_offset for one in pages.messages()] == [0, 1]
    else:
        with pytest.raises(IncompleteAnswerError, match="timeout"):
            list(pages.messages())
    assert pages.is_complete == (timeout_ms is None)
    assert pages.cursor == (None if timeout_ms is None else "c1")


def asked(transport: Scripted) -> list[dict[str, str]]:
    return [dict(parse_qsl(urlsplit(one.path).query)) for one in transport.requests]


def test_pages_follow_the_cursor_to_the_end() -> None:
    client, transport = client_of(page(range(2), "c1", cut_by="limit"), page(range(2, 3), None))
    pages = client.query("orders", key="a b&c", page_size=2)
    assert not pages.is_complete
    assert [[one.queue_offset for one in found.messages] for found in pages] == [[0, 1], [2]]
    assert pages.is_complete
    assert pages.cursor is None
    first, second = asked(transport)
    assert (first["key"], first["limit"], "cursor" in first) == ("a b&c", "2", False)
    assert second["cursor"] == "c1"


def test_pages_are_asked_for_when_they_are_wanted() -> None:
    client, transport = client_of(page(range(2), "c1", cut_by="limit"))
    pages = iter(client.query("orders"))
    assert transport.requests == []
    assert next(pages).coverage.complete
    assert len(transport.requests) == 1


def test_a_limit_is_for_all_pages_together_and_leaves_a_cursor() -> None:
    client, transport = client_of(page(range(2), "c1", cut_by="limit"), page(range(2, 3), "c2", cut_by="limit"))
    pages = client.query("orders", limit=3, page_size=2)
    assert len(list(pages.messages())) == 3
    assert pages.cursor == "c2"
    assert [one["limit"] for one in asked(transport)] == ["2", "1"]


def test_a_budget_is_for_all_pages_together() -> None:
    client, transport = client_of(page(range(2), "c1", cut_by="limit", requests=7), page(range(2, 3), None, requests=3))
    list(client.query("orders", max_requests=10))
    assert [one["max_requests"] for one in asked(transport)] == ["10", "3"]


@pytest.mark.parametrize("cut_by", ["budget", "timeout", None])
def test_an_incomplete_page_is_said_to_be_so(cut_by: str | None) -> None:
    answers = page(range(2), "c1", cut_by="limit"), page(range(2, 3), None, complete=False, cut_by=cut_by)
    client, _ = client_of(*answers)
    pages = client.query("orders")
    found = list(pages)
    assert [one.coverage.complete for one in found] == [True, False]
    assert not pages.is_complete
    assert found[-1].coverage.why_incomplete


def test_messages_alone_end_with_an_error_where_they_are_not_everything() -> None:
    client, _ = client_of(page(range(2), "c1", complete=False, cut_by="timeout"))
    pages = client.query("orders")
    got: list[StoredMessage] = []
    with pytest.raises(IncompleteAnswerError, match="cut by timeout") as raised:
        got.extend(pages.messages())
    assert [one.body for one in got] == [b"order 0", b"order 1"]
    assert raised.value.coverage.cut_by == "timeout"
    assert pages.cursor == "c1"


def test_one_incomplete_page_among_complete_ones_is_not_forgotten() -> None:
    client, _ = client_of(page(range(1), "c1", complete=False), page(range(1, 2), None))
    pages = client.query("orders")
    assert len(list(pages)) == 2
    assert not pages.is_complete


def test_a_page_of_none_or_too_many_is_refused_before_anybody_is_asked() -> None:
    client, _ = client_of()
    for size in (0, 10_001):
        with pytest.raises(InvalidRequestError):
            client.query("orders", page_size=size)


def test_a_budget_that_is_spent_at_the_end_of_a_page_is_no_end_of_the_answer() -> None:
    client, transport = client_of(
        page(range(2), "c1", cut_by="limit", requests=10), page(range(0), "c1", complete=False, cut_by="budget")
    )
    pages = client.query("orders", max_requests=10)
    with pytest.raises(IncompleteAnswerError, match="cut by budget"):
        list(pages.messages())
    assert not pages.is_complete
    assert [one["max_requests"] for one in asked(transport)] == ["10", "0"]
