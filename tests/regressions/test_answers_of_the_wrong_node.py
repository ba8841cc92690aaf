"""Who answered was not always who was asked: nodes were sent where a caller liked, and strangers were believed.

What another store does not have was taken for what the asked store does not have, and a volume that was fenced spoke
for its store: the answer lacked messages and was called complete.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.service.fixed_cluster import nodes
from tests.support.service.raw_server import raw_server
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.archive.archived_stores import ArchiveRoot
from tierlog.service.archive.querier import KnownArchives
from tierlog.service.cluster.fan_out import StoreFanOut, StoreService
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import FencedError, NotFoundError, StoreMismatchError, TopicNotFoundError
from tierlog.tiering.message.batch import Message

SETTINGS = tiny_settings(cluster__ask_timeout_ms=60_000, cluster__retry_ms=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    cold_url = (tmp_path / "cold").as_uri()
    with contextlib.closing(Store.open(tmp_path / "a", cold_url=cold_url, store_id="a", settings=SETTINGS)) as made:
        yield made


def test_a_callers_target_never_becomes_part_of_the_address(tmp_path: Path) -> None:
    heads: list[bytes] = []
    with nodes(tmp_path) as found, raw_server(lambda connection: heads.append(connection.head())) as elsewhere:
        a = found.add("store-a")
        found.places["store-b"] = "http://127.0.0.1:1"
        peer, stranger = urlsplit(a.url), urlsplit(elsewhere).netloc
        for target in (f"%2Fv1%2F@{stranger}/x?store_id=store-b", "/v1/topics/orders#x?store_id=store-b"):
            with socket.create_connection((peer.hostname, peer.port), 30) as client:
                line = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                client.sendall(line.encode())
                assert client.recv(100).startswith(b"HTTP/1.1 400")
    assert heads == []


def test_what_another_store_does_not_have_is_not_taken_for_what_the_store_lacks(store: Store) -> None:
    fan_out = StoreFanOut(SETTINGS.cluster, SystemClock())
    with served(store, SETTINGS) as url:
        for store_id, expected in (("b", StoreMismatchError), ("a", TopicNotFoundError)):
            service = StoreService(url, store_id)
            (page,) = fan_out.hot_pages([service], Query("orders"), 1 << 20)
            (topic,) = fan_out.topic([service], "orders")
            assert [type(page.error), type(topic.error)] == [expected, expected]
        (message,) = fan_out.messages([StoreService(url, "b")], "0" * 32, lambda found: {})
        assert not isinstance(message.error, NotFoundError)
    fan_out.client.close()


def test_a_volume_that_was_fenced_does_not_speak_for_its_store(store: Store, tmp_path: Path) -> None:
    store.append([Message("orders", b"1")])
    store.archive(everything=True)
    cold_url = (tmp_path / "cold").as_uri()
    with contextlib.closing(Store.open(tmp_path / "new", cold_url=cold_url, restore=True, settings=SETTINGS)) as new:
        new.append([Message("orders", b"2")])
        store.append([Message("orders", b"3")])
        with pytest.raises(FencedError):
            store.archive(everything=True)
        with served(store, SETTINGS) as url:
            answer = httpx.get(f"{url}/v1/topics/orders/hot", timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:tierlog:problem:fenced")


def test_of_two_archives_of_one_id_that_is_read_which_the_store_names(tmp_path: Path) -> None:
    urls = [(tmp_path / name).as_uri() for name in ("one", "two")]
    for name, url in zip(("one", "two"), urls, strict=True):
        volume = tmp_path / f"{name}-volume"
        with contextlib.closing(Store.open(volume, cold_url=url, store_id="a", settings=SETTINGS)) as made:
            made.append([Message("orders", name.encode())])
            made.archive(everything=True)
    archives = [ArchiveRoot(url, SETTINGS, SystemClock()) for url in urls]
    known = KnownArchives(archives, SETTINGS.cluster, SystemClock())
    with contextlib.closing(known):
        known.unserved(())
        found = known.find("a", urls[1])
        assert found is not None
        assert found.manifest.objects is archives[1].objects
