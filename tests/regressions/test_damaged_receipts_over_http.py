"""Symptom: one damaged receipt made `GET /v1/admin/receipts` answer 500 with a `KeyError`, and hid all the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service.access import GuardedService, line
from tierlog.tiering.message.batch import Message


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GuardedService]:
    found = GuardedService(tmp_path, [line("root", "produce,read,admin", "*"), line("orders", "admin", "orders")])
    found.engine.append([Message(topic, b"body", ["k"]) for topic in ("orders", "billing")])
    yield found
    found.close()


def test_a_damaged_receipt_is_listed_with_what_is_wrong_to_those_who_may_see_every_topic(
    service: GuardedService, tmp_path: Path
) -> None:
    bad, sound = (
        service.ask("POST", "/v1/admin/erase", {"topic": topic, "key": "k"}, by="root").json()["tombstone_id"]
        for topic in ("billing", "orders")
    )
    (path,) = (tmp_path / "cold").rglob(f"{bad}.json")
    path.write_bytes(path.read_bytes()[:-9])

    answer = service.ask("GET", "/v1/admin/receipts", by="root")
    assert answer.status_code == 200, answer.text
    first, damaged = answer.json()["receipts"]
    assert first["tombstone_id"] == sound
    assert (damaged["tombstone_id"], damaged["state"]) == (bad, "damaged")
    assert "the receipt is damaged" in damaged["error"]
    assert path.name in damaged["error"]

    answer = service.ask("GET", "/v1/admin/receipts", by="orders")
    assert [row["tombstone_id"] for row in answer.json()["receipts"]] == [sound], "nobody knows the topic of the other"


def test_asked_by_its_id_a_damaged_receipt_is_a_problem_that_names_its_object(
    service: GuardedService, tmp_path: Path
) -> None:
    receipt = service.ask("POST", "/v1/admin/erase", {"topic": "orders", "key": "k"}, by="root").json()
    (path,) = (tmp_path / "cold").rglob(f"{receipt['tombstone_id']}.json")
    path.write_bytes(b"{}")
    answer = service.ask("GET", f"/v1/admin/receipts/{receipt['tombstone_id']}", by="root")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:tierlog:problem:corruption"), answer.text
    assert "the receipt is damaged" in answer.json()["detail"]
    assert answer.json()["path"].endswith(path.name)
