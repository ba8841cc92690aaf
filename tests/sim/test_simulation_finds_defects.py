"""The simulation can find things: committers and sweeps that are broken on purpose are caught within a few seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.simulation.run import simulate
from tests.support.simulation.server import Client
from tierlog.tiering.base.errors import ConflictError
from tierlog.tiering.cold.manifest import store, sweep, tree
from tierlog.tiering.cold.manifest.change import apply_change
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore
from tierlog.tiering.format.manifest import Head, PageNode
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectInfo

_SEEDS = 40
Break = Callable[[pytest.MonkeyPatch], None]


def concludes_failure_from_a_412(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManifestStore, "_has_landed", staticmethod(lambda *_: False))


def gives_every_try_an_id_of_its_own(patch: pytest.MonkeyPatch) -> None:
    def has_landed(head: Head, commit_id: str, tried_on: int | None, landed: object) -> bool:
        return original(head, commit_id + "x", tried_on, lambda _: False)

    original = ManifestStore._has_landed
    patch.setattr(ManifestStore, "_has_landed", staticmethod(has_landed))


def writes_the_head_without_a_condition(patch: pytest.MonkeyPatch) -> None:
    def put(self: MemoryObjectStore, key: str, data: bytes, **_: object) -> ObjectInfo:
        return original(self, key, data)

    original = MemoryObjectStore.put
    patch.setattr(MemoryObjectStore, "put", put)


def does_not_look_at_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManifestStore, "_check_epoch", lambda *_: None)


def names_what_was_uploaded_long_ago(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManifestStore, "_check_in_time", lambda *_: None)


def sweeps_without_the_commit_that_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sweep.Sweep, "_drop_emptied", lambda self: self.manifest.refresh())


def sweeps_what_is_young(patch: pytest.MonkeyPatch) -> None:
    def run(self: sweep.Sweep, claim: Callable[[], object]) -> sweep.SweepReport:
        options = self.manifest.options
        self.manifest.options = replace(options, grace_ms=options.grace_ms // 8)
        try:
            return original(self, claim)
        finally:
            self.manifest.options = options

    original = sweep.Sweep.run
    patch.setattr(sweep.Sweep, "run", run)


def sweeps_by_its_own_clock(patch: pytest.MonkeyPatch) -> None:
    def now_ms(self: Client) -> int:
        return int(self.server.scheduler.now_ms + 3 * 3_600_000)

    patch.setattr(Client, "now_ms", now_ms)


def forgets_companions_that_were_replaced(patch: pytest.MonkeyPatch) -> None:
    def leave(self: tree.TreeEdit, node: PageNode) -> object:
        self.left.append(node.ref.key)
        return () if node.rows is None else (node.rows,)

    patch.setattr(tree.TreeEdit, "_leave", leave)


def loses_an_entry_that_is_replaced_and_spilled(patch: pytest.MonkeyPatch) -> None:
    original = tree.TreeEdit._join_small
    patch.setattr(tree.TreeEdit, "_join_small", lambda self, kind, pages: original(self, kind, pages)[:200][:2])


def removes_what_is_gone_already(patch: pytest.MonkeyPatch) -> None:
    def apply(head: Head, change: ManifestChange, edit: tree.TreeEdit) -> Head:
        try:
            return apply_change(head, change, edit)
        except ConflictError:
            return apply_change(head, replace(change, remove=()), edit)

    patch.setattr(store, "apply_change", apply)


@pytest.mark.parametrize(
    "broken",
    [
        concludes_failure_from_a_412,
        gives_every_try_an_id_of_its_own,
        writes_the_head_without_a_condition,
        does_not_look_at_the_epoch,
        pytest.param(names_what_was_uploaded_long_ago, marks=pytest.mark.slow),
        sweeps_what_is_young,
        sweeps_by_its_own_clock,
        sweeps_without_the_commit_that_fences,
        forgets_companions_that_were_replaced,
        loses_an_entry_that_is_replaced_and_spilled,
        removes_what_is_gone_already,
    ],
)
def test_a_broken_committer_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert next(_seeds_that_fail(), None) is not None


def _seeds_that_fail() -> Iterator[int]:
    for seed in range(_SEEDS):
        try:
            simulate(seed)
        except AssertionError:
            yield seed
