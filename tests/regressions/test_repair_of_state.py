"""Damage to the state object that repair did not put right, or that ended the check."""

from __future__ import annotations

import pytest

from tests.support.objects.damage import Damage, changed, flipped, remove
from tests.support.stores.removal_world import RemovalWorld
from tierlog.service.engine.store import Store
from tierlog.tiering.format.store_state import StoreState

DAMAGES: dict[str, Damage] = {"missing": remove, "a bit": changed(lambda data: flipped(data, len(data) // 2))}


def archived() -> tuple[RemovalWorld, Store]:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 60)
    engine.archive(everything=True)
    return world, engine


def state_of(world: RemovalWorld) -> StoreState:
    (manifest,) = world.cold()._manifests.values()
    return manifest.state(manifest.reader(), manifest.refresh())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_state_object_is_written_anew_although_a_cache_still_has_it(damage: str, is_restarted: bool) -> None:
    world, engine = archived()
    assert engine._manifest is not None
    before, ref = state_of(world), engine._manifest.refresh().state
    assert ref is not None
    DAMAGES[damage](world.objects, ref.key)
    if is_restarted:
        engine.close()
        engine = world.open()
    assert engine.repair().left == []
    assert state_of(world) == before


def test_a_check_goes_on_where_nothing_says_what_topics_there_are() -> None:
    """The directory of a segment is damaged, and the state object is lost: its records are of unknown topics."""
    world, engine = archived()
    assert engine._manifest is not None
    head = engine._manifest.refresh()
    assert head.state is not None
    entry = next(engine._manifest.log_entries(engine._manifest.reader(), head))
    at = entry.sections["directory"].position + entry.sections["directory"].length // 2
    changed(lambda data: flipped(data, at))(world.objects, entry.key)
    remove(world.objects, head.state.key)
    found = {finding.object for finding in world.cold().check_report(deep=True).found}
    assert {entry.key, head.state.key} <= found
    assert world.open().repair().left == []
