"""Symptom: an opening that derived a long log began anew when it was cut off, however far it had come."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fs.faulty_fs import FaultyFileSystem
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import DiskFullError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.message.batch import Message


@pytest.mark.parametrize("is_end_left", [False, True], ids=["all of it", "a gap"])
def test_what_was_derived_before_an_opening_was_cut_off_is_kept(tmp_path: Path, is_end_left: bool) -> None:
    fs = FaultyFileSystem(LocalFileSystem())

    def open_engine() -> Store:
        return Store.open(tmp_path, settings=tiny_settings(), clock=ManualClock(), fs=fs)

    engine = open_engine()
    for number in range(20):
        engine.append([Message("t", b"%0500d" % number, [f"k{number}-{key}" for key in range(100)])] * 4)
    engine.flush()
    engine.run_tiers()
    engine.close()
    files = sorted((tmp_path / "index" / "compacted").iterdir())
    for file in files[:-1] if is_end_left else files:
        file.unlink()
    if not is_end_left:
        (tmp_path / "tierlog" / "index.json").unlink()
    last = max(path.name for path in files[:-3])
    fs.refuse("create", f"*/index/writing/{last}", error=DiskFullError("no space left"))
    with pytest.raises(DiskFullError):
        open_engine()
    sealed = {path.name for path in (tmp_path / "index" / "sealed").iterdir()}
    assert sealed
    fs.heal()
    fs.refuse("create", f"*/index/writing/{min(sealed)}")  # nothing of it is made again
    engine = open_engine()
    for number in range(20):
        assert len(engine.query(Query("t", f"k{number}-7")).messages) == 4
    engine.run_tiers()
    assert engine.check() == []
    engine.close()
