"""Wrong input and wrong stores get a clear error, and nothing on the disk or in the archive has changed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import (
    FencedError,
    InvalidRequestError,
    MessageTooLargeError,
    ReadOnlyError,
    StoreLockedError,
    StoreMismatchError,
    TopicNotFoundError,
)
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.local import LocalObjectStore
from tierlog.tiering.objects.metered import Meter, MeteredObjectStore


def everything_below(folder: Path) -> dict[str, str]:
    """Every file with a digest of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def open_engine(folder: Path, name: str = "store", settings: Settings | None = None) -> Store:
    return Store.open(
        folder / name, settings=settings or tiny_settings(), cold_url=f"file://{folder}/cold", clock=ManualClock()
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    opened = open_engine(tmp_path)
    opened.append([Message("orders", b"first", ["k1"])])
    opened.flush()  # queues and index are derived: what a question finds to do is done
    yield opened
    opened.close()


GOOD = Message("orders", b"good", ["k2"])

BAD_MESSAGES = {
    "empty body": (Message("orders", b""), "empty body"),
    "body over 4 MiB": (Message("orders", bytes(4 * 1024 * 1024 + 1)), "over the limit of 4194304"),
    "record larger than a segment": (Message("orders", bytes(66_000)), "does not fit a segment"),
    "topic with a slash": (Message("a/b", b"x"), "bad topic name"),
    "empty topic": (Message("", b"x"), "bad topic name"),
    "topic of 128 characters": (Message("t" * 128, b"x"), "bad topic name"),
    "key with a space": (Message("orders", b"x", ["a b"]), "bad key"),
    "empty key": (Message("orders", b"x", [""]), "bad key"),
    "key with a separator": (Message("orders", b"x", ["a\x01b"]), "bad key"),
    "property text over its limit": (Message("orders", b"x", properties={"p": "v" * 32_800}), "32767"),
    "keys over the property limit": (Message("orders", b"x", [f"key-{n:06d}" for n in range(3_000)]), "32767"),
    "half a surrogate pair as a key": (Message("orders", b"x", ["\ud800"]), "not valid Unicode"),
    "KEYS as a property": (Message("orders", b"x", properties={"KEYS": "a"}), "field of its own"),
}


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_one_bad_message_refuses_its_batch_and_changes_nothing(case: str, engine: Store, tmp_path: Path) -> None:
    bad, text = BAD_MESSAGES[case]
    before = everything_below(tmp_path)
    with pytest.raises(InvalidRequestError, match=text) as refused:
        engine.append([GOOD, bad, GOOD])
    assert refused.value.position == 1
    assert "message 1" in str(refused.value)
    assert everything_below(tmp_path) == before
    assert engine.read_only_reason is None
    assert [each.queue_offset for each in engine.append([GOOD])] == [0]


def test_body_over_its_limit_is_its_own_error(engine: Store) -> None:
    with pytest.raises(MessageTooLargeError):
        engine.append([Message("orders", bytes(4 * 1024 * 1024 + 1))])


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda e: e.query(Query("nobody", "k")), TopicNotFoundError),
        (lambda e: e.pull("nobody", 0, 0, 1), TopicNotFoundError),
        (lambda e: e.pull("orders", 99, 0, 1), TopicNotFoundError),
        (lambda e: e.topic("nobody"), TopicNotFoundError),
        (lambda e: e.query(Query("orders", None, 2_000, 1_000)), InvalidRequestError),
        (lambda e: e.query(Query("orders", None, 1_000, 1_000)), InvalidRequestError),
        (lambda e: e.query(Query("orders", "a b")), InvalidRequestError),
        (lambda e: e.query(Query("orders", "k", limit=0)), InvalidRequestError),
        (lambda e: e.query(Query("orders", "k", limit=10_001)), InvalidRequestError),
        (lambda e: e.query(Query("orders", "k", cursor="nonsense")), InvalidRequestError),
    ],
)
def test_bad_question_is_refused_and_makes_nothing(
    ask: Callable[[Store], object], error: type[Exception], engine: Store, tmp_path: Path
) -> None:
    before = everything_below(tmp_path)
    with pytest.raises(error):
        ask(engine)
    assert everything_below(tmp_path) == before
    assert [topic.name for topic in engine.topics()] == ["orders"]


def test_root_that_another_process_holds_is_refused_with_its_holder(engine: Store, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tierlog.service.engine.store import Store\n"
        "from tests.support.stores.engines import tiny_settings\n"
        "Store.open(Path(sys.argv[1]), settings=tiny_settings())"
    )
    before = everything_below(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert "StoreLockedError" in ran.stderr
    assert "another process holds the store: pid " in ran.stderr
    assert everything_below(tmp_path) == before


def test_root_that_this_process_holds_is_refused(engine: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreLockedError):
        open_engine(tmp_path)


@pytest.mark.parametrize(
    "settings", [{"hot__segment_bytes": 131_072}, {"hot__queue_file_units": 61}], ids=["segment", "queue file"]
)
def test_store_opened_with_other_sizes_is_refused_unchanged(
    settings: dict[str, object], engine: Store, tmp_path: Path
) -> None:
    engine.close()
    before = everything_below(tmp_path)
    with pytest.raises(StoreMismatchError, match="the store was made with"):
        open_engine(tmp_path, settings=tiny_settings(**settings))
    assert everything_below(tmp_path) | {"store/lock": ""} == before | {"store/lock": ""}


def test_store_opened_with_another_cold_url_is_refused_unchanged(engine: Store, tmp_path: Path) -> None:
    engine.close()
    before = everything_below(tmp_path)
    with pytest.raises(StoreMismatchError, match="cold URL"):
        Store.open(tmp_path / "store", settings=tiny_settings(), cold_url=f"file://{tmp_path}/elsewhere")
    assert everything_below(tmp_path) | {"store/lock": ""} == before | {"store/lock": ""}


def test_archive_that_another_volume_owns_is_refused_unchanged(tmp_path: Path) -> None:
    first = Store.open(tmp_path / "a", settings=tiny_settings(), cold_url=f"file://{tmp_path}/cold", store_id="shop")
    first.append([GOOD])
    first.archive(everything=True)
    first.close()
    before = everything_below(tmp_path / "cold")
    with pytest.raises(StoreMismatchError, match="belongs to volume"):
        Store.open(tmp_path / "b", settings=tiny_settings(), cold_url=f"file://{tmp_path}/cold", store_id="shop")
    assert everything_below(tmp_path / "cold") == before
    assert not (tmp_path / "b").exists()
    # the directory is not spoilt: another store id opens
    Store.open(tmp_path / "b", settings=tiny_settings(), cold_url=f"file://{tmp_path}/cold", store_id="shop-b").close()


def test_of_two_copies_of_a_volume_only_the_first_to_write_continues(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    engine.append([GOOD])
    engine.archive(everything=True)
    engine.close()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    original = open_engine(tmp_path)
    original.append([GOOD])
    original.archive(everything=True)
    original.close()
    with pytest.raises(FencedError, match="copy of this volume"):
        open_engine(tmp_path, "copy")


def test_copy_that_was_open_already_is_fenced_and_turns_read_only(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    engine.append([GOOD])
    engine.archive(everything=True)
    engine.close()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    copy, original = open_engine(tmp_path, "copy"), open_engine(tmp_path)
    try:
        original.append([GOOD])
        original.archive(everything=True)
        copy.append([GOOD])
        with pytest.raises(FencedError):
            copy.archive(everything=True)
        with pytest.raises(ReadOnlyError):
            copy.append([GOOD])
        assert len(copy.query(Query("orders", "k2")).messages) == 2
    finally:
        copy.close()
        original.close()


def test_read_only_opening_changes_nothing_and_takes_no_lock(engine: Store, tmp_path: Path) -> None:
    engine.append([GOOD] * 10)
    before = everything_below(tmp_path)
    reader = Store.open(tmp_path / "store", settings=tiny_settings(), read_only=True)
    assert len(reader.query(Query("orders", "k2")).messages) == 10
    assert reader.check(deep=True) == []
    for write in (lambda: reader.append([GOOD]), lambda: reader.archive(everything=True), reader.flush):
        with pytest.raises(ReadOnlyError):
            write()
    reader.close()
    assert everything_below(tmp_path) == before


def test_idle_store_notices_that_its_copy_took_over(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    engine.append([GOOD])
    engine.archive(everything=True)
    engine.close()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    clock = ManualClock()
    objects = MeteredObjectStore(LocalObjectStore(tmp_path / "cold", clock), meter := Meter())
    idle = Store.open(tmp_path / "copy", settings=tiny_settings(), clock=clock, objects=objects)
    original = open_engine(tmp_path)
    try:
        idle.run_tiers()
        before = meter.requests
        for _ in range(9):
            clock.advance(1_000)
            idle.run_tiers()
        assert meter.requests == before  # an idle store asks once in 10 s, not once a round
        original.append([GOOD])
        original.archive(everything=True)
        clock.advance(1_001)
        with pytest.raises(FencedError):
            idle.run_tiers()
        with pytest.raises(ReadOnlyError):
            idle.append([GOOD])
    finally:
        idle.close()
        original.close()
