"""Filters by tag, text and field: what passes, and that no body makes them fail."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.hot_stores import record
from tierlog.index.search.filters import (
    MOST_FILTER_BYTES,
    MOST_FILTERS,
    MOST_JSON_BYTES,
    MOST_PATH_NAMES,
    MessageFilters,
    parse_where,
)
from tierlog.index.search.query import Query
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import SysFlag
from tierlog.tiering.message.stored_message import StoredMessage


def message(body: bytes = b"", sys_flag: int = 0, **properties: str) -> StoredMessage:
    changes = {"body": body, "sys_flag": sys_flag, "properties_text": encode_properties(properties)}
    return StoredMessage(record(**changes), "a", Tier.HOT)


def passes(found: StoredMessage, *where: str, contains: tuple[str, ...] = (), tag: str | None = None) -> bool:
    filters = MessageFilters.of(tag, contains, tuple(map(parse_where, where)))
    return filters is None or filters.match(found)


def test_a_tag_expression_means_what_it_means_in_a_pull() -> None:
    paid = message(TAGS="paid")
    assert passes(paid, tag="paid")
    assert passes(paid, tag="sent || paid")
    assert passes(paid, tag="*")
    assert not passes(paid, tag="pai")
    assert not passes(message(), tag="paid")


def test_texts_are_bytes_of_the_body_and_all_of_them_must_be_there() -> None:
    found = message("größer\x00".encode() + b"\xff")
    assert passes(found, contains=("öß", "er\x00"))
    assert not passes(found, contains=("öß", "OSS"))
    assert not passes(message(KEYS="k1"), contains=("k1",)), "a key is not in the body"


def test_a_compressed_body_is_searched_as_it_was_sent() -> None:
    body = json.dumps({"order": {"id": 4711}}).encode()
    found = message(zlib.compress(body), SysFlag.COMPRESSED)
    assert passes(found, "order.id=4711", contains=('"id"',))
    assert not passes(message(b"no zlib", SysFlag.COMPRESSED), "order.id=4711")


@pytest.mark.parametrize(
    ("body", "where", "is_found"),
    [
        ('{"a": "x"}', "a=x", True),
        ('{"a": {"b": {"c": "x"}}}', "a.b.c=x", True),
        ('{"a": {"b.c": "x"}}', "a.b.c=x", True),
        ('{"a.b": {"c": "x"}}', "a.b.c=x", True),
        ('{"a": {"b": 1}, "a.b": 2}', "a.b=1", True),
        ('{"a": 4711}', "a=4711", True),
        ('{"a": "4711"}', "a=4711", True),
        ('{"a": 12.50}', "a=12.50", True),
        ('{"a": 12.50}', "a=12.5", False),
        ('{"a": true}', "a=true", True),
        ('{"a": null}', "a=null", True),
        ('{"a": "\\u0078"}', "a=x", True),
        ('{"a": "\\ud83d\\ude00"}', "a=😀", True),
        ('{"a": "p=q"}', "a=p=q", True),
        ('{"a": ""}', "a=", True),
        ('{"a": "x"} trailing', "a=x", False),
        ('{"a": ["x"]}', "a=x", False),
        ('{"a": {"b": "x"}}', "a=x", False),
        ('[{"a": "x"}]', "a=x", False),
        ('{"a": NaN}', "a=NaN", False),
        ('{"a": "xy"}', "a=x", False),
        (' \n{"a": "x"}', "a=x", True),
    ],
)
def test_a_field_of_a_json_body_is_compared_by_its_text(body: str, where: str, is_found: bool) -> None:
    assert passes(message(body.encode()), where) == is_found


def test_a_property_is_a_field_whatever_the_body_is() -> None:
    found = message(b'{"region": "us"}', region="eu")
    assert passes(found, "region=eu")
    assert passes(found, "region=us")
    assert not passes(found, "region=eu", "region=de")
    assert not passes(message(b"text", KEYS="k"), "KEYS=k"), "keys are no property"


def test_a_body_too_long_or_too_deep_to_take_apart_matches_by_its_properties_alone() -> None:
    long = b'{"a": "x", "b": "' + b"y" * MOST_JSON_BYTES + b'"}'
    deep = b'{"a": "x", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    nested = b'{"a":' * 100_000 + b'"x"' + b"}" * 100_000
    wide = b'{"a": 1' + b"0" * 10_000 + b"}"
    for body in (long, deep, nested):
        assert not passes(message(body), "a=x")
        assert passes(message(body, a="x"), "a=x")
    assert passes(message(wide), "a=1" + "0" * 1000) is False
    assert not passes(message(b'{"a": "\\ud800"}'), "a=x")


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0123eEtrue null.a', max_size=60).map(str.encode), st.text())
def test_no_body_and_no_name_makes_a_filter_fail(body: bytes, value: str) -> None:
    filters = MessageFilters.of(None, (), (("a.b", value), ("..", value)))
    assert filters is not None
    filters.match(message(body))


@pytest.mark.parametrize(
    "bad",
    [
        {"contains": ("",)}, {"contains": ("x" * (MOST_FILTER_BYTES + 1),)}, {"contains": ("\ud800",)},
        {"contains": ("x",) * (MOST_FILTERS + 1)}, {"where": (("", "x"),)}, {"where": (("a=b", "x"),)},
        {"where": ((".".join("a" * (MOST_PATH_NAMES + 1)), "x"),)},
        {"where": (("a", "x"),) * (MOST_FILTERS + 1)}, {"where": (("a", "\udfff"),)}, {"tag": "||"},
    ],
)  # fmt: skip
def test_filters_that_mean_nothing_are_refused_before_anything_is_read(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        Query("orders", **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "region", "=eu"])
def test_a_field_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="name=value"):
        parse_where(text)
