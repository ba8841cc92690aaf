"""Generations of a topic over HTTP and at the command line: ``orders@1`` is asked for as any topic is."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.service.served import served
from tests.support.stores.engines import small_settings
from tests.support.stores.irregular import followed_archive, irregular_log, sent
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.querier import ArchivedReader, Querier
from tierlog.service.main import main
from tierlog.tiering.base.errors import TopicNotFoundError

#: The first generation of ``orders`` has numbers 0 to 39, the second 40 to 49, the third 50 to 69.
_LOG = irregular_log(
    [
        *sent("orders", 0, range(40)),
        *sent("orders", 0, range(10), 40),
        *sent("orders", 0, range(20), 50),
        *sent("pays", 0, range(3), 70),
    ]
)
_NUMBERS = {"orders@1": range(40), "orders@2": range(40, 50), "orders@3": range(50, 70), "orders": range(70)}


@pytest.fixture(params=["hot", "archived"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    settings = small_settings()
    with followed_archive(tmp_path, _LOG) as store:
        store._hot.dispatch()
        if request.param == "archived":
            store.archive_all()
            store.store.archive(drop_hot=True)
        with served(store.store, settings) as url:
            yield url


def asked(url: str, path: str, document: dict[str, Any] | None = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"{url}{path}", body, {"Content-Type": "application/json"} if body else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def refused(url: str, path: str, document: dict[str, Any] | None = None) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        asked(url, path, document)
    caught.value.close()
    return caught.value.code


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return sorted(int(one["body"].split(".")[0].removeprefix("message ")) for one in messages)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main([*words, "--format", "ndjson"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("quoted", [True, False])
def test_a_generation_is_asked_for_by_its_number(url: str, quoted: bool) -> None:
    for name, wanted in _NUMBERS.items():
        topic = f"/v1/topics/{quote(name, safe='') if quoted else name}"
        assert numbers(asked(url, f"{topic}/messages?limit=100")["messages"]) == list(wanted)
        for number in (5, 44, 66):
            found = asked(url, f"{topic}/messages?key=key-{number}")
            assert numbers(found["messages"]) == ([number] if number in wanted else [])
        counts = asked(url, f"{topic}/counts?buckets=4")
        assert sum(one["messages"] for one in counts["counts"]) == len(wanted)
        own = _NUMBERS["orders@3"] if name == "orders" else wanted
        pulled = asked(url, f"{topic}/queues/0/messages?offset=0&limit=100")
        assert (pulled["max_offset"], numbers(pulled["messages"])) == (len(own), list(own))
        assert asked(url, f"{topic}/queues/0/offset?time_ms=0")["offset"] == 0
        told = asked(url, topic)
        assert told["topic"] == ("orders" if name == "orders@3" else name)
        assert told["offsets"][0]["generation"] == {"orders@1": 1, "orders@2": 2}.get(name, 3)
    for name in ("orders@4", "orders@0", "pays@2", "none@1"):
        assert refused(url, f"/v1/topics/{quote(name)}") == 404
        assert refused(url, f"/v1/topics/{quote(name)}/queues/0/messages?offset=0") == 404
    listed = {one["topic"]: one for one in asked(url, "/v1/topics")["topics"]}
    counts = {name: one["messages"] for name, one in listed.items()}
    assert counts == {"orders@1": 40, "orders@2": 10, "orders": 20, "pays": 3}
    assert "generation" not in listed["pays"]["offsets"][0]


def test_the_command_line_takes_a_generation(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, wanted in _NUMBERS.items():
        assert numbers(said(capsys, "query", name, "--all", "--url", url)) == list(wanted)
        if 44 in wanted:
            assert numbers(said(capsys, "query", name, "--key", "key-44", "--url", url)) == [44]
        counts = said(capsys, "query", name, "--counts", "--buckets", "4", "--url", url)
        assert sum(one["messages"] for one in counts) == len(wanted)
        own = _NUMBERS["orders@3"] if name == "orders" else wanted
        assert numbers(said(capsys, "tail", name, "--limit", "100", "--url", url)) == list(own)
    names = [one["topic"] for one in said(capsys, "topics", "--url", url)]
    assert sorted(names) == ["orders", "orders@1", "orders@2", "pays"]
    assert main(["tail", "orders@9", "--url", url]) != 0


def test_what_is_about_all_generations_refuses_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(url, "/v1/admin/erase", {"topic": "orders@1", "key": "key-5"}) == 400
    assert main(["erase", "orders@1", "--key", "key-5", "--yes", "--url", url]) != 0
    assert "orders" in capsys.readouterr().err
    asked(url, "/v1/admin/erase", {"topic": "orders", "key": "key-5"})
    assert numbers(asked(url, "/v1/topics/orders%401/messages?limit=100")["messages"]) == [*range(5), *range(6, 40)]
    assert numbers(asked(url, "/v1/topics/orders@1/queues/0/messages?offset=0&limit=100")["messages"]) == [
        *range(5), *range(6, 40)
    ]  # fmt: skip


def test_an_archive_of_several_stores_tells_one_generation_from_another(tmp_path: Path) -> None:
    with followed_archive(tmp_path, _LOG) as store:
        store.archive_all()
    cold = f"file://{tmp_path}/cold"
    with closing(Archive.open(cold, settings=small_settings())) as archive:
        for name, end in (("orders@1", 40), ("orders@2", 10)):
            assert [queue.max_offset for queue in archive.topic(name).queues] == [end], name
        assert archive.topic("orders").name == "orders"
        with pytest.raises(TopicNotFoundError):
            archive.topic("orders@9")
    with Querier.open(None, [cold], settings=small_settings()) as querier:
        for reader in (querier, ArchivedReader(querier, "s")):
            assert [reader.topic(name).queues[0].max_offset for name in ("orders@1", "orders@2")] == [40, 10]
            assert reader.topic("orders").name == "orders"
