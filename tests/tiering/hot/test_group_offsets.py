"""Committed offsets and generations: durable when the call returns, all or nothing, and one write for many."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.hot_stores import ROOT
from tierlog.tiering.base.errors import (
    ClosedError,
    ConflictError,
    DiskFailedError,
    InvalidRequestError,
    NotFoundError,
    ReadOnlyError,
    StaleGenerationError,
    UnsupportedFormatError,
)
from tierlog.tiering.base.fs import FileSystem, replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.hot import consumer_groups
from tierlog.tiering.hot.consumer_groups import GroupOffsets, GroupPosition, GroupState, validate_group

PATHS = StorePaths(ROOT)
T0, T1 = ("orders", "s", 0), ("orders", "s", 1)


def disk(seed: int = 0) -> CrashFileSystem:
    made = CrashFileSystem(seed=seed)
    for folder in (PATHS.tmp, PATHS.tierlog):
        made.make_dirs(folder)
    return made


def opened(fs: FileSystem) -> GroupOffsets:
    return GroupOffsets(fs, PATHS, "s", lambda: None)


def test_every_change_survives_a_power_cut() -> None:
    fs = disk()
    groups = opened(fs)
    assert groups.raise_generation("a") == 1
    groups.commit("a", {T0: 5, T1: 7}, generation=1)
    assert groups.raise_generation("a") == 2
    groups.commit("a", {T0: 6}, generation=2)
    groups.commit("solo", {("pays", "s", 3): 1}, generation=0)
    groups.commit("gone", {T0: 1}, generation=0)
    groups.remove("gone")
    again = opened(fs.crash(0, lose_everything=True))
    assert again.all() == {"a": GroupState(2, {T0: 6, T1: 7}), "solo": GroupState(0, {("pays", "s", 3): 1})}
    assert again.all() == groups.all()


def workload(groups: GroupOffsets, acknowledged: list[dict[str, GroupState]]) -> None:
    steps: list[Callable[[], object]] = [
        lambda: groups.raise_generation("a"),
        lambda: groups.commit("a", {T0: 5, T1: 7}, generation=1),
        lambda: groups.commit("b", {T0: 1}, generation=0),
        lambda: groups.commit("a", {T0: 9}, generation=1),
        lambda: groups.raise_generation("a"),
        lambda: groups.commit("a", {T0: 2, T1: 8}, generation=2, reset=True),
        lambda: groups.remove("b"),
    ]
    for step in steps:
        step()
        acknowledged.append(groups.all())


def test_a_power_cut_at_every_call_leaves_the_last_acknowledged_state_or_the_next() -> None:
    whole: list[dict[str, GroupState]] = [{}]
    fs = disk()
    first = fs.calls + 1
    workload(opened(fs), whole)
    assert len(whole) == 8
    for cut_at in range(first, fs.calls + 1):
        for seed in range(6):
            cut = disk(seed)
            cut.cut_at = cut_at
            seen: list[dict[str, GroupState]] = [{}]
            with pytest.raises(PowerCut):
                workload(opened(cut), seen)
            after = opened(cut.crash(seed, lose_everything=seed == 0))
            assert after.all() in whole[len(seen) - 1 : len(seen) + 1], (cut_at, seed)
            after.commit("later", {T0: 1}, generation=0)  # what the cut left behind is in nobody's way


def test_another_generation_than_the_groups_is_stale() -> None:
    groups = opened(disk())
    groups.raise_generation("a")
    groups.commit("a", {T0: 5}, generation=1)
    groups.raise_generation("a")
    for generation in (0, 1, 3):
        with pytest.raises(StaleGenerationError):
            groups.commit("a", {T0: 9}, generation=generation)
    assert groups.get("a") == GroupState(2, {T0: 5})


def test_a_copy_of_all_groups_is_one_write_and_leaves_out_what_cannot_be_kept() -> None:
    fs = disk()
    groups = GroupOffsets(fs, PATHS, "s", lambda: None, max_groups=30)
    groups.commit("one", {T0: 5}, generation=0)
    before = fs.calls
    groups.commit("one", {T0: 6}, generation=0)
    one_write, before = fs.calls - before, fs.calls
    copied = {f"group-{number}": {T0: number, T1: 3} for number in range(29)}
    odd = groups.copy({**copied, "one": {T0: 2}, "no group": {}, "one-too-many": {}}, {3: 17, 14: 1})
    assert fs.calls - before == one_write
    assert set(odd) == {"no group", "one-too-many"}
    assert groups.get("one").offsets == {T0: 2}
    before = fs.calls
    assert not groups.copy(copied, {3: 17})
    assert fs.calls == before
    again = opened(fs.crash(0, lose_everything=True))
    assert again.all() == groups.all()
    assert again.delay_offsets == {3: 17, 14: 1}
    again.commit("one", {T0: 9}, generation=0)
    assert opened(again._fs).delay_offsets == {3: 17, 14: 1}


def test_going_back_needs_a_reset_and_a_refused_commit_changes_nothing() -> None:
    groups = opened(disk())
    groups.commit("a", {T0: 5}, generation=0)
    with pytest.raises(InvalidRequestError, match="below the committed 5"):
        groups.commit("a", {T1: 3, T0: 4}, generation=0)
    assert groups.get("a").offsets == {T0: 5}
    groups.commit("a", {T1: 3, T0: 4}, generation=0, reset=True)
    assert groups.get("a").offsets == {T0: 4, T1: 3}


def test_nothing_is_written_where_nothing_changes() -> None:
    fs = disk()
    groups = opened(fs)
    groups.commit("a", {T0: 5}, generation=0)
    calls = fs.calls
    groups.commit("a", {T0: 5}, generation=0)
    groups.remove("nobody")
    assert fs.calls == calls


def test_a_write_that_the_disk_refuses_is_not_seen_and_the_next_one_is_a_new_one() -> None:
    fs = FaultyFileSystem(disk())
    groups = opened(fs)
    groups.commit("a", {T0: 5}, generation=0)
    for operation in ("open", "write_at", "flush", "rename", "flush_dir"):
        fs.refuse(operation)
        with pytest.raises(DiskFailedError):
            groups.commit("a", {T0: 6}, generation=0)
        assert groups.get("a").offsets == {T0: 5}
        fs.heal()
    groups.commit("a", {T0: 7}, generation=0)
    assert groups.get("a").offsets == {T0: 7}


class _SlowFlush(FaultyFileSystem):
    """Holds the first rename until told to go on, and counts all of them."""

    def __init__(self, inner: FileSystem) -> None:
        super().__init__(inner)
        self.renames = 0
        self.reached, self.go_on = threading.Event(), threading.Event()

    def rename(self, source: object, target: object) -> None:
        self.renames += 1
        self.reached.set()
        assert self.go_on.wait(20)
        super().rename(source, target)  # type: ignore[arg-type]


def test_commits_that_come_while_one_is_written_share_the_next_write() -> None:
    fs = _SlowFlush(disk())
    groups = opened(fs)
    threads = [
        threading.Thread(target=groups.commit, args=(f"g{number}", {T0: number}), kwargs={"generation": 0})
        for number in range(9)
    ]
    threads[0].start()
    assert fs.reached.wait(20)
    refused: list[Exception] = []

    def stale() -> None:
        try:
            groups.commit("g0", {T0: 99}, generation=7)
        except StaleGenerationError as error:
            refused.append(error)

    threads.append(threading.Thread(target=stale))
    for thread in threads[1:]:
        thread.start()
    while len(groups._changes._waiting) < 9:
        pass
    fs.go_on.set()
    for thread in threads:
        thread.join(20)
    assert fs.renames == 2
    assert len(refused) == 1, "one caller's mistake is not the others'"
    assert {name: state.offsets[T0] for name, state in groups.all().items()} == {f"g{n}": n for n in range(9)}


def test_names_and_numbers_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("", "a b", "a/b", "ä", "x" * 256, "a\n"):
        with pytest.raises(InvalidRequestError):
            validate_group(bad)
    for good in ("a", "%RETRY%|x_-9", "x" * 255):
        assert validate_group(good) == good
    monkeypatch.setattr(consumer_groups, "MAX_OFFSETS", 3)
    groups = GroupOffsets(disk(), PATHS, "s", lambda: None, max_groups=2)
    groups.commit("a", {T0: 1, T1: 1}, generation=0)
    groups.commit("b", {T0: 1}, generation=0)
    for more in (T1, ("orders", "elsewhere", 0)):
        with pytest.raises(ConflictError):
            groups.commit("b", {more: 1}, generation=0)
    with pytest.raises(ConflictError):
        groups.raise_generation("c")
    assert groups.all() == {"a": GroupState(0, {T0: 1, T1: 1}), "b": GroupState(0, {T0: 1})}
    groups.commit("b", {T0: 2}, generation=0)


def test_a_store_that_is_read_only_or_closed_takes_no_commit() -> None:
    fs = disk()
    reason: list[str | None] = [None]
    groups = GroupOffsets(fs, PATHS, "s", lambda: reason[0])
    groups.commit("a", {T0: 1}, generation=0)
    reason[0] = "the disk failed"
    with pytest.raises(ReadOnlyError, match="the disk failed"):
        groups.commit("a", {T0: 2}, generation=0)
    reason[0] = None
    groups.close()
    calls = fs.calls
    with pytest.raises(ClosedError):
        groups.commit("a", {T0: 2}, generation=0)
    assert fs.calls == calls
    assert groups.get("a").offsets == {T0: 1}
    with pytest.raises(NotFoundError):
        groups.get("nobody")


def test_offsets_of_other_stores_lie_beside_the_own_ones_which_are_written_as_ever() -> None:
    fs = disk()
    groups = opened(fs)
    groups.commit("a", {T0: 5}, generation=0)
    assert json.loads(fs.read(PATHS.groups_json))["groups"] == [
        {"name": "a", "generation": 0, "offsets": {"orders": {"0": 5}}}
    ]
    theirs = {("orders", "b", 0): 7, ("orders", "c", 12): 1, ("pays", "b", 0): 2}
    groups.commit("a", theirs, generation=0)
    (written,) = json.loads(fs.read(PATHS.groups_json))["groups"]
    assert written["offsets"] == {"orders": {"0": 5}}
    assert written["elsewhere"] == {"b": {"orders": {"0": 7}, "pays": {"0": 2}}, "c": {"orders": {"12": 1}}}
    assert opened(fs.crash(0, lose_everything=True)).get("a").offsets == {T0: 5, **theirs}
    with pytest.raises(InvalidRequestError, match="orders/12 of store c is below the committed 1"):
        groups.commit("a", {("orders", "c", 12): 0}, generation=0)


def test_unknown_keys_are_ignored_and_a_newer_format_is_not() -> None:
    fs = disk()
    opened(fs).commit("a", {T0: 1}, generation=0)
    document = json.loads(fs.read(PATHS.groups_json))
    document["new"] = 1
    document["groups"][0]["paused"] = True
    replace_file(fs, PATHS.groups_json, json.dumps(document).encode(), PATHS.tmp)
    assert opened(fs).get("a").offsets == {T0: 1}
    document["format"] = 2
    replace_file(fs, PATHS.groups_json, json.dumps(document).encode(), PATHS.tmp)
    with pytest.raises(UnsupportedFormatError):
        opened(fs)


def test_deliveries_move_a_group_only_from_where_they_saw_it() -> None:
    fs = disk()
    groups = opened(fs)
    groups.advance("g", {})
    assert groups.all() == {"g": GroupState()}
    unseen = groups.position("g", T0)
    assert unseen == GroupPosition(None)
    groups.advance("g", {T0: (unseen, 5)})
    groups.advance("g", {T0: (unseen, 9), T1: (groups.position("g", T1), 2)})
    assert groups.get("g").offsets == {T0: 5, T1: 2}
    groups.raise_generation("g")
    groups.advance("g", {T0: (GroupPosition(5), 4)})  # the end of a queue that lost its newest messages
    assert opened(fs.crash(1, lose_everything=True)).get("g") == GroupState(1, {T0: 4, T1: 2})


def test_a_reset_to_the_same_offset_is_not_moved_over() -> None:
    groups = opened(disk())
    groups.commit("g", {T0: 5}, generation=0)
    seen = groups.position("g", T0)
    groups.commit("g", {T0: 5}, generation=0, reset=True)
    groups.advance("g", {T0: (seen, 9)})
    assert groups.position("g", T0) == GroupPosition(5, 1)
