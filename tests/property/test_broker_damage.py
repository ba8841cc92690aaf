"""A broker's directory with any damage: opening and checking end with an answer or an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.rocketmq.golden import expected, unpack
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import records_in
from tierlog.service.engine.opening import open_parts
from tierlog.service.engine.parts import Components
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.wrapped_fs import OverlayFileSystem
from tierlog.tiering.rocketmq.check import check_broker

NAME = "upgrade/5.5.0"
_SETTINGS = tiny_settings(hot__segment_bytes=None, hot__queue_file_units=None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(NAME, tmp_path_factory.mktemp("broker"))


#: A file by its place among all, a byte by its place in the file, and what becomes of it.
damages = st.tuples(
    st.integers(0, 1 << 30),
    st.integers(0, 1 << 30),
    st.one_of(
        st.binary(min_size=1, max_size=24),
        st.integers(1, 4000).map(bytes),
        st.sampled_from([b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\x03" + bytes(7), b"\xcb\xd4\x31\x94"]),
        st.none(),
    ),
)


def damaged(root: Path, chosen: list[tuple[int, int, bytes | None]]) -> OverlayFileSystem:
    """The directory with bytes overwritten or whole files gone, in memory."""
    fs = OverlayFileSystem(LocalFileSystem())
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    # every other damage in the log itself, which is two of dozens of files
    logs = [path for path in files if path.parent.name == "commitlog"]
    for which, place, data in chosen:
        path = logs[which % len(logs)] if which % 2 else files[which % len(files)]
        if data is None:
            fs.unlink(path)
        elif fs.exists(path):
            size = fs.size(path)
            at = place % size
            fs.writable(path, size)[at : at + len(data)] = list(data[: size - at])
    return fs


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.lists(damages, min_size=1, max_size=4))
def test_any_damage(root: Path, chosen: list[tuple[int, int, bytes | None]]) -> None:
    fs = damaged(root, chosen)
    assert all(isinstance(finding, str) for finding in check_broker(fs, StorePaths(root)))
    components = Components(_SETTINGS, SystemClock(), fs, SystemRandomness())
    try:
        parts = open_parts(root, components, cold_url=None, store_id=None, read_only=True)
    except StoreError:
        return
    written = {message["physicalOffset"] for message in expected(NAME)["messages"]}
    try:
        for topic in parts.hot.store.topics.all():
            for queue_id in range(min(topic.queues, 20)):
                first, end = parts.fetcher.offsets(topic.name, queue_id)
                assert 0 <= first <= end
                answer = parts.fetcher.pull(topic.name, queue_id, first, 1000)
                assert {message.record.physical_offset for message in answer.messages} <= written
                with parts.fetcher.pull_records(topic.name, queue_id, first, 1000) as pulled:
                    assert records_in(pulled.parts) == [message.record for message in answer.messages]
    finally:
        parts.resources.close()


def test_an_undamaged_one_passes_the_same_way(root: Path) -> None:
    assert check_broker(damaged(root, []), StorePaths(root)) == []
