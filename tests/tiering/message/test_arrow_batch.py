"""Messages in Arrow columns become the batch, or the error, that they become one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.format.properties import SHARDING_KEY
from tierlog.tiering.format.record import MAX_PROPERTIES_BYTES
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.batch import BytesColumn, Message, MessageBatch

NOW_MS = 1_700_000_000_000
MAP = pa.map_(pa.string(), pa.string())


def texts(column: BytesColumn) -> list[bytes]:
    ends = zip(column.starts.tolist(), column.starts.tolist()[1:], strict=False)
    return [column.data[start:end].tobytes() for start, end in ends]


def shown(batch: MessageBatch) -> list[Any]:
    numbers = [batch.topic_index.tolist(), batch.queue_id.tolist(), batch.born_ms.tolist()]
    return [batch.topics, *numbers, *map(texts, (batch.body, batch.keys, batch.tags, batch.properties))]


def outcome(make: Any) -> Any:
    try:
        return shown(make())
    except InvalidRequestError as error:
        return type(error), str(error), error.position


text = st.text(st.sampled_from("ab ü\x01\x02\0"), max_size=4)
good = st.text(st.sampled_from("abü"), min_size=1, max_size=4)
rows = st.fixed_dictionaries(
    {
        "body": st.one_of(st.none(), st.binary(min_size=1, max_size=12), st.just(b"")),
        "keys": st.one_of(st.none(), st.lists(st.one_of(st.none(), text, good), max_size=3)),
        "tag": st.one_of(st.none(), text, good),
        "properties": st.one_of(
            st.none(),
            st.dictionaries(
                st.one_of(good, text, st.sampled_from(["KEYS", "x__CRC32#"])),
                st.one_of(st.none(), text, good),
                max_size=3,
            ),
        ),
        "born_ms": st.one_of(st.none(), st.integers(-2, 5), st.just(1 << 62)),
        "queue_id": st.one_of(st.none(), st.integers(-2, 3), st.just(1024)),
    }
)
good_rows = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=10),
        "keys": st.one_of(st.none(), st.lists(good, max_size=3)),
        "tag": st.one_of(st.none(), st.just(""), good),
        "properties": st.one_of(st.none(), st.dictionaries(good, good, max_size=3)),
        "born_ms": st.one_of(st.none(), st.integers(0, 5)),
        "queue_id": st.one_of(st.none(), st.integers(0, 3)),
    }
)


def queue_of(given: int | None) -> int:
    """A client leaves the choice by giving none, not by -1."""
    return -1 if given is None else given if given >= 0 else 1024


def table_of(found: list[dict[str, Any]], names: list[str], *, large: bool, cut: int) -> pa.Table:
    kinds = {
        "body": pa.large_binary() if large else pa.binary(),
        "keys": pa.large_list(pa.large_string()) if large else pa.list_(pa.string()),
        "tag": pa.large_string() if large else pa.string(),
        "properties": MAP,
        "born_ms": pa.int64(),
        "queue_id": pa.int64() if large else pa.int32(),
    }
    columns = {name: [row[name] for row in found] for name in names}
    if "properties" in columns:
        columns["properties"] = [None if one is None else list(one.items()) for one in columns["properties"]]
    whole = pa.table({name: pa.array(columns[name], kinds[name]) for name in names})
    return pa.concat_tables([whole.slice(0, cut), whole.slice(cut)]) if cut else whole.slice(0)


@given(
    found=st.one_of(st.lists(rows, min_size=1, max_size=5), st.lists(good_rows, min_size=1, max_size=8)),
    absent=st.sets(st.sampled_from(["keys", "tag", "properties", "born_ms", "queue_id"])),
    large=st.booleans(),
    cut=st.integers(0, 3),
)
def test_columns_are_the_same_as_messages(found: list[dict[str, Any]], absent: set[str], large: bool, cut: int) -> None:
    names = [name for name in found[0] if name not in absent]
    messages = ArrowMessages(table_of(found, names, large=large, cut=min(cut, len(found))), "t")

    def expected() -> MessageBatch:
        plain = [
            Message(
                "t",
                row["body"] or b"",
                [key or "" for key in (row["keys"] or ()) if "keys" in names],
                (row["tag"] or "") if "tag" in names else "",
                {name: value or "" for name, value in (row["properties"] or {}).items()}
                if "properties" in names
                else {},
                row["born_ms"] if "born_ms" in names else None,
                -1
                if row["queue_id"] is None or "queue_id" not in names
                else row["queue_id"]
                if row["queue_id"] >= 0
                else 1024,
            )
            for row in found
        ]
        return MessageBatch.of(plain, now_ms=NOW_MS, max_body_bytes=10)

    assert outcome(lambda: MessageBatch.of(messages, now_ms=NOW_MS, max_body_bytes=10)) == outcome(expected)
    assert len(list(messages)) == len(messages) == len(found)
    assert messages[-1] == list(messages)[-1]


@given(found=st.lists(good_rows, min_size=1, max_size=8), cut=st.integers(0, 3))
def test_good_columns_are_not_taken_apart(found: list[dict[str, Any]], cut: int) -> None:
    class Whole(ArrowMessages):
        def __iter__(self) -> Any:
            raise AssertionError("taken apart")

    table = table_of(found, list(found[0]), large=False, cut=min(cut, len(found)))
    assert len(MessageBatch.of(Whole(table, "t"), now_ms=NOW_MS, max_body_bytes=10)) == len(found)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_born_time_is_floored_to_ms(unit: str) -> None:
    per_ms = {"s": 0.001, "ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    value = int(5000 * per_ms) + (per_ms > 1)
    table = pa.table({"body": [b"x", b"y"], "born_time": pa.array([value, None], pa.timestamp(unit, "UTC"))})
    batch = ArrowMessages(table, "t").to_batch(now_ms=NOW_MS, max_body_bytes=10)
    assert batch.born_ms.tolist() == [5000, NOW_MS]


def test_messages_of_a_sharding_key_go_to_its_queue() -> None:
    table = pa.table({"body": [b"x", b"y"], "sharding_key": ["a", None]})
    batch = ArrowMessages(table, "t", lambda key: 3).to_batch(now_ms=0, max_body_bytes=10)
    assert batch.queue_id.tolist() == [3, -1]
    assert texts(batch.properties) == [f"{SHARDING_KEY}\x01a\x02".encode(), b""]
    both = table.append_column("queue_id", pa.array([1, 1], pa.int32()))
    with pytest.raises(InvalidRequestError, match="message 0: give either") as raised:
        ArrowMessages(both, "t", lambda key: 3).to_batch(now_ms=0, max_body_bytes=10)
    assert raised.value.position == 0


def test_lost_sectors_and_long_texts_are_refused_as_ever() -> None:
    for tags, kind in ((["a" * 40_000], MessageTooLargeError), (["a" + "\0" * 600], InvalidRequestError)):
        with pytest.raises(kind) as raised:
            ArrowMessages(pa.table({"body": [b"x"], "tag": tags}), "t").to_batch(now_ms=0, max_body_bytes=10)
        assert raised.value.position == 0


def test_a_text_that_is_too_long_only_as_a_whole_is_refused_and_long_ones_of_others_are_not_added_to_it() -> None:
    def table(rows: list[tuple[list[str], str, dict[str, str]]]) -> ArrowMessages:
        keys, tags, properties = zip(*rows, strict=True)
        columns = {"body": [b"x"] * len(rows), "keys": keys, "tag": tags, "properties": pa.array(properties, MAP)}
        return ArrowMessages(pa.table(columns), "t")

    # 12 bytes of names and separators, and 3 of a property beside its name and value: the most that fits
    keys, tag, rest = "k" * 12_000, "t" * 12_000, {"p": "r" * (MAX_PROPERTIES_BYTES - 24_000 - 12 - 3)}
    apart = table([([keys], "", {}), ([], tag, {}), ([], "", {"p": "r" * 20_000}), ([keys], tag, rest)])
    assert apart._columnar(NOW_MS, 10) is not None
    longer = table([(["k"], "", {}), ([keys], tag + "t", rest)])
    with pytest.raises(MessageTooLargeError) as raised:
        longer.to_batch(now_ms=0, max_body_bytes=10)
    assert raised.value.position == 1


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"keys": pa.array([["k"]])}, "no column 'body'"),
        ({"body": [b"x"], "colour": ["red"]}, "no column 'colour'"),
        ({"body": [1]}, "column 'body' is int64, not binary or string"),
        ({"body": pa.array(["x"]).dictionary_encode()}, "column 'body' is dictionary"),
        ({"body": pa.array(["x"], pa.string_view())}, "column 'body' is string_view"),
        ({"body": [b"x"], "keys": ["k"]}, "column 'keys' is string, not list<string>"),
        ({"body": [b"x"], "queue_id": [1.0]}, "column 'queue_id' is double, not int32"),
        ({"body": [b"x"], "queue_id": [1 << 40]}, "column 'queue_id'"),
        ({"body": [b"x"], "born_ms": [1], "born_time": pa.array([1], pa.timestamp("ms"))}, "either born_ms"),
    ],
)
def test_columns_that_no_message_has_are_one_error(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        ArrowMessages(pa.table(columns), "t")
