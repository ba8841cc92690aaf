"""Symptom: one damaged segment kept every erasure and all expiry from going on, of other segments and topics too."""

from __future__ import annotations

import pytest

from tests.support.objects.damage import flipped
from tests.support.stores.removal_world import RemovalWorld
from tierlog.service.engine.store import Store
from tierlog.tiering.format.manifest import LogEntry


def segments(engine: Store) -> list[LogEntry]:
    manifest = engine._manifest
    assert manifest is not None
    return list(manifest.log_entries(manifest.reader(), manifest.refresh()))


@pytest.mark.parametrize("comes_back", ["by a repair", "as it was"])
def test_what_can_be_read_is_overwritten_and_the_rest_follows_its_repair(comes_back: str) -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 90)
    engine.archive(everything=True, drop_hot=comes_back == "as it was")
    bad, *others = segments(engine)
    assert len(others) > 2
    sound, _ = world.objects.get(bad.key)
    if comes_back == "as it was":
        world.objects.delete(bad.key)
    else:
        world.objects.put(bad.key, flipped(sound, 60))
    engine.close()
    engine = world.open()
    ids = [world.erase(engine, topic)["tombstone_id"] for topic in ("t", "u")]
    world.finish(engine)
    receipts = [engine.removal.receipt(one) for one in ids]
    assert {each["segment"] for each in receipts[0]["segments_rewritten"]} == {each.base for each in others}
    assert {receipt["state"] for receipt in receipts} == {"hidden"}
    assert {receipt["looked_at_bytes"] for receipt in receipts} == {bad.base}
    assert not engine.removal.run_once(), "nothing is done again and again"

    if comes_back == "as it was":
        world.objects.put(bad.key, sound)
        engine.close()
        engine = world.open()
    else:
        assert engine.repair().left == []
    world.finish(engine)
    assert {engine.removal.receipt(one)["state"] for one in ids} <= {"rewritten", "complete"}
    world.verify(engine)
    assert engine.check(deep=True) == []
