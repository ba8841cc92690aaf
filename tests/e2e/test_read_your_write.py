"""A message whose append was answered is found at once, by its producer: by key, by time and by pull.

Many producers at the same time over HTTP, each asking for its own key right after its own answer, while segments roll,
index files fill up and the background goes on. ``async`` is not promised that: readers see what is flushed.
"""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest

from tests.support.service.served import served
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store

PRODUCERS = 8
ROUNDS = 3


def produce_and_read(http: httpx.Client, producer: int, durability: str) -> None:
    """Append and ask for it, again and again."""
    for number in range(ROUNDS):
        key, body = f"key-{producer}-{number}", f"{producer} {number} " + "x" * 200
        sent = http.post(
            f"/v1/topics/t/messages?durability={durability}", json={"messages": [{"body": body, "keys": [key]}]}
        )
        assert sent.status_code == 200, sent.text
        (at,) = sent.json()["results"]
        by_key = http.get("/v1/topics/t/messages", params={"key": key}).json()
        assert [each["body"] for each in by_key["messages"]] == [body]
        assert by_key["coverage"]["complete"]
        at_ms = at["store_ms"]
        by_time = http.get("/v1/topics/t/messages", params={"from": at_ms, "to": at_ms + 1, "limit": 1000}).json()
        assert body in [each["body"] for each in by_time["messages"]]
        assert by_time["coverage"]["complete"]
        pull = f"/v1/topics/t/queues/{at['queue_id']}/messages"
        pulled = http.get(pull, params={"offset": at["queue_offset"], "limit": 1}).json()
        assert [each["body"] for each in pulled["messages"]] == [body]
        assert http.get(f"/v1/messages/{at['message_id']}").json()["body"] == body


@pytest.mark.parametrize("durability", ["flushed", pytest.param("archived", marks=pytest.mark.slow)])
def test_what_was_acknowledged_is_read_at_once_by_its_producer(tmp_path: Path, durability: str) -> None:
    settings = Settings.load(
        None,
        {
            "hot": {"segment_bytes": 4096, "queue_file_units": 60},
            "index": {"slots": 50, "items": 20},
            "cold": {"tail_interval_ms": 1},
        },
    )
    engine = Store.open(tmp_path / "s", settings=settings, cold_url=f"file://{tmp_path / 'cold'}")
    failed: list[BaseException] = []
    try:
        engine.start()
        with served(engine, settings) as url:

            def run(producer: int) -> None:
                try:
                    with httpx.Client(base_url=url, timeout=60) as http:
                        produce_and_read(http, producer, durability)
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=run, args=(number,)) for number in range(PRODUCERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failed == []
        assert len(engine.files()) > 1  # segments rolled meanwhile
    finally:
        engine.close()
