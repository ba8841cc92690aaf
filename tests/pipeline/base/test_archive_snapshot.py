"""What jobs say of the archives that they read."""

from __future__ import annotations

import pytest

from tests.support.stores.followed import SEGMENT_BYTES, FollowedWorld, broker_log
from tierlog.pipeline.base.archive import ArchiveSnapshot, PinnedStore, warn_of_lost
from tierlog.service.engine.followed.changes import begin_again


def test_a_range_that_a_follower_lost_is_said_where_its_messages_may_be_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, world = broker_log(), FollowedWorld()
    store = world.open()
    log.feed(store, end=SEGMENT_BYTES)
    store.flush()
    store.close()
    begin_again(world.root, 3 * SEGMENT_BYTES, world.components)
    head = world.head()
    pinned = PinnedStore("file:///archive", "store", head.encode()).for_known_entries()
    snapshot = ArchiveSnapshot("file:///archive", {"store": pinned})
    warn_of_lost(snapshot.lost(), None, head.lost[0].from_ms)
    warn_of_lost(snapshot.lost(), head.lost[0].to_ms, None)
    assert not caplog.messages
    for from_ms, to_ms in ((None, None), (head.lost[0].from_ms, None), (None, head.lost[0].to_ms)):
        caplog.clear()
        warn_of_lost(snapshot.lost(), from_ms, to_ms)
        assert caplog.messages == [
            f"store store is not complete: the broker had deleted its log [{SEGMENT_BYTES}, {3 * SEGMENT_BYTES}) "
            "before the follower came there"
        ]
