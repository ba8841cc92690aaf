"""Archives and queriers opened by a program, without a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog import Archive, Message, Querier, Query, Store
from tierlog.tiering.base.errors import TopicNotFoundError


@pytest.fixture
def cold(tmp_path: Path) -> str:
    """An archive with one message."""
    url = f"file://{tmp_path}/cold"
    with Store.open(tmp_path / "store", cold_url=url) as store:
        store.append([Message("orders", b"paid", keys=["4711"])])
        store.archive(everything=True)
    return url


def test_a_querier_reads_an_archive_with_the_settings_of_the_environment(cold: str) -> None:
    with Archive.open(cold) as archive, Querier.open(None, [cold]) as querier:
        for reader in (archive, querier):
            found = reader.query(Query("orders", key="4711"))
            assert [message.record.body for message in found.messages] == [b"paid"]
            assert found.coverage.complete
            assert [topic.name for topic in reader.topics()] == ["orders"]


def test_what_no_store_has_is_not_found_by_any_reader(cold: str) -> None:
    with Archive.open(cold) as archive, Querier.open(None, [cold]) as querier:
        for reader in (archive, querier):
            with pytest.raises(TopicNotFoundError):
                reader.topic("payments")
