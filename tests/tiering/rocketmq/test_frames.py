"""Frames: what is written is read, in whatever pieces it comes, and whatever else comes is refused or passed over."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.rocketmq.frames import (
    Frame,
    FrameReader,
    HeaderForm,
    decode_frame,
    encode_frame,
    encode_head,
)

_INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_FRAMES = st.builds(
    Frame,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    opaque=_INT32,
    flag=st.integers(0, 3),
    fields=st.dictionaries(_TEXT, _TEXT, max_size=8),
    body=st.binary(max_size=200),
    remark=st.none() | _TEXT.filter(bool),
    language=st.sampled_from(["JAVA", "GO", "OTHER", "PYTHON"]),
    version=st.integers(0, 1000),
    form=st.sampled_from(HeaderForm),
)


@given(frames=st.lists(_FRAMES, max_size=5), cuts=st.lists(st.integers(1, 60), max_size=40))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, frames))
    reader, found = FrameReader(1 << 20), list[Frame]()
    for cut in [*cuts, len(data)]:
        piece, data = data[:cut], data[cut:]
        found += reader.feed(piece)
    assert found == frames
    assert reader.held_bytes == 0


@given(data=st.binary(max_size=300))
def test_any_bytes_are_frames_or_are_refused(data: bytes) -> None:
    reader = FrameReader(1 << 16)
    try:
        for frame in reader.feed(data):
            assert isinstance(frame, Frame)
    except InvalidRequestError:
        return
    assert reader.held_bytes <= len(data)


@given(
    header=st.binary(max_size=120) | st.builds(lambda document: json.dumps(document).encode(), st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["code", "opaque", "flag", "extFields", "version", "x"]), inner, max_size=6),
    )),
    form=st.integers(0, 3),
    body=st.binary(max_size=20),
)  # fmt: skip
def test_any_header_is_read_or_refused(header: bytes, form: int, body: bytes) -> None:
    data = struct.pack(">iI", 4 + len(header) + len(body), form << 24 | len(header)) + header + body
    try:
        frame = decode_frame(data)
    except InvalidRequestError:
        return
    assert frame.body == body
    assert all(isinstance(text, str) for pair in frame.fields.items() for text in pair)


@given(frame=_FRAMES, at=st.integers(0, 400), value=st.integers(0, 255))
def test_a_changed_byte_is_another_frame_or_is_refused(frame: Frame, at: int, value: int) -> None:
    data = bytearray(encode_frame(frame))
    data[at % len(data)] = value
    reader = FrameReader(1 << 16)
    try:
        found = list(reader.feed(bytes(data)))
    except InvalidRequestError:
        return
    assert len(found) <= 1 or at % len(data) < 4  # a shorter length leaves bytes that may begin another


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 3, 65_537, (1 << 31) - 1])
def test_a_length_that_cannot_be_ends_the_connection(size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"a frame of {size} bytes"):
        list(FrameReader(1 << 16).feed(struct.pack(">iI", size, 0)))


def test_a_header_that_is_longer_than_its_frame_is_refused_before_it_comes() -> None:
    with pytest.raises(InvalidRequestError, match="a header of 16777215 bytes in a frame of 100"):
        list(FrameReader(1 << 16).feed(struct.pack(">iI", 100, 0xFFFFFF)))


def test_a_frame_that_is_too_long_is_refused_by_its_first_bytes() -> None:
    reader = FrameReader(1 << 16)
    with pytest.raises(InvalidRequestError, match=r"max_frame_bytes is 65536"):
        list(reader.feed(struct.pack(">iI", 1 << 20, 10)))
    assert reader.held_bytes == 0


def test_a_half_frame_holds_its_own_bytes_only() -> None:
    data = encode_frame(Frame(10, 1, body=bytes(1000)))
    reader = FrameReader(1 << 16)
    assert list(reader.feed(data + data[:500])) == [decode_frame(data)]
    assert reader.held_bytes == 500


def test_json_is_written_without_blanks_and_with_its_names_in_order() -> None:
    """The Go client looks for addresses by their place in the text."""
    head = encode_head(Frame(0, 7, 1, {"a": "b c"}, remark="why"), 0)
    assert head[8:] == (
        b'{"code":0,"extFields":{"a":"b c"},"flag":1,"language":"OTHER","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":493,"remark":"why"}'
    )


def test_fields_that_java_writes_as_numbers_are_texts() -> None:
    header = b'{"code":11,"opaque":1,"extFields":{"queueId":3,"suspend":true,"none":null,"text":"x"}}'
    frame = decode_frame(struct.pack(">iI", 4 + len(header), len(header)) + header)
    assert frame.fields == {"queueId": "3", "suspend": "true", "text": "x"}
    assert frame.fault is None


@pytest.mark.parametrize("fields", ['{"a":{}}', '{"a":[1]}', "[]", '"text"', "7"])
def test_fields_of_wrong_types_leave_a_frame_that_can_be_answered(fields: str) -> None:
    header = f'{{"code":11,"opaque":5,"extFields":{fields}}}'.encode()
    frame = decode_frame(struct.pack(">iI", 4 + len(header), len(header)) + header)
    assert (frame.opaque, dict(frame.fields)) == (5, {})
    assert frame.fault


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b"nothing", b'{"code":1}', b'{"code":"1","opaque":2}',
                                    b'{"code":1,"opaque":99999999999}', b'{"code":true,"opaque":1}'])  # fmt: skip
def test_a_header_that_nobody_could_be_answered_to_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_frame(struct.pack(">iI", 4 + len(header), len(header)) + header)
