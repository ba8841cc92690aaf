"""An erasure in bulk hides by one commit, writes each segment again once, and beside a running store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipeline.removal_jobs import ArchiveHere, erase_in_bulk, erasure_of, note, unseen
from tests.support.stores.removal_world import RemovalWorld, WatchedStore, asked
from tierlog.index.search.query import Query
from tierlog.pipeline.jobs.erase import _keys_of
from tierlog.pipeline.removal.erasure import ErasureRequest
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    TopicHeldError,
    TopicNotFoundError,
)
from tierlog.tiering.cold.manifest.store import ManifestChange
from tierlog.tiering.lifecycle.tombstones import MAX_KEYS, MAX_OPEN
from tierlog.tiering.message.batch import Message


def filled() -> tuple[RemovalWorld, Store]:
    """Messages that are archived and gone from the volume, archived and hot, and hot only; the store is open."""
    world = RemovalWorld()
    engine = world.open()
    world.fill(engine)
    return world, engine


def look(engine: Store) -> None:
    """What the store does every ten seconds."""
    assert engine._manifest is not None
    engine._manifest.refresh()


@pytest.mark.parametrize(
    ("keys", "span"), [((), None), (("k1",), None), ((), (20, 60)), (("k2", "k0"), (0, 50)), (("none", "k1"), None)]
)
def test_every_way_of_reading_obeys_it_from_its_first_commit_on(
    keys: tuple[str, ...], span: tuple[int, int] | None
) -> None:
    world, engine = filled()
    times = [one.store_ms for one in world.sent]
    bounds = (times[span[0]], times[span[1]]) if span else (None, None)
    job, request = erasure_of(world), ErasureRequest("t", keys, *bounds)
    stone = job.begin(request)
    note(world, request, stone.end)
    world.verify_archive(world.visible())
    look(engine)
    world.verify(engine)
    job.carry_out(stone, request, unseen)
    receipt = job.receipt(stone.tombstone_id)
    gone = len(world.sent) - len(world.visible())
    assert receipt["matched"] == {"hot": 0, "cold": gone, "complete": True}
    assert sum(row["records"] for row in receipt["segments_rewritten"]) == gone > 0
    assert receipt["state"] == "hidden", "the store itself closes it, once it has seen it"
    for at, one in enumerate(world.sent[:64]):
        assert world.bucket_holds(one.message.body) != world.is_erased(at)
    look(engine)
    world.finish(engine)
    world.verify(engine)
    assert engine._manifest is not None
    assert engine._manifest.refresh().tombstones == ()
    assert engine.check(deep=True) == []
    engine.archive(everything=True, drop_hot=True)
    world.verify(engine)
    assert engine.removal.receipt(stone.tombstone_id)["state"] == "rewritten"


def test_what_was_not_archived_yet_is_not_erased_and_the_receipt_says_up_to_where() -> None:
    world, engine = filled()
    receipt = erase_in_bulk(world, "t")
    look(engine)
    assert receipt["below_offset"] == engine.stats()["archived_to"]
    hot_only = [one.message.body for one in world.sent[64:] if one.message.topic == "t"]
    assert asked(engine, Query("t")) == hot_only
    world.finish(engine)
    assert asked(engine, Query("t")) == hot_only


def test_the_receipt_has_the_form_of_the_commands() -> None:
    world, engine = filled()
    in_bulk = erase_in_bulk(world, "t", "k1")
    look(engine)
    by_command = engine.removal.erase(Query("u", "k1"), wait=True)
    assert in_bulk.keys() == by_command.keys()
    rows = [receipt["segments_rewritten"] for receipt in (in_bulk, by_command)]
    assert rows[0][0].keys() == rows[1][0].keys()  # type: ignore[index]
    assert engine.removal.receipt(str(in_bulk["tombstone_id"])) == in_bulk | {"state": "rewritten"}


def test_many_keys_are_one_tombstone_and_each_segment_is_written_once() -> None:
    world, engine = filled()
    keys = ["k0", "k2", *(f"other{number}" for number in range(500))]
    receipt = erase_in_bulk(world, "t", *keys)
    segments = [row["segment"] for row in receipt["segments_rewritten"]]  # type: ignore[attr-defined]
    assert len(segments) == len(set(segments)) == 3
    assert receipt["by_key"] is True
    look(engine)
    world.verify(engine)
    text = str(world.objects.get(f"store/receipts/{receipt['tombstone_id']}.json")[0])
    assert "k0" not in text
    assert "other7" not in text


def test_too_many_keys_for_the_head_are_refused_and_nothing_is_begun() -> None:
    world, _ = filled()
    with pytest.raises(InvalidRequestError, match="more than the"):
        ErasureRequest("t", tuple(map(str, range(MAX_KEYS + 1))))
    job = erasure_of(world)
    job.begin(ErasureRequest("t", tuple(map(str, range(MAX_KEYS - 5)))))
    with pytest.raises(ConflictError, match="keys"):
        job.begin(ErasureRequest("t", tuple(map(str, range(6)))))
    job.begin(ErasureRequest("t", ("a",)))


def test_the_head_stays_small_with_as_many_keys_and_tombstones_as_it_takes() -> None:
    world, _ = filled()
    job = erasure_of(world)
    job.begin(ErasureRequest("t", tuple(f"key-{number}" for number in range(MAX_KEYS - MAX_OPEN))))
    for number in range(MAX_OPEN - 1):
        job.begin(ErasureRequest("t", (f"other-{number}",)))
    with pytest.raises(ConflictError, match="are open"):
        job.begin(ErasureRequest("t", ("more",)))
    assert len(world.objects.get("store/head")[0]) < 125_000


def test_by_key_only_segments_to_which_the_index_leads_are_read() -> None:
    world, engine = filled()
    world.clock.advance(1000)
    engine.append([Message("t", b"<the one>", ["rare"])])
    world.append(engine, 24)
    engine.archive(everything=True)
    watched = WatchedStore(world.objects)
    read = set[str]()
    watched.before = lambda number, name, key: read.add(str(key)) if name == "get_range" else None
    job = erasure_of(world, watched)
    plan = job.plan(ErasureRequest("t", ("rare",)))
    assert plan["matched"] == {"hot": 0, "cold": 1, "complete": True}
    (segment,) = plan["segments_to_rewrite"]
    assert {key.split("/")[2][:20] for key in read if "/log/" in key} == {f"{segment:020d}"}


def test_where_the_index_cannot_be_read_records_are_looked_at() -> None:
    world, engine = filled()
    assert engine._manifest is not None
    manifest = engine._manifest
    entries = list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))
    world.objects.delete(entries[0].key)
    engine.close()
    receipt = erase_in_bulk(world, "t", "k1")
    gone = len(world.sent) - len(world.visible())
    assert receipt["matched"] == {"hot": 0, "cold": gone, "complete": True}
    for at, one in enumerate(world.sent[:64]):
        assert world.bucket_holds(one.message.body) != world.is_erased(at)


def test_where_no_index_object_is_named_any_more_records_are_looked_at() -> None:
    world, engine = filled()
    engine.close()
    manifest = ArchiveHere(world).manifest
    entries = list(manifest.all_index_entries(manifest.reader(), manifest.refresh()))
    manifest.commit_other(ManifestChange(remove=(entries[1],)))
    receipt = erase_in_bulk(world, "t", "k1", job=erasure_of(world, has_volume=False))
    gone = len(world.sent) - len(world.visible())
    assert receipt["matched"] == {"hot": 0, "cold": gone, "complete": True}
    for at, one in enumerate(world.sent[:64]):
        assert world.bucket_holds(one.message.body) != world.is_erased(at)


def test_a_key_of_a_file_is_a_whole_line_whatever_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes("\ufeffone\r\nleft\u2028right\nnext\x85one\n\n".encode())
    assert _keys_of(path) == ["one", "left\u2028right", "next\x85one"]


def test_a_scan_finds_what_the_index_leads_to() -> None:
    world, _ = filled()
    plans = [
        erasure_of(world).plan(ErasureRequest("t", ("k0", "k1"), world.sent[10].store_ms, None, scans))
        for scans in (False, True)
    ]
    for plan in plans:
        plan.pop("asked_ms")
    assert plans[0] == plans[1]
    assert plans[0]["matched"]["cold"] == sum(
        1 for one in world.sent[10:64] if one.message.topic == "t" and one.message.keys[0] != "k2"
    )


def test_a_dry_run_changes_nothing() -> None:
    world, _ = filled()
    before = {info.key: info.etag for info in world.objects.list("")}
    assert erasure_of(world).plan(ErasureRequest("t"))["state"] == "dry run"
    assert {info.key: info.etag for info in world.objects.list("")} == before


def test_what_is_hidden_already_is_not_counted_and_is_overwritten_all_the_same() -> None:
    world, engine = filled()
    engine.removal.configure("t", hold=False)
    world.erase(engine, "t", "k0")
    receipt = erase_in_bulk(world, "t")
    matched = receipt["matched"]
    assert isinstance(matched, dict)
    assert matched["cold"] == sum(one.message.topic == "t" and one.message.keys[0] != "k0" for one in world.sent[:64])
    assert not any(world.bucket_holds(one.message.body) for one in world.sent[:64] if one.message.topic == "t")
    look(engine)
    world.finish(engine)
    world.verify(engine)


def test_a_topic_on_hold_is_refused_as_soon_as_the_hold_is_acknowledged() -> None:
    world, engine = filled()
    engine.removal.configure("t", hold=True)
    for ask in (erasure_of(world).begin, erasure_of(world).plan):
        with pytest.raises(TopicHeldError, match="on hold"):
            ask(ErasureRequest("t"))
    engine.removal.configure("t", hold=False)
    erasure_of(world).begin(ErasureRequest("t"))


def test_unknown_topics_and_tombstones_are_said_to_be_unknown() -> None:
    world, _ = filled()
    with pytest.raises(TopicNotFoundError):
        erasure_of(world).begin(ErasureRequest("nothing"))
    with pytest.raises(NotFoundError):
        erasure_of(world).open_erasure("0123")


def test_without_a_volume_the_job_closes_the_tombstone_itself() -> None:
    world, engine = filled()
    engine.close()
    job = erasure_of(world, has_volume=False)
    receipt = erase_in_bulk(world, "t", "k1", job=job)
    assert receipt["state"] == "rewritten"
    assert job._manifest.refresh().tombstones == ()
    assert not any("hot volume" in place for place in receipt["may_still_hold_bytes"])  # type: ignore[attr-defined]
    world.verify_archive(world.visible())


def test_a_tombstone_that_is_open_is_gone_on_with_by_its_id_alone() -> None:
    world, engine = filled()
    job, request = erasure_of(world), ErasureRequest("t", ("k1", "k2"))
    stone = job.begin(request)
    note(world, request, stone.end)
    other = erasure_of(world, seed=4007)
    found = other.open_erasure(stone.tombstone_id)
    assert found is not None
    other.carry_out(found, None, unseen)
    assert other.receipt(stone.tombstone_id)["matched"]["complete"]
    look(engine)
    world.finish(engine)
    world.verify(engine)
    assert other.open_erasure(stone.tombstone_id) is None


def test_a_damaged_segment_keeps_the_erasure_open_and_is_named() -> None:
    world, engine = filled()
    assert engine._manifest is not None
    head, reader = engine._manifest.refresh(), engine._manifest.reader()
    entry = list(engine._manifest.log_entries(reader, head))[1]
    data, _ = world.objects.get(entry.key)
    engine.close()
    world.objects.put(entry.key, data[:50] + bytes(200) + data[250:])
    job, request = erasure_of(world, has_volume=False), ErasureRequest("t")
    stone = job.begin(request)
    job.carry_out(stone, request, unseen)
    receipt = job.receipt(stone.tombstone_id)
    assert list(job.unreadable) == [entry.key]
    assert receipt["matched"]["complete"] is False
    assert (receipt["state"], receipt["looked_at_bytes"]) == ("hidden", entry.base)
    assert {row["segment"] for row in receipt["segments_rewritten"]} >= {0, 2 * 4096}
    world.objects.put(entry.key, data)
    again = erasure_of(world, has_volume=False, seed=4009)
    assert again.begin(request) == job._manifest.refresh().tombstones[0]
    again.carry_out(again.begin(request), request, unseen)
    assert again.receipt(stone.tombstone_id)["state"] == "rewritten"
