"""The head of an archive went missing between two opens: pulls skipped everything archived, and a new head was made."""

from __future__ import annotations

import pytest

from tests.support.objects.damage import remove
from tests.support.stores.archives import build
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ObjectNotFoundError, StoreError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.message.batch import Message

HEAD = "store/head"


@pytest.fixture
def engine() -> Store:
    world = build()
    remove(world.objects, HEAD)
    return world.open()


def test_nothing_archived_is_passed_over_in_silence(engine: Store) -> None:
    with pytest.raises(ObjectNotFoundError, match=HEAD):
        engine.pull("orders", 0, 0, 10)
    with pytest.raises(ObjectNotFoundError, match=HEAD):
        engine.message(f"{'0A00000100001E61'}{0:016X}")
    answer = engine.query(Query("orders", "key-1"))
    assert not answer.coverage.complete
    assert [failure.object for failure in answer.coverage.failures] == [HEAD]


def test_the_hot_tier_goes_on(engine: Store) -> None:
    engine.append(
        [Message("orders", b"more")],
    )
    least, following = engine.offsets("orders", 0)
    assert engine.pull("orders", 0, following - 1, 10).status is PullStatus.FOUND
    assert least > 0


def test_no_new_head_makes_orphans_of_the_archive(engine: Store) -> None:
    with pytest.raises(ObjectNotFoundError, match="must be put back"):
        engine.archive(everything=True)
    assert engine.read_only_reason is None
    assert HEAD in "\n".join(engine.check())


def test_with_its_head_back_everything_is_there_again() -> None:
    world: World = build()
    kept = world.objects._objects[HEAD]
    before = world.open().query(Query("orders", limit=1000)).messages
    remove(world.objects, HEAD)
    engine = world.open()
    with pytest.raises(StoreError):
        engine.archive(everything=True)
    world.objects._objects[HEAD] = kept
    assert engine.query(Query("orders", limit=1000)).messages == before
    engine.archive(everything=True, drop_hot=True)
    assert engine.check(deep=True) == []
