"""Segments of many keys are those to which looking up each key leads, whether few pages are read or all."""

from __future__ import annotations

import pytest

from tests.support.stores.removal_world import RemovalWorld
from tierlog.index.objects.lookup import key_numbers, segments_of_keys
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.format.hashing import key_hash, key_hash_high


@pytest.mark.parametrize(
    "keys", [["k1"], ["k0", "k1", "k2"], ["none"], [], ["k2", *(f"other{number}" for number in range(500))]]
)
@pytest.mark.parametrize("topic", ["t", "u"])
def test_segments_of_keys(topic: str, keys: list[str]) -> None:
    world = RemovalWorld()
    engine = world.open()
    world.append(engine, 120)
    engine.archive(everything=True)
    assert engine._manifest is not None
    manifest, found, wanted = engine._manifest, set[int](), set[int]()
    entries = list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))
    assert len(entries) > 0
    for entry in entries:
        found |= segments_of_keys(manifest.reader(), entry, key_numbers(topic, keys), 4096)
        reader = IndexObjectReader(manifest.reader().fetcher(entry.key, "index"), entry.sections)
        for key in keys:
            items = reader.lookup(key_hash(topic, key), key_hash_high(topic, key))
            wanted |= {offset - offset % 4096 for offset in items["offset"].tolist()}
    assert found == wanted
    assert bool(found) == any(key in ("k0", "k1", "k2") for key in keys)
