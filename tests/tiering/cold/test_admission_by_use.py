"""What is kept by use: never over the limit, what is used most a byte, and nothing turned over by a scan."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from tierlog.tiering.cold.reading.memory_cache import AdmissionByUse, uses_that_pay

SIZE = 1000


def bring(table: AdmissionByUse, name: str, size: int = SIZE) -> list[str] | None:
    """What an owner does with something used and not kept: what went for it, None if it was not brought."""
    going = table.to_go_for(name, size)
    if going is not None:
        for each in going:
            table.drop(each)
        assert table.reserve(name, size)
        assert table.keep(name)
    return going


def use(table: AdmissionByUse, name: str, times: int) -> None:
    for _ in range(times):
        table.use(name)


def used_and_brought(table: AdmissionByUse, name: str) -> bool:
    table.use(name)
    return bring(table, name) is not None


def test_something_is_brought_once_its_uses_have_cost_as_much() -> None:
    table = AdmissionByUse(100 << 20)
    for size in (1, 40 << 20):
        name = f"{size} bytes"
        use(table, name, uses_that_pay(size) - 1)
        assert bring(table, name, size) is None
        table.use(name)
        assert bring(table, name, size) == []


def test_larger_values_must_be_used_more_often() -> None:
    counts = [uses_that_pay(size) for size in (0, 4 << 20, 40 << 20, 4 << 30)]
    assert counts == sorted(set(counts))


def test_a_newcomer_replaces_those_used_least() -> None:
    table = AdmissionByUse(3 * SIZE)
    for name, uses in (("rare", 3), ("often", 9), ("some", 6)):
        use(table, name, uses)
        assert bring(table, name) == []
    use(table, "new", 4)
    assert bring(table, "new") is None  # not so much more that fetching it pays
    use(table, "new", 1)
    assert bring(table, "new") == ["rare"]
    assert table.used_bytes == 3 * SIZE


def test_a_large_value_replaces_small_ones_only_if_it_is_used_more_than_all_of_them() -> None:
    table = AdmissionByUse(3 * SIZE)
    for name in ("a", "b", "c"):
        use(table, name, 4)
        bring(table, name)
    use(table, "large", 13)
    assert bring(table, "large", 3 * SIZE) is None
    use(table, "large", 1)
    assert bring(table, "large", 3 * SIZE) == ["a", "b", "c"]


def test_what_never_fits_is_never_brought() -> None:
    table = AdmissionByUse(SIZE)
    use(table, "huge", 1000)
    assert bring(table, "huge", SIZE + 1) is None


def test_what_is_being_brought_is_not_replaced() -> None:
    table = AdmissionByUse(SIZE)
    use(table, "on its way", 2)
    assert table.reserve("on its way", SIZE)
    use(table, "new", 100)
    assert table.to_go_for("new", SIZE) is None
    assert table.keep("on its way")
    assert table.to_go_for("new", SIZE) == ["on its way"]


def test_dropped_while_it_is_being_brought_is_not_kept() -> None:
    table = AdmissionByUse(SIZE)
    assert table.reserve("a", SIZE)
    table.drop("a")
    assert not table.keep("a")
    assert table.used_bytes == 0


def test_old_use_fades() -> None:
    table = AdmissionByUse(SIZE)
    use(table, "old", 1000)
    bring(table, "old")
    brought_after = next(count for count in range(1, 1000) if used_and_brought(table, "new"))
    assert brought_after < 200


def test_what_is_used_less_than_others_is_brought_too_where_there_is_room() -> None:
    table = AdmissionByUse(100 * SIZE)
    for _ in range(uses_that_pay(40 << 20)):
        use(table, "often", 100)
        table.use("rare")
    assert bring(table, "rare") == []


def test_a_scan_over_more_than_fits_keeps_its_share_where_least_recently_used_keeps_nothing() -> None:
    """The reason for the rule: a look-up over a year asks all objects of the year in turn."""
    objects, room, passes = 200, 20, 40
    table = AdmissionByUse(room * SIZE)
    by_recency: OrderedDict[str, None] = OrderedDict()
    hits = {"use": 0, "recency": 0}
    brought = 0
    for _ in range(passes):
        for number in range(objects):
            name = f"{number:04}"
            table.use(name)
            if name in table:
                hits["use"] += 1
            else:
                brought += bring(table, name) is not None
            hits["recency"] += name in by_recency
            by_recency[name] = None
            by_recency.move_to_end(name)
            if len(by_recency) > room:
                by_recency.popitem(last=False)
    assert hits["recency"] == 0
    assert hits["use"] >= 0.9 * room * (passes - 2)
    assert brought <= 2 * room


@pytest.mark.parametrize("seed", range(3))
def test_the_limit_holds_to_the_byte_and_what_is_kept_adds_up(seed: int) -> None:
    rng = random.Random(seed)
    table = AdmissionByUse(10_000)
    sizes = {f"object {number}": rng.randrange(1, 4000) for number in range(40)}
    for _ in range(20_000):
        name = rng.choice(list(sizes))
        match rng.random():
            case x if x < 0.02:
                table.forget(name)
                assert name not in table
            case x if x < 0.04:
                table.drop(name)
            case _:
                table.use(name)
                bring(table, name, sizes[name])
        kept = sum(size for each, size in sizes.items() if each in table)
        assert table.used_bytes == kept <= 10_000
