"""What a query pays: true under threads, and as deep as its requests needed each other."""

from __future__ import annotations

import threading

import pytest

from tierlog.tiering.cold.reading.bill import AbandonedError, BudgetSpentError, ReadBill, RequestChain
from tierlog.tiering.objects.object_store import USD_PER_READ


def test_threads_that_race_for_the_last_requests_get_no_more_than_there_are() -> None:
    bill = ReadBill(max_requests=100)
    barrier = threading.Barrier(8)
    refused: list[int] = []

    def ask(number: int) -> None:
        chain = RequestChain(bill)
        barrier.wait()
        for each in range(50):
            try:
                chain.charge((f"object-{number}", each, each + 1), "page")
            except BudgetSpentError:
                refused.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (bill.requests, bill.left, len(refused)) == (100, 0, 300)
    assert bill.cost_usd == pytest.approx(100 * USD_PER_READ)


def test_depth_is_the_longest_chain_and_rounds_fill_up_depth_by_depth() -> None:
    bill = ReadBill()
    for number in range(5):  # five pages, each of which leads to two frames
        page = RequestChain(bill)
        page.charge(("index", number, number + 1), "page")
        for frame in range(2):
            RequestChain(bill, page.depth).charge(("log", 10 * number + frame, 99), "frame")
    assert (bill.requests, bill.round_trips) == (15, 2)
    assert [bill.waves(concurrency) for concurrency in (1, 2, 4, 5, 10, 32)] == [15, 3 + 5, 2 + 3, 1 + 2, 2, 2]
    assert bill.stages == {"page": 5, "frame": 10}


def test_a_range_that_an_earlier_request_brings_is_as_deep_as_that_one() -> None:
    bill = ReadBill()
    first, second, other = RequestChain(bill), RequestChain(bill), RequestChain(bill)
    first.charge(("log", 0, 9), "seek table")
    first.charge(("log", 20, 30), "frame")
    second.hit(("log", 0, 9))
    second.charge(("log", 40, 50), "frame")
    other.hit(("log", 60, 70))  # from a cache that was warm before
    other.charge(("log", 80, 90), "frame")
    assert (second.depth, other.depth, bill.round_trips) == (2, 1, 2)
    assert (bill.requests, bill.hits, bill.hit_bytes) == (4, 2, 19)


def test_the_manifest_is_paid_and_stands_outside_the_chains() -> None:
    bill = ReadBill()
    chain = RequestChain(bill)
    for page in range(3):
        chain.for_manifest().charge(("manifest", page, page + 1), "manifest level 0")
    chain.charge(("index", 0, 9), "page")
    assert (bill.requests, bill.manifest_requests, bill.round_trips, bill.waves(1)) == (4, 3, 1, 1)


def test_nothing_is_asked_for_on_a_bill_that_is_closed() -> None:
    bill = ReadBill()
    chain = RequestChain(bill)
    chain.charge(("index", 0, 9), "page")
    bill.close()
    with pytest.raises(AbandonedError):
        chain.charge(("log", 0, 9), "frame")
    assert bill.requests == 1
