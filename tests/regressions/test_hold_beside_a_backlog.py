"""A hold, and every other option of a topic, waited until all of a backlog was archived."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.tiering.cold.segment.reader import SegmentReader
from tierlog.tiering.message.batch import Message

_SOON_S = 30.0


class BacklogWorld(World):
    """A store with a backlog of several segments, whose bucket can be made to wait."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open()
        for number in range(400):
            self.engine.append([Message("t", b"x" * 300, [f"k{number % 2}"], queue_id=0)])
        self.failed: list[BaseException] = []

    def beside(self, work: Callable[[], Any]) -> threading.Thread:
        """Do it on a thread."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failed.append(error)
                raise

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def topic_state(self, name: str) -> Any:
        """What the archive says of a topic."""
        manifest = self.engine._manifest
        assert manifest is not None
        return manifest.state(manifest.reader(), manifest.refresh()).find(name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BacklogWorld]:
    found = BacklogWorld(tmp_path / "store")
    yield found
    found.bucket.heal()
    found.engine.close()
    assert found.failed == []


@pytest.mark.parametrize("is_first", [True, False], ids=["claimed in the backlog", "claimed before"])
def test_options_are_told_while_a_backlog_is_archived(world: BacklogWorld, is_first: bool) -> None:
    if not is_first:
        world.engine.archive()
    hold = world.bucket.hold("upload", "*/log/*")
    archiving = world.beside(lambda: world.engine.archive(everything=True))
    hold.wait_until_reached()
    telling = world.beside(lambda: world.engine.removal.configure("t", hold=True, cold_retention_ms=5))
    telling.join(_SOON_S)
    is_told = not telling.is_alive()
    hold.release()
    archiving.join(_SOON_S)
    telling.join(_SOON_S)
    assert is_told, "while a segment is on its way"
    assert (world.topic_state("t").hold, world.topic_state("t").cold_retention_ms) == (True, 5)
    assert world.engine.check(deep=True) == []


def test_nothing_that_a_hold_forbids_is_published_after_it(world: BacklogWorld) -> None:
    world.engine.archive()
    world.engine.removal.erase(Query("t", "k1"))
    hold = world.bucket.hold("upload", "*/log/*")
    archiving = world.beside(lambda: world.engine.archive(everything=True, drop_hot=True))
    hold.wait_until_reached()
    world.engine.removal.configure("t", hold=True)
    hold.release()
    archiving.join(_SOON_S)
    assert not archiving.is_alive()
    assert _archived(world) == 400, "messages that are erased are hidden, and stay as long as the hold"
    assert len(world.engine.query(Query("t", limit=1000)).messages) == 200
    world.engine.removal.configure("t", hold=False)
    while world.engine.removal.run_once():
        pass
    assert _archived(world) == 200


def test_what_was_told_last_is_what_the_archive_says(world: BacklogWorld) -> None:
    world.engine.archive()
    hold = world.bucket.hold("put", "*/state/*")
    world.engine.append([Message("new", b"x")])
    archiving = world.beside(lambda: world.engine.archive(everything=True))
    hold.wait_until_reached()
    telling = world.beside(lambda: world.engine.removal.configure("t", cold_retention_ms=7))
    hold.release()
    archiving.join(_SOON_S)
    telling.join(_SOON_S)
    assert world.topic_state("t").cold_retention_ms == 7
    assert world.topic_state("new") is not None


def _archived(world: BacklogWorld) -> int:
    """Records in the archive that are not fillers."""
    manifest = world.engine._manifest
    assert manifest is not None
    head, reader = manifest.refresh(), manifest.reader()
    entries = list(manifest.log_entries(reader, head))
    return sum(
        len(list(segment.records_of(segment.directory_rows("t"))))
        for segment in (SegmentReader(reader, entry) for entry in entries)
    )
