"""Whatever options ask for, in whatever archive: the rows are those of a read of everything that fit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from tests.support.oracles.plain_search import Held
from tests.support.pipeline.archive_copies import put_on_disk
from tests.support.pipeline.batch_reads import Row, place, rows_of
from tests.support.stores.look_up_stores import ABSENT, DAY_MS, KEYS, TOPICS, Sending, SharedBucket
from tierlog.index.search.query import Query

SEEDS = (0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow))


def made(seed: int) -> SharedBucket:
    """Two stores that have seen erasure, expiry, merges and restarts; some of each is not indexed yet."""
    chance = random.Random(seed)
    shared = SharedBucket(store_ids=("one", "two"))
    for turn in range(8):
        for store in shared.stores:
            for _ in range(12):
                shared.clock.advance(chance.choice((0, 1, 300, 700, 4000)))
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
            shared.stores[0].rewrite()
            shared.stores[0].retain(TOPICS[2], 3 * DAY_MS)
            shared.clock.advance(3 * DAY_MS)
            shared.stores[0].round()
    for store in shared.stores:
        store.archive_everything()
        head = store.manifest().refresh()
        assert head.tombstones or store is shared.stores[0]
    return shared


@pytest.fixture(scope="module", params=SEEDS)
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[SharedBucket, str]:
    shared = made(request.param)
    return shared, put_on_disk(shared.objects, tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def everything(archive: tuple[SharedBucket, str]) -> dict[str, list[Row]]:
    return {view: rows_of({"cold": archive[1], "view": view}) for view in ("messages", "keys")}


def seen(row: Row) -> tuple[object, ...]:
    return row["store_id"], row["physical_offset"], row["topic"], tuple(row["keys"]), row["body"]


def sent(held: Held) -> tuple[object, ...]:
    kept = held.kept
    return kept.store_id, kept.offset, kept.topic, kept.keys, kept.body


def test_a_read_of_everything_is_what_the_stores_hold(
    archive: tuple[SharedBucket, str], everything: dict[str, list[Row]]
) -> None:
    held = [each for store in archive[0].stores for each in store.archived()]
    assert sorted(map(seen, everything["messages"])) == sorted(map(sent, held))
    pairs = [(*seen(row), row["key"]) for row in everything["keys"]]
    assert sorted(pairs) == sorted((*sent(each), key) for each in held for key in each.kept.keys)


def ms_of(row: Row) -> int:
    return int(1000 * row["store_time"].timestamp() + 0.5)


def fits(row: Row, options: dict[str, str]) -> bool:
    keys = set(json.loads(options.get("key", "[]")))
    found_by = {row["key"]} if options["view"] == "keys" else set(row["keys"])
    return (
        ("topic" not in options or row["topic"] in options["topic"].split(","))
        and options.get("store") in (None, row["store_id"])
        and (not keys or bool(keys & found_by))
        and row["tag"] in json.loads(options.get("tag", json.dumps([row["tag"]])))
        and int(options.get("from", 0)) <= ms_of(row) < int(options.get("to", 1 << 62))
    )


@st.composite
def drawn_options(draw: st.DrawFn, rows: list[Row], view: str) -> dict[str, str]:
    """What rows have, or what lies beside it."""
    found = {"view": view}
    for name in draw(st.lists(st.sampled_from(("topic", "key", "key", "from", "to", "tag", "store")), max_size=4)):
        some = draw(st.lists(st.sampled_from(rows), min_size=1, max_size=3))
        if name == "topic":
            found[name] = ",".join({row["topic"] for row in some})
        elif name == "key":
            more = draw(st.lists(st.sampled_from((ABSENT, *KEYS)), min_size=1, max_size=2))
            found[name] = json.dumps([*(key for row in some for key in row["keys"][:1]), *more])
        elif name == "tag":
            found[name] = json.dumps(["other", *(row["tag"] for row in some if row["tag"])])
        elif name == "store":
            found[name] = some[0]["store_id"]
        else:
            found[name] = str(ms_of(some[0]) + draw(st.sampled_from((0, 0, 1, -1))))
    if int(found.get("from", 0)) >= int(found.get("to", 1 << 62)):
        del found["from"]
    return found


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    view=st.sampled_from(("messages", "keys", "keys")),
    size=st.sampled_from(("2000", "9000", "1000000")),
)
def test_options_leave_exactly_the_rows_that_fit(
    archive: tuple[SharedBucket, str], everything: dict[str, list[Row]], data: st.DataObject, view: str, size: str
) -> None:
    options = data.draw(drawn_options(everything[view], view))
    found = rows_of({"cold": archive[1], "partition_bytes": size, **options})
    wanted = [row for row in everything[view] if fits(row, options)]
    assert sorted(found, key=place) == sorted(wanted, key=place)


@pytest.mark.parametrize("names", [("body",), ("key", "topic", "queue_offset"), ("keys", "properties", "store_time")])
def test_columns_are_those_that_were_asked_for(
    archive: tuple[SharedBucket, str], everything: dict[str, list[Row]], names: tuple[str, ...]
) -> None:
    found = rows_of({"cold": archive[1], "view": "keys", "columns": ", ".join(names)})
    assert [tuple(row) for row in found] == [names] * len(found)
    assert found == [{name: row[name] for name in names} for row in everything["keys"]]


def test_expired_messages_and_erased_ones_were_among_them(tmp_path: Path) -> None:
    """The archives above do hold what has to be hidden."""
    shared = made(0)
    gone = [len(store.sent) - len(store.archived()) for store in shared.stores]
    assert min(gone) > 5
    assert shared.stores[0].manifest().refresh().expired
