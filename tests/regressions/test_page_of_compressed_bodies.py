"""A page counted compressed bodies as they are stored: a thousand of a kilobyte each became gigabytes when shown."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import record
from tierlog.index.search.query import Query
from tierlog.service.engine.store import Store
from tierlog.tiering.format.record import SysFlag, encode_record

_BODY = bytes(1 << 20)
_COUNT = 40


@pytest.fixture
def engine(tmp_path: Path) -> Store:
    body, log = zlib.compress(_BODY, 9), b""
    for number in range(_COUNT):
        log += encode_record(
            record(topic="t", queue_offset=number, physical_offset=len(log), body=body, sys_flag=SysFlag.COMPRESSED)
        )
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(log.ljust(262_144, b"\0"))
    settings = tiny_settings(hot__segment_bytes=None, hot__queue_file_units=None)
    return Store.open(tmp_path, settings=settings, read_only=True)


def test_a_pull_is_bounded_by_what_it_shows(engine: Store) -> None:
    offset, pages = 0, []
    while (page := engine.pull("t", 0, offset, 1_000)).messages:
        assert sum(len(message.readable_body()[0]) for message in page.messages) <= 5 << 20
        pages += [message.record.queue_offset for message in page.messages]
        offset = page.next_offset
    assert pages == list(range(_COUNT))


def test_a_page_of_a_query_is_bounded_by_what_it_shows(engine: Store) -> None:
    answer = engine.query(Query("t", None, 0, 1 << 62, limit=1_000))
    assert sum(len(message.readable_body()[0]) for message in answer.messages) <= 32 << 20
    assert 0 < len(answer.messages) < _COUNT
    assert answer.next_cursor is not None
