"""A restore that slept while another took over found its tails swept, and called the archive damaged.

The simulation found it (seed 14 of the tails). Nothing was lost, but an operator was sent looking for damage.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.stores.tails import KEYS, TailedStore, archived_bodies, take_over
from tierlog.tiering.base.errors import FencedError
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.manifest.store import ManifestChange, ManifestStore, Ownership
from tierlog.tiering.lifecycle.tail_recovery import recover_tails


class SleepyStore(FaultyObjectStore):
    """Sleeps once, before it gets a tail."""

    def _begin(self, operation: str, key: str) -> None:
        super()._begin(operation, key)
        if operation == "get" and key.startswith(KEYS.tails) and not self.has_slept:
            self.has_slept = True
            self.meanwhile()

    has_slept = False

    def meanwhile(self) -> None:
        """Replaced by what happens."""


def test_a_restore_whose_tails_were_swept_meanwhile_learns_that_it_was_fenced() -> None:
    tailed = TailedStore()
    tailed.append(12)
    tailed.run()

    def another_takes_over() -> None:
        manifest, head = take_over(tailed, "third")
        recover_tails(manifest, head, tailed.hot_world.fs, Path("/third"), SeededRandomness(6))
        for info in list(tailed.objects.inner.list(KEYS.tails)):
            tailed.objects.inner.delete(info.key)

    store = SleepyStore(tailed.objects.inner)
    store.meanwhile = another_takes_over  # type: ignore[method-assign]  # one thing that happens
    manifest = ManifestStore(store, KEYS, randomness=SeededRandomness(4), options=ColdOptions(), clock=tailed.clock)
    owner = Ownership("other", "open of other", ("open of other",))
    head = manifest.take_over(owner, ManifestChange(), manifest.refresh())
    with pytest.raises(FencedError, match="taken this store over"):
        recover_tails(manifest, head, tailed.hot_world.fs, Path("/restore"), SeededRandomness(5))
    assert store.has_slept
    assert len(archived_bodies(tailed.manifest)) == 12
