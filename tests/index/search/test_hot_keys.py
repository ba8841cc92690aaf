"""Looking up hot keys says what it covers, refuses what it cannot answer, and sees nothing that came later."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.index.hot_look_ups import hot_keys_of, index_of, segment_of
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import record
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import InvalidRequestError, TopicNotFoundError, UnavailableError
from tierlog.tiering.format.properties import decode_properties
from tierlog.tiering.format.record import SysFlag, encode_record
from tierlog.tiering.message.batch import Message


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Store]:
    engine = Store.open(tmp_path / "store", settings=tiny_settings(), cold_url=f"file://{tmp_path}/archive")
    engine.append([Message("t", b"body %d" % number, [f"k{number % 7}"], "A") for number in range(2000)])
    yield engine
    engine.close()


def test_rows_are_in_the_order_of_the_keys_and_each_keys_newest_first(engine: Store) -> None:
    with engine.hot_keys("t") as hot:
        batch = hot.look_up(["k3", "none", "k0"], limit=2).batch
    assert batch["key"].to_pylist() == [0, 0, 2, 2]
    assert batch["body"].to_pylist() == [b"body 1998", b"body 1991", b"body 1995", b"body 1988"]
    assert decode_properties(batch["properties"][0].as_py())["KEYS"] == "k3"
    with engine.hot_keys("t") as hot:
        found = hot.get("k3")
    assert found is not None
    stored = engine.message(found.message().record.message_id)
    assert stored == found.message()
    first = {name: column[0] for name, column in batch.to_pydict().items()}
    for name in ("physical_offset", "queue_id", "queue_offset", "store_ms", "born_ms"):
        assert first[name] == getattr(stored.record, name), name


@pytest.mark.parametrize(
    "keys",
    [
        ["k3", "k4"], [b"k3", b"k4"], pa.array(["no", "k3", "k4"])[1:], pa.array(["k3", "k4"], pa.large_string()),
        pa.array(["k3", "k4"]).dictionary_encode(),
    ],
)  # fmt: skip
def test_keys_are_text_or_bytes_in_a_list_or_an_arrow_array(engine: Store, keys: pa.Array) -> None:
    with engine.hot_keys("t") as hot:
        assert hot.look_up(keys).batch["body"].to_pylist() == [b"body 1998", b"body 1999"]


def test_what_is_no_key_is_refused(engine: Store) -> None:
    with engine.hot_keys("t") as hot:
        for wrong in ([None], ["a", None], [3], ["\ud800"]):
            with pytest.raises(InvalidRequestError):
                hot.look_up(wrong)
        with pytest.raises(InvalidRequestError):
            hot.get("\ud800")
        for limit in (0, -1, 1 << 40):
            with pytest.raises(InvalidRequestError):
                hot.look_up(["a"], limit=limit)
        assert len(hot.look_up([])) == 0
        assert hot.get("k" * 70_000) is None
        assert len(hot.look_up(["k" * 70_000])) == 0
    with pytest.raises(TopicNotFoundError), engine.hot_keys("other"):
        pass


def test_it_covers_what_is_hot_when_it_begins_and_says_so(engine: Store) -> None:
    engine.archive(everything=True, drop_hot=True)
    engine.append([Message("t", b"hot", ["k0"])])
    with engine.hot_keys("t") as hot:
        engine.append([Message("t", b"later", ["k0", "k1"])])
        found = hot.look_up(["k0", "k1"])
        assert found.batch["body"].to_pylist() == [b"hot"]
        assert (found.border, found.end) == (hot.border, hot.end)
        assert found.border == engine._hot.border > 0
        assert hot.get("k1") is None
    with engine.hot_keys("t") as hot:
        assert hot.border < hot.end == engine._hot.log.end
        assert hot.look_up(["k0", "k1"]).batch["body"].to_pylist() == [b"later", b"later"]


def test_maps_outlast_the_files_that_they_are_of(engine: Store) -> None:
    with engine.hot_keys("t") as hot:
        pass
    engine.archive(everything=True, drop_hot=True)
    assert hot.look_up(["k3"]).batch["body"].to_pylist() == [b"body 1998"]


def test_an_index_that_is_derived_again_is_no_answer(engine: Store) -> None:
    engine.flush()
    engine._index.put_aside()
    engine._index.discard(engine._index.files()[0])
    with pytest.raises(UnavailableError, match="derived again"), engine.hot_keys("t"):
        pass


def test_compressed_bodies_come_inflated(tmp_path: Path) -> None:
    segment, end = segment_of([("t", b"KEYS\x01a\x02", 30, False)], 0)
    packed = record(
        topic="t", body=zlib.compress(b"long" * 100), physical_offset=end, properties_text=b"KEYS\x01a\x02",
        sys_flag=int(SysFlag.COMPRESSED),
    )  # fmt: skip
    raw = encode_record(packed)
    segment.data[end : end + len(raw)] = np.frombuffer(raw, np.uint8)
    end += len(raw)
    hot = hot_keys_of([segment], [index_of(segment, end, tmp_path / "f")], end)
    assert hot.look_up(["a"], limit=2).batch["body"].to_pylist() == [b"long" * 100, bytes(30)]
    newest = hot.get("a")
    assert newest is not None
    assert newest.body == b"long" * 100
