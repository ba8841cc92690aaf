"""Any node of a cluster takes any request: what is another store's is answered there, as if asked itself."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.support.service.access import line, token
from tests.support.service.fixed_cluster import Node, Nodes, nodes
from tierlog.service.cli.remote import RemoteTarget
from tierlog.service.config.serve import AccessSettings
from tierlog.service.wire.documents import ARROW_STREAM, NDJSON
from tierlog.tiering.message.batch import Message

_BATCH = 10_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, Node, Node]]:
    with nodes(tmp_path_factory.mktemp("cluster")) as made:
        yield made, made.add("store-a"), made.add("store-b")


@pytest.fixture
def a(cluster: tuple[Nodes, Node, Node]) -> Node:
    return cluster[1]


@pytest.fixture
def b(cluster: tuple[Nodes, Node, Node]) -> Node:
    return cluster[2]


@pytest.fixture
def topic(cluster: tuple[Nodes, Node, Node], request: pytest.FixtureRequest) -> str:
    """A topic of the test alone, at home in store-b."""
    name = f"t-{request.node.nodeid.rpartition('::')[2][:100]}".replace("[", "-").replace("]", "")
    cluster[0].homes[name] = "store-b"
    return name


def _where(answer: object) -> tuple[object, object]:
    headers = answer.headers  # type: ignore[attr-defined]  # of any client
    return headers.get("tierlog-store"), headers.get("tierlog-address")


def test_new_messages_go_to_the_home_of_their_topic_whichever_node_is_asked(a: Node, b: Node, topic: str) -> None:
    made = a.ask("PUT", f"/v1/topics/{topic}", {"queues": 2})
    assert (made.status_code, *_where(made)) == (201, "store-b", b.url)
    path = f"/v1/topics/{topic}/messages"
    through = a.ask("POST", path, {"messages": [{"body": "1"}]}, headers={"X-Request-Id": "r-1"})
    assert (through.status_code, *_where(through)) == (200, "store-b", b.url)
    assert through.headers.get_list("x-request-id") == ["r-1"]
    assert len(through.headers.get_list("date")) == 1
    direct = b.ask("POST", path, {"messages": [{"body": "2"}]})
    assert (direct.status_code, *_where(direct)) == (200, "store-b", None)
    assert b.bodies(topic) == {"1", "2"}
    assert a.ask("GET", f"/v1/topics/{topic}").status_code == 404, "the other store knows nothing of it"


def test_store_id_names_the_store_of_any_call(a: Node, b: Node, topic: str) -> None:
    for store in (a, b):
        path = f"/v1/topics/{topic}/messages?store_id={store.store_id}"
        assert a.ask("POST", path, {"messages": [{"body": store.store_id}]}).status_code == 200
    for asked in (a, b):
        for store in (a, b):
            stats = asked.ask("GET", f"/v1/stats?store_id={store.store_id}")
            assert (stats.json()["store_id"], stats.headers["tierlog-store"]) == (store.store_id, store.store_id)
            found = asked.ask("GET", f"/v1/topics/{topic}/messages?store_id={store.store_id}").json()["messages"]
            assert [message["body"] for message in found] == [store.store_id]
            same_id = asked.ask("GET", f"/v1/messages/{found[0]['message_id']}?store_id={store.store_id}")
            assert same_id.json()["store_id"] == store.store_id
    assert a.ask("POST", "/v1/admin/flush?store_id=store-b").headers["tierlog-store"] == "store-b"


@pytest.mark.parametrize("path", ["/v1/topics", "/v1/stats", "/v1/admin/receipts", "/v1/topics/t/messages"])
def test_a_store_that_is_not_known_is_no_store(a: Node, path: str) -> None:
    answer = a.ask("GET", f"{path}?store_id=store-x")
    assert (answer.status_code, answer.json()["detail"]) == (404, "store 'store-x' is not in the cluster")
    assert a.ask("GET", f"{path}?store_id=BAD").status_code in (400, 404)
    assert a.ask("GET", f"{path}?store_id=store-a&store_id=store-b").status_code == 400


def test_a_lone_store_answers_to_its_own_name_only(tmp_path: Path) -> None:
    with nodes(tmp_path) as made:
        alone = made.add("alone", is_alone=True)
        assert alone.ask("GET", "/v1/topics?store_id=alone").status_code == 200
        answer = alone.ask("GET", "/v1/topics?store_id=other")
        assert (answer.status_code, answer.json()["title"]) == (404, "not found")
        assert "knows no store 'other'" in answer.json()["detail"]
        assert _where(answer) == (None, None)
        sent_on = {"Tierlog-Forwarded": "store-a", "Tierlog-Store": "store-b"}
        refused = alone.ask("POST", "/v1/topics/t/messages", {"messages": [{"body": "x"}]}, headers=sent_on)
        assert (refused.status_code, alone.bodies("t")) == (421, set())


def test_a_groups_calls_go_to_its_home(cluster: tuple[Nodes, Node, Node], a: Node, b: Node, topic: str) -> None:
    cluster[0].groups["billing"] = "store-b"
    b.engine.append([Message(topic, b"x", [])])
    offsets = {"offsets": [{"topic": topic, "queue_id": 0, "offset": 1}]}
    committed = a.ask("PUT", "/v1/groups/billing/offsets", offsets)
    assert (committed.status_code, *_where(committed)) == (200, "store-b", b.url)
    assert a.ask("GET", "/v1/groups/billing/offsets").json() == b.ask("GET", "/v1/groups/billing/offsets").json()
    assert a.ask("GET", "/v1/groups/billing?store_id=store-a").status_code == 400


def test_a_group_that_is_nowhere_is_not_made_by_looking(
    cluster: tuple[Nodes, Node, Node], a: Node, b: Node, topic: str
) -> None:
    path = "/v1/groups/misspelt"
    for node in (a, b):
        for method, rest in (("GET", ""), ("GET", "/offsets"), ("DELETE", ""), ("PUT", "/members/0123456789abcdef")):
            answer = node.ask(method, path + rest)
            assert (answer.status_code, *_where(answer)) == (404, node.store_id, None), answer.text
    assert a.ask("GET", f"{path}?store_id=store-b").headers["tierlog-store"] == "store-b"
    assert "misspelt" not in cluster[0].groups
    b.engine.append([Message(topic, b"x", [])])
    offsets = {"offsets": [{"topic": topic, "store_id": "store-b", "queue_id": 0, "offset": 1}]}
    made = b.ask("PUT", f"{path}/offsets", offsets)
    assert (made.status_code, *_where(made)) == (200, "store-a", a.url), made.text
    assert b.ask("GET", path).json()["group"] == "misspelt", "found, though it was not there a moment ago"


def test_a_key_makes_an_append_through_any_node_happen_once(a: Node, b: Node, topic: str) -> None:
    body, key = {"messages": [{"body": "once"}, {"body": "more"}]}, {"Idempotency-Key": "p:0"}
    answers = [node.ask("POST", f"/v1/topics/{topic}/messages", body, headers=key).json() for node in (a, b, a)]
    assert answers[0] == answers[1] == answers[2]
    assert len(b.ask("GET", f"/v1/topics/{topic}/messages").json()["messages"]) == 2


@pytest.mark.slow
def test_an_arrow_batch_arrives_byte_by_byte(a: Node, b: Node, topic: str) -> None:
    bodies = [b"%d" % number * 20 for number in range(_BATCH)]
    sink = pa.BufferOutputStream()
    table = pa.table({"body": pa.array(bodies, pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = {"Content-Type": ARROW_STREAM, "Accept": ARROW_STREAM}
    sent = a.http.post(f"/v1/topics/{topic}/messages", content=sink.getvalue().to_pybytes(), headers=headers)
    assert (sent.status_code, sent.headers["content-type"]) == (200, ARROW_STREAM)
    path = f"/v1/topics/{topic}/messages?all=true&order=oldest&store_id=store-b"
    through, direct = (node.http.get(path, headers={"Accept": ARROW_STREAM}).content for node in (a, b))
    assert through == direct
    found = pa.ipc.open_stream(through).read_all().column("body").to_pylist()
    assert sorted(found) == sorted(bodies)


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_a_download_through_another_node_is_the_same_compressed_or_not(
    a: Node, b: Node, topic: str, encoding: str
) -> None:
    b.engine.append([Message(topic, b"%d" % number * 50, []) for number in range(2_000)])
    path = f"/v1/topics/{topic}/messages?all=true&store_id=store-b"
    headers = {"Accept": NDJSON, "Accept-Encoding": encoding}
    answers = [node.ask("GET", path, headers=headers) for node in (a, b)]
    assert [answer.headers.get("content-encoding", "identity") for answer in answers] == [encoding, encoding]
    lines = [answer.text.splitlines() for answer in answers]
    assert lines[0][:-1] == lines[1][:-1]
    assert len(lines[0]) == 2_001


def test_head_and_options_are_answered_for_another_store_too(a: Node, b: Node, topic: str) -> None:
    b.engine.append([Message(topic, b"x", [])])
    path = f"/v1/topics/{topic}?store_id=store-b"
    head, got = a.ask("HEAD", path), a.ask("GET", path)
    assert (head.status_code, head.content, head.headers["tierlog-store"]) == (200, b"", "store-b")
    assert got.json()["topic"] == topic
    assert a.ask("OPTIONS", path).headers["allow"] == b.ask("OPTIONS", path).headers["allow"]


def test_a_long_poll_through_another_node_ends_with_the_message(a: Node, b: Node, topic: str) -> None:
    b.engine.create_topic(topic, 1)
    polling = threading.Event()
    answers = []

    def poll() -> None:
        polling.set()
        path = f"/v1/topics/{topic}/queues/0/messages?offset=0&wait_ms=30000&store_id=store-b"
        answers.append(a.ask("GET", path).json())

    thread = threading.Thread(target=poll)
    thread.start()
    polling.wait(10)
    b.engine.append([Message(topic, b"at last", [])])
    thread.join(40)
    assert [message["body"] for message in answers[0]["messages"]] == ["at last"]


def test_a_slow_sender_with_a_chunked_body_is_waited_for(a: Node, b: Node, topic: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(a.url).netloc, timeout=30)
    lines = [json.dumps({"body": f"{number}"}).encode() + b"\n" for number in range(5)]
    connection.request(
        "POST", f"/v1/topics/{topic}/messages", iter(lines), {"Content-Type": NDJSON}, encode_chunked=True
    )
    answer = connection.getresponse()
    assert (answer.status, len(json.loads(answer.read())["results"])) == (200, 5)
    connection.close()
    assert b.bodies(topic) == {"0", "1", "2", "3", "4"}


def test_the_stores_own_refusals_come_back_as_they_are(a: Node, b: Node, topic: str) -> None:
    path = f"/v1/topics/{topic}/messages"
    for body, more, status in (
        ({"messages": []}, "", 422), ({"messages": [{"body": "x"}]}, "?form=1", 400), ({"no": 1}, "", 422),
    ):  # fmt: skip
        through, direct = (node.ask("POST", path + more, body, headers={"X-Request-Id": "r"}) for node in (a, b))
        assert (through.status_code, through.json()) == (status, direct.json())
        assert through.headers["content-type"] == "application/problem+json"


def test_a_command_names_the_store_of_a_cluster(a: Node, b: Node, topic: str) -> None:
    b.engine.append([Message(topic, b"x", [])])
    assert RemoteTarget(a.url, store_id="store-b").queues_of(topic) == 4
    assert RemoteTarget(a.url, store_id="store-b").pull(topic, 0, 0, 1)["max_offset"] <= 1
    assert RemoteTarget(a.url, store_id="store-b").stats()["store_id"] == "store-b"
    assert RemoteTarget(a.url).stats()["store_id"] == "store-a"


def test_the_callers_token_decides_at_the_store_that_answers(tmp_path: Path) -> None:
    with nodes(tmp_path) as made:
        made.homes["orders"] = "store-b"
        everybody = [line("root", "produce,read,admin", "*"), line("reader", "read", "*")]
        a = made.add("store-a", access=AccessSettings(tokens="\n".join([*everybody, line("new", "produce", "*")])))
        b = made.add("store-b", access=AccessSettings(tokens="\n".join(everybody)))
        path, body = "/v1/topics/orders/messages", {"messages": [{"body": "x"}]}

        def post(node: Node, by: str | None) -> int:
            headers = {} if by is None else {"Authorization": f"Bearer {token(by)}"}
            return node.ask("POST", path, body, headers=headers).status_code

        assert [post(a, by) for by in (None, "stranger", "reader", "new", "root")] == [401, 401, 403, 401, 200]
        root = {"Authorization": f"Bearer {token('root')}"}
        assert len(b.ask("GET", path, headers=root).json()["messages"]) == 1


def test_a_token_does_not_go_on_readable_whichever_way_it_came(tmp_path: Path) -> None:
    """The other node is on another machine and without TLS. Nothing is asked there: the address is nobody's."""
    with nodes(tmp_path) as made:
        made.homes["orders"], made.places["store-b"] = "store-b", "http://192.0.2.1:8080"
        a = made.add("store-a", access=AccessSettings(tokens=line("root", "produce,read,admin", "*")))
        headers = {"Authorization": f"Bearer {token('root')}"}
        body = {"messages": [{"body": "x"}]}
        answer = a.ask("POST", "/v1/topics/orders/messages", body, headers=headers)
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("a token is not sent on over plain HTTP to http://192.0.2.1:8080")
    assert "TIERLOG_TOKEN_OVER_HTTP=1" in answer.json()["hint"]


def test_a_page_of_this_nodes_own_origin_may_change_what_another_has(a: Node, topic: str) -> None:
    path, body = f"/v1/topics/{topic}/messages", {"messages": [{"body": "x"}]}
    assert a.ask("POST", path, body, headers={"Origin": a.url}).status_code == 200
    assert a.ask("POST", path, body, headers={"Origin": "http://evil.example"}).status_code == 403
