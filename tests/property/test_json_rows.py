"""JSON that becomes columns is the messages that the model makes of it; what the model refuses becomes none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.service.api.json_messages import (
    MOST_AT_ONCE_BYTES,
    parsed_document,
    parsed_lines,
    read_columns,
    table_of_document,
    table_of_lines,
)
from tierlog.service.api.message_bodies import message_of
from tierlog.service.api.schemas.messages import MessageIn, MessagesIn
from tierlog.tiering.message.arrow_input import ArrowMessages
from tierlog.tiering.message.batch import BORN_END_MS, Message


def _queue_of(sharding_key: str) -> int:
    return len(sharding_key)


def _same(messages: Sequence[Message], models: list[MessageIn]) -> bool:
    wanted = [message_of(one, "topic", _queue_of) for one in models]
    found = list(messages)
    return all(
        (one.body, list(one.keys), one.tag, dict(one.properties), one.born_ms, one.queue_id)
        == (other.body, list(other.keys), other.tag, dict(other.properties), other.born_ms, other.queue_id)
        for one, other in zip(found, wanted, strict=True)
    )


def _check_document(document: bytes) -> bool:
    """Whether columns were made, which are then the model's messages, by whichever way they were made."""
    tables = read_columns(document, is_lines=False), parsed_document(document, _queue_of)
    found = [table for table in tables if table is not None]
    for table in found:
        table.validate(full=True)
        assert _same(ArrowMessages(table, "topic"), MessagesIn.model_validate_json(document).messages)
    assert (table_of_document(document, _queue_of) is not None) == bool(found)
    return bool(found)


def _check_lines(lines: list[bytes]) -> bool:
    body = b"\n".join(lines)
    tables = read_columns(body, is_lines=True), parsed_lines(lines, _queue_of)
    found = [table for table in tables if table is not None]
    for table in found:
        table.validate(full=True)
        models = [MessageIn.model_validate_json(line) for line in lines if line.strip()]
        assert _same(ArrowMessages(table, "topic"), models)
    assert (table_of_lines(body, _queue_of) is not None) == bool(found)
    return bool(found)


_TEXTS = st.text(max_size=4)
_RIGHT = st.fixed_dictionaries(
    {"body": st.text(min_size=1, max_size=8)},
    optional={
        "keys": st.lists(_TEXTS, max_size=3),
        "tag": _TEXTS,
        "properties": st.dictionaries(_TEXTS, _TEXTS, max_size=3),
        "born_ms": st.none() | st.integers(0, BORN_END_MS - 1),
        "sharding_key": st.text(min_size=1, max_size=3),
    },
) | st.fixed_dictionaries(
    {"body_base64": st.sampled_from(["", "AA==", "/wA="])},
    optional={"body": st.none(), "queue_id": st.none() | st.integers(0, 1023), "sharding_key": st.none()},
)
_ODD_VALUE = st.one_of(
    st.none(), st.booleans(), st.sampled_from([-1, 1023, 1024, 1 << 62, 1 << 63, 1 << 64, 1 << 200]), _TEXTS,
    st.floats(), st.lists(st.none() | _TEXTS | st.integers(), max_size=2),
    st.dictionaries(_TEXTS, st.none() | _TEXTS | st.lists(_TEXTS, max_size=1), max_size=2),
)  # fmt: skip
_FIELDS = [*MessageIn.model_fields, "bodies"]


@given(st.lists(_RIGHT, min_size=1, max_size=5))
def test_whatever_is_in_order_becomes_columns(rows: list[dict[str, Any]]) -> None:
    assert _check_document(json.dumps({"messages": rows}).encode())
    assert _check_lines([json.dumps(row, ensure_ascii=False).encode() for row in rows])


@given(st.lists(_RIGHT, min_size=1, max_size=3), st.dictionaries(st.sampled_from(_FIELDS), _ODD_VALUE, min_size=1))
def test_odd_values_become_no_columns_that_the_model_would_refuse(
    rows: list[dict[str, Any]], odd: dict[str, Any]
) -> None:
    rows = [*rows, {**rows[0], **odd}]
    _check_document(json.dumps({"messages": rows}).encode())
    _check_lines([json.dumps(row).encode() for row in rows])


@given(_RIGHT, st.data())
def test_damaged_json_becomes_no_columns_that_the_model_would_refuse(row: dict[str, Any], data: st.DataObject) -> None:
    document = json.dumps({"messages": [row]}).encode()
    start = data.draw(st.integers(0, len(document)))
    end = data.draw(st.integers(start, min(len(document), start + 4)))
    damage = data.draw(st.sampled_from([b"", b"\x00", b"\xff", b"\\ud800", b'"', b"{", b"}", b",", b"NaN", b"1e9"]))
    _check_document(document[:start] + damage + document[end:])


@pytest.mark.parametrize(
    "document",
    [
        b'{"messages":[{"body":"a"}],"messages":[{"body":"b"}]}',
        b'{"messages":[{"tag":5,"tag":"x","body":"a"}]}',
        b'{"messages":[{"body":"a","properties":{"a":"b","a":"c"}}]}',
        b'{"messages":[{"bodies":1,"body":"a"}]}',
        b'{"messages":[{"body":"a","born_ms":8.0}]}',
        b'{"messages":[{"body":"a","born_ms":8e400}]}',
        b'{"messages":[{"body":"a","born_ms":NaN}]}',
        b'{"messages":[{"body":"\\ud800"}]}',
        b'{"messages":[{"body":"a","keys":' + b"[" * 1000 + b"]" * 1000 + b"}]}",
        b'{"messages":[]}',
        b'{"messages":{}}',
        b'[{"body":"a"}]',
        b"",
    ],
)
def test_where_parsers_differ_the_model_decides(document: bytes) -> None:
    _check_document(document)


def test_of_a_property_that_is_given_twice_the_last_value_counts_whatever_the_first_was() -> None:
    """The one thing that the model would refuse: parsed, the first value is gone."""
    table = parsed_document(b'{"messages":[{"body":"a","properties":{"a":1,"a":"b"}}]}', _queue_of)
    assert table is not None
    assert next(iter(ArrowMessages(table, "topic"))).properties == {"a": "b"}


@pytest.mark.parametrize("lines", [[b'{"body":"a"},{"body":"b"}'], [b'{"body":"a"', b',"tag":"b"}'], [b" ", b""]])
def test_a_line_is_a_message_whole_and_alone(lines: list[bytes]) -> None:
    assert parsed_lines(lines, _queue_of) is None
    if lines[0].startswith(b"{") and len(lines) == 1:
        assert read_columns(lines[0], is_lines=True) is None


def test_what_is_too_large_to_be_parsed_at_once_is_left_to_the_model() -> None:
    row = json.dumps({"body": "x" * MOST_AT_ONCE_BYTES}).encode()
    assert parsed_document(b'{"messages":[' + row + b"]}", _queue_of) is None
    assert parsed_lines([row], _queue_of) is None


def test_lines_of_many_pieces_are_columns_in_their_order() -> None:
    lines = [b'{"body":"%d"%s}' % (number, b',"tag":"t"' if number > 9_000 else b"") for number in range(10_000)]
    for table in (parsed_lines(lines, _queue_of), read_columns(b"\n".join(lines), is_lines=True)):
        _check_pieces(table)


def _check_pieces(table: pa.Table | None) -> None:
    assert table is not None
    assert [column.num_chunks for column in table.columns] == [1, 1]
    assert table.column("body").cast(pa.string()).to_pylist() == [str(number) for number in range(10_000)]
    assert [tag or "" for tag in table.column("tag").to_pylist()[8_999:9_003]] == ["", "", "t", "t"]


_ORDINARY = st.fixed_dictionaries(
    {"body": st.text(st.characters(exclude_categories=["Cs"]), max_size=30)},
    optional={
        "keys": st.lists(_TEXTS, max_size=3),
        "tag": _TEXTS,
        "properties": st.dictionaries(_TEXTS, _TEXTS, max_size=3),
        "born_ms": st.integers(0, BORN_END_MS - 1),
        "queue_id": st.integers(0, 1023),
    },
)
_BLANKS = st.sampled_from([None, 0, 1, 3])


@given(st.lists(_ORDINARY, min_size=1, max_size=5), _BLANKS)
def test_what_is_ordinary_is_read_without_objects(rows: list[dict[str, Any]], indent: int | None) -> None:
    document = json.dumps({"messages": rows}, ensure_ascii=False, indent=indent).encode()
    assert read_columns(document, is_lines=False) is not None
    assert _check_document(document)
    lines = [b"", *(json.dumps(row, ensure_ascii=False).encode() + b" \r" for row in rows), b"\t"]
    assert read_columns(b"\n".join(lines), is_lines=True) is not None
    assert _check_lines(lines)


@given(st.lists(_ORDINARY, min_size=1, max_size=2), st.data())
def test_escapes_are_read_and_any_other_is_left(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    escapes = data.draw(st.text(st.sampled_from('\\"/bfnrtu0189aAfFdDg'), max_size=12))
    _check_document(json.dumps({"messages": rows}).encode())
    _check_lines([b'{"body":"%s","tag":"%s"}' % (escapes.encode(), escapes[:7].encode())])


@given(st.lists(_ORDINARY, min_size=1, max_size=3), st.data())
def test_text_that_is_cut_off_or_damaged_anywhere_is_read_within_its_bounds(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    document = json.dumps({"messages": rows}, ensure_ascii=False).encode()
    cut = data.draw(st.integers(0, len(document)))
    _check_document(document[:cut])
    place, byte = data.draw(st.integers(0, len(document) - 1)), data.draw(st.binary(min_size=1, max_size=1))
    _check_document(document[:place] + byte + document[place + 1 :])
    lines = document[13:-2]
    _check_lines([lines[:cut], lines[cut:]])
    _check_lines([lines[:place] + byte + lines[place + 1 :]])
