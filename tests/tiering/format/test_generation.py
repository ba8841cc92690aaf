"""Names of generations: of their entries, and what people call them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tierlog.tiering.format.generation import (
    ByGeneration,
    begin_of,
    entry_name,
    generations_of,
    is_numbered,
    ranges_of,
    record_topic,
    shown_name,
)


@dataclass
class Entry:
    topic_id: int
    name: str


ENTRIES = [Entry(3, "orders@9000"), Entry(1, "orders"), Entry(2, "orders-2"), Entry(4, "orders@10000")]


@pytest.mark.parametrize("name", ["orders", "%RETRY%shop", "a@b", "@7", "orders@", "orders@-1", "orders@²"])
def test_a_name_without_a_number_is_a_topics(name: str) -> None:
    assert not is_numbered(name)
    assert (record_topic(name), begin_of(name)) == (name, 0)


def test_the_name_of_an_entry_says_topic_and_beginning() -> None:
    name = entry_name("orders", 9000)
    assert (record_topic(name), begin_of(name), is_numbered(name)) == ("orders", 9000, True)


def test_generations_follow_each_other_in_the_log() -> None:
    assert [each.topic_id for each in generations_of(ENTRIES, "orders")] == [1, 3, 4]
    assert [each[2:] for each in ranges_of(ENTRIES, "orders")] == [(0, 9000), (9000, 10000), (10000, (1 << 63) - 1)]


def test_numbers_count_from_the_oldest_and_the_name_alone_is_the_current_one() -> None:
    mine = generations_of(ENTRIES, "orders")
    assert [shown_name(mine, each.name) for each in mine] == ["orders@1", "orders@2", "orders"]
    assert [ranges_of(ENTRIES, f"orders@{number}")[0].topic_id for number in (1, 2, 3)] == [1, 3, 4]
    assert ranges_of(ENTRIES, "orders@0") == ranges_of(ENTRIES, "orders@4") == ranges_of(ENTRIES, "none") == ()


def test_a_record_has_the_number_of_its_generation() -> None:
    numbers = ByGeneration({"orders": 5, "orders@10000": 7})
    assert [numbers.of("orders", offset, -1) for offset in (0, 9999, 10000)] == [5, 5, 7]
    assert numbers.of("other", 0, -1) == -1
