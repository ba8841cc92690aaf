"""Whatever is pushed, in whatever archive: the rows that fit are those of a read of everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from index.query import Query
from tests.support.archive_copies import put_on_disk
from tests.support.batch_reads import Row, at_ms, place, rows_of
from tests.support.look_up_world import ABSENT, DAY_MS, KEYS, TOPICS, LookUpWorld, Sending
from tests.support.plain_search import Held

SEEDS = range(3)


def made(seed: int) -> LookUpWorld:
    """Two stores that have seen erasure, expiry, merges and restarts; some of each is not indexed yet."""
    chance = random.Random(seed)
    world = LookUpWorld(store_ids=("one", "two"))
    for turn in range(8):
        for store in world.stores:
            for _ in range(12):
                world.clock.advance(chance.choice((0, 1, 300, 700, 4000)))
                keys = tuple(chance.sample(KEYS, chance.choice((0, 1, 1, 2, 3))))
                skew_ms = chance.choice((0, 0, -DAY_MS, 999, 1))
                store.append([Sending(chance.choice(TOPICS), keys, skew_ms, chance.choice((20, 200, 900)))])
            chance.choice((store.archive_everything, store.roll, store.archive_rolled, store.drop_hot))()
            if turn == 3:
                store.erase(Query(TOPICS[0], KEYS[turn % 5]))
            if turn == 4:
                store.erase(Query(TOPICS[1], None, 0, store.sent[20].store_ms))
                store.merge(0, 0, 5)
        if turn == 5:
            world.stores[0].rewrite()
            world.stores[0].retain(TOPICS[2], 3 * DAY_MS)
            world.clock.advance(3 * DAY_MS)
            world.stores[0].round()
    for store in world.stores:
        store.archive_everything()
        head = store.manifest().refresh()
        assert head.tombstones or store is world.stores[0]
    return world


@pytest.fixture(scope="module", params=SEEDS)
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LookUpWorld, str]:
    world = made(request.param)
    return world, put_on_disk(world.objects, tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def everything(archive: tuple[LookUpWorld, str]) -> dict[str, list[Row]]:
    return {view: rows_of({"cold": archive[1], "view": view}) for view in ("messages", "keys")}


def seen(row: Row) -> tuple[object, ...]:
    return row["store_id"], row["physical_offset"], row["topic"], tuple(row["keys"]), row["body"]


def sent(held: Held) -> tuple[object, ...]:
    kept = held.kept
    return kept.store_id, kept.offset, kept.topic, kept.keys, kept.body


def test_a_read_of_everything_is_what_the_stores_hold(
    archive: tuple[LookUpWorld, str], everything: dict[str, list[Row]]
) -> None:
    held = [each for store in archive[0].stores for each in store.archived()]
    assert sorted(map(seen, everything["messages"])) == sorted(map(sent, held))
    pairs = [(*seen(row), row["key"]) for row in everything["keys"]]
    assert sorted(pairs) == sorted((*sent(each), key) for each in held for key in each.kept.keys)


COMPARED: dict[type[Filter], Callable[[object, object], bool]] = {
    EqualTo: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,  # type: ignore[operator]
    GreaterThanOrEqual: lambda value, other: value >= other,  # type: ignore[operator]
    LessThan: lambda value, other: value < other,  # type: ignore[operator]
    LessThanOrEqual: lambda value, other: value <= other,  # type: ignore[operator]
    In: lambda value, other: value in other,  # type: ignore[operator]
}


def fits(row: Row, filters: list[Any]) -> bool:
    return all(COMPARED[type(each)](row[each.attribute[0]], each.value) for each in filters)


@st.composite
def drawn_filters(draw: st.DrawFn, rows: list[Row], view: str) -> list[Filter]:
    """Comparisons with values of rows, or with some that lie beside them."""
    found: list[Filter] = []
    columns = ["topic", "queue_id", "queue_offset", "physical_offset", "store_id", "store_time", "born_time"]
    for column in draw(st.lists(st.sampled_from(columns + ["key"] * 4 * (view == "keys")), min_size=1, max_size=4)):
        values = [row[column] for row in draw(st.lists(st.sampled_from(rows), min_size=1, max_size=3))]
        if column.endswith("_time"):
            beside = draw(st.sampled_from((0, 0, 1, -1, 1000, -1000)))
            values = [value + (at_ms(0).resolution * beside) for value in values]
        if column in ("key", "topic", "store_id"):
            values += draw(st.lists(st.sampled_from((ABSENT, *KEYS, None)), max_size=2))
            kinds = [EqualTo, In, In]
        else:
            kinds = [*COMPARED]
        kind = draw(st.sampled_from(kinds))
        found.append(In((column,), tuple(values)) if kind is In else kind((column,), values[0]))
    return found


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    view=st.sampled_from(("messages", "keys", "keys")),
    size=st.sampled_from(("2000", "9000", "1000000")),
)
def test_filters_keep_every_row_that_fits(
    archive: tuple[LookUpWorld, str], everything: dict[str, list[Row]], data: st.DataObject, view: str, size: str
) -> None:
    filters = data.draw(drawn_filters(everything[view], view))
    rows = rows_of({"cold": archive[1], "view": view, "partition_bytes": size}, filters)
    found = [row for row in rows if fits(row, filters)]
    wanted = [row for row in everything[view] if fits(row, filters)]
    assert sorted(found, key=place) == sorted(wanted, key=place)
    assert len({place(row) for row in rows}) == len(rows)


def test_expired_messages_and_erased_ones_were_among_them(tmp_path: Path) -> None:
    """The archives above do hold what has to be hidden."""
    world = made(0)
    gone = [len(store.sent) - len(store.archived()) for store in world.stores]
    assert min(gone) > 5
    assert world.stores[0].manifest().refresh().expired
