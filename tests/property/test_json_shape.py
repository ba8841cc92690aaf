"""What is counted in JSON before it is parsed is what a parser makes of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.tiering.kernels.json_codec import MOST_DEPTH, measure_value
from tierlog.tiering.kernels.primitives import address_of

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


def measure(text: bytes, start: int = 0, levels: int = MOST_DEPTH, most: int = 1_000_000) -> tuple[int, int, int]:
    """End, values, members of the widest object."""
    data = np.frombuffer(text or b" ", np.uint8)
    members, found = np.empty(MOST_DEPTH, np.int64), np.zeros(2, np.int64)
    end = measure_value(
        text=address_of(data),
        length=len(text),
        start=start,
        levels=levels,
        most_values=most,
        members=address_of(members),
        found=address_of(found),
    )
    values, widest = found.tolist()
    return end, values, widest


def counted(value: Any, levels: int) -> tuple[int, int]:
    """Values with the names of fields, and the widest object of so many levels."""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [*value, *value.values()]
    elif isinstance(value, list):
        inner = value
    found = [counted(one, levels - 1) for one in inner]
    own = len(value) if isinstance(value, dict) and levels > 0 else 0
    return 1 + sum(values for values, _ in found), max([own, *(widest for _, widest in found)])


@given(_VALUES, st.integers(0, 4), st.sampled_from([None, 1]), st.booleans())
def test_a_value_is_counted_to_its_end(value: object, levels: int, indent: int | None, plain: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=plain).encode(errors="surrogatepass")
    for behind in (b"", b",1", b"]", b"} ", b"\n1"):
        assert measure(b"[ " + text + behind, 1, levels) == (2 + len(text), *counted(value, levels))


@given(_VALUES, st.data())
def test_text_that_ends_anywhere_or_is_damaged_is_looked_at_within_its_bounds(
    value: object, data: st.DataObject
) -> None:
    text = json.dumps(value).encode()
    cut = text[: data.draw(st.integers(0, len(text)))]
    assert 0 <= measure(cut)[0] <= len(cut)
    place, byte = data.draw(st.integers(0, len(text) - 1)), data.draw(st.binary(min_size=1, max_size=1))
    assert 0 <= measure(text[:place] + byte + text[place + 1 :])[0] <= len(text)


def test_more_values_or_levels_than_are_taken_end_the_counting() -> None:
    ones = b"[" + b"1," * 99 + b"1]"
    assert measure(ones, most=101) == (len(ones), 101, 0)
    assert measure(ones, most=100)[0] == -1
    assert measure(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)[:2] == (2 * MOST_DEPTH, MOST_DEPTH)
    assert measure(b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1))[0] == -1
    assert measure(b"[" * 1_000_000)[0] == -1


@pytest.mark.parametrize(
    ("text", "end"), [(b"", 0), (b"  ", 2), (b",", 0), (b"]", 0), (b'"\\', 2), (b'"\\"', 3), (b"[", 1)]
)
def test_where_no_value_is_the_counting_goes_no_further(text: bytes, end: int) -> None:
    assert measure(text)[0] == end
