"""Frames of the remoting protocol: requests and answers, with either form of header. Big-endian.

====== ==== ====== ================ ==========================================================
offset size type   field            meaning
====== ==== ====== ================ ==========================================================
0      4    int32  frame_size       bytes behind this field
4      1    uint8  header_form      0 = JSON, 1 = ROCKETMQ
5      3    uint24 header_size      bytes of the header, which follows; the body is what is left
====== ==== ====== ================ ==========================================================
Total 8. Then the header. A JSON header is an object with ``code``, ``opaque``, ``flag``, ``language``, ``version``,
``remark`` and ``extFields``, written without blanks, as the Go client finds its values by place. A ROCKETMQ header is
``code`` int16, language int8, version int16, opaque int32, flag int32, the remark with a length of int32, and the
length of all fields as int32 with the fields behind it: a name with a length of int16 and a value with one of int32,
each.

Who asks chooses the form, and is answered in it. Whatever comes is read as foreign: a length that cannot be is
:class:`InvalidRequestError`, after which nobody knows where the next frame begins, and a header without a code and an
opaque is one too, as nobody could be answered. Fields that are no texts leave the frame with a :attr:`Frame.fault`.

A signed request has the name of its signer in the field ``AccessKey``. The field ``Signature`` is the base64 of an
HMAC-SHA1 over the values of all other fields, in the order of their names, and then the body.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import orjson

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.rocketmq.codes import FrameFlag

#: The version that clients are told: of RocketMQ 5.4.0, whose protocol this is.
PROTOCOL_VERSION = 493
ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
_START = struct.Struct(">iI")
_FIXED = struct.Struct(">hbhiii")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_HEADER_BITS = 24
_LEAST_FRAME, _LENGTH_BYTES = 4, 4
#: Fields of one header; RocketMQ's largest has fewer than thirty.
_MOST_FIELDS = 1_000
_LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)  # fmt: skip
_LANGUAGE_NUMBERS = {name: number for number, name in enumerate(_LANGUAGES)}
_OTHER = "OTHER"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_INT32_END = 1 << 31
_ONLY_TEXTS = {str}
# as plain numbers: an enum's `&` costs a tenth of a request
_RESPONSE, _ONEWAY = int(FrameFlag.RESPONSE), int(FrameFlag.ONEWAY)


class HeaderForm(IntEnum):
    """How a header is written."""

    JSON = 0
    ROCKETMQ = 1


_LAST_FORM = int(max(HeaderForm))


@dataclass(slots=True)
class Frame:
    """A request or an answer."""

    code: int
    opaque: int
    flag: int = 0
    #: Arguments by name, or what an answer says beside its code.
    fields: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    body: bytes = b""
    remark: str | None = None
    language: str = _OTHER
    version: int = PROTOCOL_VERSION
    form: HeaderForm = HeaderForm.JSON
    #: What is wrong with it, where enough is right to answer it.
    fault: str | None = None

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for an answer."""
        return self.flag & _ONEWAY != 0

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request of the other side."""
        return self.flag & _RESPONSE != 0


def signature_of(
    secret: str, fields: Mapping[str, str], body: bytes | memoryview, *, unsigned: Container[str] = (SIGNATURE,)
) -> bytes:
    """Returns what a request is signed with, by whoever has this secret; ``unsigned`` are the fields left out."""
    content = "".join(fields[field] for field in sorted(fields) if field not in unsigned)
    code = hmac.new(secret.encode(), content.encode("utf-8", "surrogateescape"), hashlib.sha1)
    code.update(body)
    return code.digest()


def encode_frame(frame: Frame) -> bytes:
    """Returns the bytes of a frame with its body."""
    return encode_head(frame, len(frame.body)) + frame.body


def encode_head(frame: Frame, body_bytes: int) -> bytes:
    """Returns the bytes of a frame before a body of so many bytes."""
    header = _encode_binary(frame) if frame.form is HeaderForm.ROCKETMQ else _encode_json(frame)
    size = 4 + len(header) + body_bytes
    return _START.pack(size, frame.form << _HEADER_BITS | len(header)) + header


def _encode_json(frame: Frame) -> bytes:
    document = {
        "code": frame.code,
        "extFields": frame.fields if type(frame.fields) is dict else dict(frame.fields),
        "flag": frame.flag,
        "language": frame.language,
        "opaque": frame.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": frame.version,
    }
    if frame.remark is not None:
        document["remark"] = frame.remark
    return orjson.dumps(document)


def _encode_binary(frame: Frame) -> bytes:
    remark = (frame.remark or "").encode()
    pieces = [
        _FIXED.pack(
            frame.code, _LANGUAGE_NUMBERS.get(frame.language, _LANGUAGE_NUMBERS[_OTHER]), frame.version, frame.opaque,
            frame.flag, len(remark),
        ),
        remark,
        b"",
    ]  # fmt: skip
    fields_bytes = 0
    for name, value in frame.fields.items():
        key, text = name.encode(), value.encode()
        pieces += (_INT16.pack(len(key)), key, _INT32.pack(len(text)), text)
        fields_bytes += 6 + len(key) + len(text)
    pieces[2] = _INT32.pack(fields_bytes)
    return b"".join(pieces)


class FrameReader:
    """Makes frames of the bytes of one connection, in whatever pieces they come. Not thread safe.

    It keeps at most one frame that is not whole yet, of ``max_frame_bytes``, and what came with it.
    """

    __slots__ = ("_max_frame_bytes", "_rest", "_wanted")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._rest = bytearray()
        #: Bytes from which on there may be a whole frame.
        self._wanted = _START.size

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are whole now, each once; :class:`InvalidRequestError` ends the connection.

        To be read to its end before more is fed.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data, self._rest = bytes(self._rest), bytearray()
        at, end = 0, len(data)
        self._wanted = _START.size
        while end - at >= _START.size:
            size, word = _START.unpack_from(data, at)
            whole = _LENGTH_BYTES + self._checked_size(size, word)
            if end - at < whole:
                self._wanted = whole
                break
            yield _decode(data, at, at + whole, word)
            at += whole
        if at < end:
            self._rest += memoryview(data)[at:] if at else data

    def _checked_size(self, size: int, word: int) -> int:
        if not _LEAST_FRAME <= size <= self._max_frame_bytes:
            raise InvalidRequestError(
                f"a frame of {size} bytes", hint=f"rocketmq.max_frame_bytes is {self._max_frame_bytes}"
            )
        _check_header(size, word)
        return size


def _check_header(size: int, word: int) -> int:
    """Returns the bytes of the header."""
    form, header_bytes = word >> _HEADER_BITS, word & ((1 << _HEADER_BITS) - 1)
    if header_bytes > size - 4:
        raise InvalidRequestError(f"a header of {header_bytes} bytes in a frame of {size}")
    if form > _LAST_FORM:
        raise InvalidRequestError(f"a header of the unknown form {form}")
    return header_bytes


def decode_frame(data: bytes, at: int = 0, end: int | None = None) -> Frame:
    """Returns the frame in ``data[at:end]``, whole; raises :class:`InvalidRequestError` if nobody can be answered."""
    end = len(data) if end is None else end
    if end - at < _START.size:
        raise InvalidRequestError("a frame without a header")
    size, word = _START.unpack_from(data, at)
    if size != end - at - _LENGTH_BYTES:
        raise InvalidRequestError(f"a frame of {size} bytes in {end - at}")
    _check_header(size, word)
    return _decode(data, at, end, word)


def _decode(data: bytes, at: int, end: int, word: int) -> Frame:
    begin = at + _START.size
    header_end = begin + (word & ((1 << _HEADER_BITS) - 1))
    frame = (_decode_binary if word >> _HEADER_BITS else _decode_json)(data[begin:header_end])
    frame.body = data[header_end:end]
    return frame


def _decode_json(header: bytes) -> Frame:
    try:
        found = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"a header that is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequestError("a header that is no JSON object")
    fields, fault = _texts(found.get("extFields"))
    remark, language = found.get("remark"), found.get("language")
    return Frame(
        code=_number(found, "code"), opaque=_number(found, "opaque"), flag=_number(found, "flag", 0), fields=fields,
        remark=remark if isinstance(remark, str) else None,
        language=language if isinstance(language, str) else _OTHER,
        version=_number(found, "version", 0), fault=fault,
    )  # fmt: skip


def _number(found: dict[str, Any], name: str, default: int | None = None) -> int:
    value = found.get(name, default)
    if type(value) is not int or not -_INT32_END <= value < _INT32_END:
        raise InvalidRequestError(f"a header whose {name} is no int32")
    return value


def _texts(found: object) -> tuple[Mapping[str, str], str | None]:
    """Returns the fields as texts, and what is wrong with them."""
    if found is None:
        return _NOTHING, None
    if not isinstance(found, dict):
        return _NOTHING, "extFields is no JSON object"
    if len(found) > _MOST_FIELDS:
        return _NOTHING, f"{len(found)} fields are too many"
    if set(map(type, found.values())) == _ONLY_TEXTS:  # as all clients write them
        return found, None
    fields: dict[str, str] = {}
    for name, value in found.items():
        if type(value) is str:
            fields[name] = value
        elif type(value) is bool:
            fields[name] = "true" if value else "false"
        elif isinstance(value, int | float):
            fields[name] = str(value)
        elif value is not None:
            return _NOTHING, f"field {name[:100]!r} is no text"
    return fields, None


def _decode_binary(header: bytes) -> Frame:
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark, at = _text(header, at, remark_bytes)
        (fields_bytes,) = _INT32.unpack_from(header, at)
        at += 4
        if fields_bytes < 0 or at + fields_bytes > len(header):
            raise InvalidRequestError(f"fields of {fields_bytes} bytes in a header of {len(header)}")
        fields: dict[str, str] = {}
        end = at + fields_bytes
        while at < end:
            (name_bytes,) = _INT16.unpack_from(header, at)
            name, at = _text(header, at + 2, name_bytes)
            (value_bytes,) = _INT32.unpack_from(header, at)
            fields[name], at = _text(header, at + 4, value_bytes)
            if len(fields) > _MOST_FIELDS:
                raise InvalidRequestError("too many fields")
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"a header that is cut short or no text: {error}") from error
    return Frame(
        code=code, opaque=opaque, flag=flag, fields=fields, remark=remark or None,
        language=_LANGUAGES[language] if 0 <= language < len(_LANGUAGES) else _OTHER, version=version,
        form=HeaderForm.ROCKETMQ,
    )  # fmt: skip


def _text(header: bytes, at: int, count: int) -> tuple[str, int]:
    if count < 0 or at + count > len(header):
        raise InvalidRequestError(f"a text of {count} bytes at {at} in a header of {len(header)}")
    return header[at : at + count].decode(), at + count
