"""Which store a request is meant for, of a node and of a querier."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.service.fixed_cluster import FixedCluster
from tierlog.service.api.application.app import route_table, routed_app
from tierlog.service.api.application.forwarding import answer_headers, request_headers
from tierlog.service.cluster.routing import RoutedRequest, needs_remote_lookup, routed_request, target_store
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, UnavailableError

_PLACES = {"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2", "c": "http://127.0.0.1:3"}
_HOMES, _GROUPS = {"orders": "b"}, {"billing": "c"}
_TABLE = route_table(routed_app(access=False))


class Topics:
    """Knows which stores have which topic."""

    def stores_with_topic(self, topic: str) -> Sequence[str]:
        """As it is here."""
        return {"orders": ["b"], "both": ["b", "a"]}.get(topic, [])


def _asked(method: str, path: str, query: bytes) -> RoutedRequest:
    found = _TABLE.find(method, path)
    assert found.traits.store is not None
    return routed_request(found.traits.store, found.names, query)


def _meant(own: str | None, method: str, path: str, query: bytes = b"", places: dict[str, str] = _PLACES) -> str | None:
    cluster = FixedCluster(own, places, _HOMES, dict(_GROUPS))
    return target_store(_asked(method, path, query), cluster, Topics()).store_id


@pytest.mark.parametrize(
    ("method", "path", "query", "store"),
    [
        ("POST", "/v1/topics/orders/messages", b"", "b"),
        ("POST", "/v1/topics/orders/messages", b"store_id=c", "c"),
        ("POST", "/v1/topics/orders/messages", b"store_id=a", None),
        ("POST", "/v1/topics/others/messages", b"", None),
        ("PUT", "/v1/topics/orders", b"", "b"),
        ("GET", "/v1/topics/orders/messages", b"", None),
        ("GET", "/v1/topics/orders/messages", b"key=k&store%5Fid=b", "b"),
        ("HEAD", "/v1/topics/orders/messages", b"store_id=b", "b"),
        ("DELETE", "/v1/topics/orders", b"", None),
        ("PUT", "/v1/topics/orders/hold", b"", None),
        ("GET", "/v1/topics/orders/queues/0/messages", b"offset=0", None),
        ("GET", "/v1/groups", b"", None),
        ("GET", "/v1/groups", b"store_id=b", "b"),
        ("GET", "/v1/groups/billing", b"", "c"),
        ("GET", "/v1/groups/misspelt", b"", None),
        ("GET", "/v1/groups/misspelt", b"store_id=b", "b"),
        ("POST", "/v1/groups/billing/members", b"store_id=c", "c"),
        ("POST", "/v1/admin/flush", b"store_id=unknown", "unknown"),
        ("GET", "/v1/messages/" + "0" * 32, b"store_id=b", "b"),
    ],
)
def test_a_node_keeps_what_is_its_own_and_sends_on_the_rest(
    method: str, path: str, query: bytes, store: str | None
) -> None:
    assert _meant("a", method, path, query) == store


@pytest.mark.parametrize(
    ("method", "path", "query", "store"),
    [
        ("POST", "/v1/topics/orders/messages", b"", "b"),
        ("GET", "/v1/groups/billing/offsets", b"", "c"),
        ("GET", "/v1/groups/misspelt", b"", "a"),
        ("GET", "/v1/topics/orders/messages", b"", None),
        ("GET", "/v1/topics/orders/messages", b"store_id=b", "b"),
        ("GET", "/v1/topics/orders/queues/0/messages", b"offset=0", "b"),
        ("GET", "/v1/topics/orders/queues/0/offset", b"time_ms=0", "b"),
        ("DELETE", "/v1/topics/orders", b"", "b"),
        ("PUT", "/v1/topics/both/hold", b"store_id=a", "a"),
        ("GET", "/v1/messages/" + "0" * 32, b"store_id=b", None),
        ("GET", "/v1/stats", b"", None),
        ("GET", "/v1/topics", b"store_id=archived", None),
        ("HEAD", "/v1/topics/orders", b"store_id=archived", None),
        ("GET", "/v1/topics/orders/messages", b"store_id=archived", None),
        ("GET", "/v1/topics/orders/hot", b"store_id=archived", "archived"),
        ("POST", "/v1/topics/orders/messages", b"store_id=archived", "archived"),
    ],
)
def test_a_querier_asks_the_store_that_alone_can_be_meant(
    method: str, path: str, query: bytes, store: str | None
) -> None:
    assert _meant(None, method, path, query) == store


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/v1/topics/both/queues/0/messages", "in several stores: a, b"),
        ("GET", "/v1/topics/none/queues/0/messages", "there are several: a, b, c"),
        ("POST", "/v1/admin/archive", "there are several: a, b, c"),
        ("GET", "/v1/timeline", "there are several: a, b, c"),
        ("GET", "/v1/groups", "there are several: a, b, c"),
    ],
)
def test_a_querier_has_the_caller_choose_among_several_stores(method: str, path: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        _meant(None, method, path)


def test_the_only_store_is_meant_whatever_is_asked_of_a_querier() -> None:
    assert _meant(None, "POST", "/v1/admin/flush", places={"a": "http://127.0.0.1:1"}) == "a"
    for method, path in (("POST", "/v1/admin/flush"), ("GET", "/v1/groups/misspelt")):
        with pytest.raises(UnavailableError):
            _meant(None, method, path, places={})


@pytest.mark.parametrize(
    ("path", "query"),
    [("/v1/groups/billing", b"store_id=a"), ("/v1/stats", b"store_id=a&store_id=b"), ("/v1/groups/a b", b"")],
)
def test_a_request_that_contradicts_itself_goes_nowhere(path: str, query: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        _meant("a", "GET", path, query)


@pytest.mark.parametrize("own", ["b", None])
def test_only_what_may_make_a_group_goes_where_it_would_be_and_that_store_decides(own: str | None) -> None:
    groups: dict[str, str] = {}
    cluster = FixedCluster(own, _PLACES, {}, groups)
    looks = [
        ("GET", ""), ("HEAD", ""), ("DELETE", ""), ("GET", "/offsets"), ("PUT", "/members/m"), ("DELETE", "/members/m"),
        ("POST", ""), ("GET", "/members"),
    ]  # fmt: skip
    for method, rest in looks:
        meant = target_store(_asked(method, f"/v1/groups/g{rest}", b""), cluster)
        assert (meant.store_id, meant.is_home) == (None if own else "a", False)
    assert not groups
    for number, (method, rest) in enumerate([("POST", "/members"), ("PUT", "/offsets")]):
        meant = target_store(_asked(method, f"/v1/groups/g{number}{rest}", b""), cluster)
        assert (meant.store_id, meant.is_home) == ("a", False)
    assert not groups


def test_only_homes_of_groups_and_a_queriers_topics_are_waited_for() -> None:
    node, querier = FixedCluster("a", _PLACES, {}), FixedCluster(None, _PLACES, {})
    group, pull = (_asked("GET", f"/v1/{path}", b"") for path in ("groups/g", "topics/t/queues/0/messages"))
    assert [needs_remote_lookup(group, node), needs_remote_lookup(pull, node)] == [True, False]
    assert [
        needs_remote_lookup(pull, querier),
        needs_remote_lookup(_asked("POST", "/v1/admin/flush", b""), querier),
    ] == [
        True,
        False,
    ]


def test_headers_of_a_connection_and_what_was_judged_here_stay_behind() -> None:
    given = [
        (b"Host", b"a:1"), (b"Connection", b"keep-alive, X-Own"), (b"X-Own", b"1"), (b"TE", b"x"),
        (b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"5"), (b"Upgrade", b"h2c"), (b"Origin", b"http://a"),
        (b"Expect", b"100-continue"), (b"Tierlog-Store", b"a lie"), (b"Accept", b"a"), (b"Accept", b"b"),
        (b"Authorization", b"Bearer t"),
    ]  # fmt: skip
    assert request_headers(given, {"Tierlog-Store": "b"}) == [
        (b"accept", b"a"), (b"accept", b"b"), (b"authorization", b"Bearer t"), (b"tierlog-store", b"b")
    ]  # fmt: skip
    answered = [(b"Date", b"now"), (b"Content-Encoding", b"gzip"), (b"Content-Length", b"7"), (b"Connection", b"close")]
    assert answer_headers(answered, {}) == [(b"content-encoding", b"gzip"), (b"content-length", b"7")]
    with pytest.raises(InvalidRequestError, match="idempotency-key"):
        request_headers([(b"Idempotency-Key", b"\xff")], {})


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_querier_leaves_changes_of_the_table_to_a_node_which_has_them_on_record(method: str) -> None:
    paths = [f"/v1/cluster/{rest}" for rest in ("topics/orders", "closed/b", "closed/a", "stores/a")]
    assert [_meant(None, method, path) for path in paths] == ["a", "a", "b", "b"], "not to the one that may be down"
    assert [_meant("c", method, path) for path in paths] == [None] * 4, "a node does it itself"
    assert _meant(None, method, paths[0], b"store_id=c") == "c"
    assert [_meant(None, "GET", path) for path in ("/v1/cluster", paths[0])] == [None, None]


def test_whom_no_home_is_told_learns_of_no_group() -> None:
    cluster = FixedCluster("a", _PLACES, {}, dict(_GROUPS))
    look = _asked("GET", "/v1/groups/billing", b"store_id=b")
    with pytest.raises(NotFoundError, match="no such group 'billing'"):
        target_store(look, cluster, shows_homes=False)
    with pytest.raises(InvalidRequestError, match="kept by another store, not by 'b'"):
        target_store(_asked("POST", "/v1/groups/billing/members", b"store_id=b"), cluster, shows_homes=False)
    with pytest.raises(InvalidRequestError, match="kept by store 'c', not by 'b'"):
        target_store(look, cluster)
