"""Messages in columns as text: NDJSON and CSV, made column by column and without an object for each message.

The text is that of single messages, byte by byte: of :func:`service.wire.documents.ndjson_line`, and of the command
line's CSV. Only what is rare goes through Python: bodies that are not UTF-8, and text with control characters.
"""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pyarrow.compute as pc

_TEXT = pa.string()
#: What JSON writes short, but two; the backslash first, as the others add some.
_SHORT_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
#: Of a cell that a spreadsheet calculates, with what it passes over before; and what a cell may not have bare.
_FORMULA, _QUOTED = "^[=+\\-@\t\r]", '[,"\r\n]'
_ESCAPED, _OTHER_CONTROLS = r'[\x00-\x1f"\\]', r"[\x00-\x08\x0b\x0c\x0e-\x1f]"


def ndjson(rows: pa.RecordBatch) -> bytes:
    """Returns a line for each message; ``rows`` has the columns of ``FOUND_SCHEMA``."""
    column = rows.column
    body, is_text = _readable(column("body"))
    members = [
        '{"message_id":"', column("message_id"),
        '","store_id":"', _escaped(column("store_id")),
        '","physical_offset":', _digits(column("physical_offset")),
        ',"topic":"', _escaped(column("topic")),
        '","queue_id":', _digits(column("queue_id")),
        ',"queue_offset":', _digits(column("queue_offset")),
        ',"keys":[', _strings(column("keys"), ","),
        '],"tag":"', _escaped(column("tag")),
        '","properties":{', _members(column("properties"), ",", ":"),
        '},"born_ms":', _digits(column("born_ms")),
        ',"store_ms":', _digits(column("store_ms")),
        ',"tier":"', column("tier"),
        '","size_bytes":', _digits(column("size_bytes")),
        pc.if_else(is_text, ',"body":"', ',"body_base64":"'), _escaped(body),
        pc.if_else(column("body_compressed"), '","body_compressed":true}\n', '"}\n'),
    ]  # fmt: skip
    return joined(pc.binary_join_element_wise(*members, ""))


def csv(rows: pa.RecordBatch) -> bytes:
    """Returns a line for each message; what a spreadsheet would take for a formula has an apostrophe before it."""
    column = rows.column
    body, is_text = _readable(column("body"))
    properties = pc.binary_join_element_wise("{", _members(column("properties"), ", ", ": "), "}", "")
    cells = [
        _cell(column("message_id")), _cell(column("store_id")), _digits(column("physical_offset")),
        _cell(column("topic")), _digits(column("queue_id")), _digits(column("queue_offset")),
        _cell(pc.binary_join(column("keys"), " ")), _cell(column("tag")), _cell(properties),
        _digits(column("born_ms")), _digits(column("store_ms")), column("tier"), _digits(column("size_bytes")),
        _cell(pc.if_else(is_text, body, "")), pc.if_else(is_text, "", body),
    ]  # fmt: skip
    return joined(pc.binary_join_element_wise(pc.binary_join_element_wise(*cells, ","), "\n", ""))


def _cell(texts: pa.Array) -> pa.Array:
    """Returns texts as they stand in a cell of CSV."""
    is_formula = pc.match_substring_regex(texts, _FORMULA)
    if _any(is_formula):
        texts = pc.if_else(is_formula, pc.binary_join_element_wise("'", texts, ""), texts)
    is_quoted = pc.match_substring_regex(texts, _QUOTED)
    if not _any(is_quoted):
        return texts
    doubled = pc.replace_substring(texts, '"', '""')
    return pc.if_else(is_quoted, pc.binary_join_element_wise('"', doubled, '"', ""), texts)


def joined(texts: pa.Array) -> bytes:
    """Returns all texts one behind the other: the bytes that the array has anyway."""
    if not len(texts):
        return b""
    ends = texts.buffers()[1], texts.buffers()[2]
    offsets = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, ends[0]], offset=texts.offset)
    found: bytes = ends[1][offsets[0].as_py() : offsets[-1].as_py()].to_pybytes()
    return found


def _digits(numbers: pa.Array) -> pa.Array:
    return numbers.cast(_TEXT)


def _readable(bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns bodies as text, base64 where they are not UTF-8, and which of them are as they are."""
    try:
        return bodies.cast(_TEXT), pa.repeat(pa.scalar(value=True), len(bodies))
    except pa.ArrowInvalid:  # one of them
        plain = bodies.to_pylist()
    texts = [_utf8(body) for body in plain]
    shown = [base64.b64encode(body).decode() if text is None else text for body, text in zip(plain, texts, strict=True)]
    return pa.array(shown, _TEXT), pa.array([text is not None for text in texts])


def _utf8(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _escaped(texts: pa.Array) -> pa.Array:
    """Returns texts as they stand between the quotes of a JSON string."""
    if not _any(pc.match_substring_regex(texts, _ESCAPED)):
        return texts
    found = texts
    for plain, escaped in _SHORT_ESCAPES:
        if _any(pc.match_substring(texts, plain)):
            found = pc.replace_substring(found, plain, escaped)
    controls = pc.match_substring_regex(texts, _OTHER_CONTROLS)
    if _any(controls):
        rare = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(controls).to_pylist()]
        found = pc.replace_with_mask(found, controls, pa.array(rare, _TEXT))
    return found


def _any(chosen: pa.Array) -> bool:
    return bool(pc.any(chosen).as_py())


def _strings(lists: pa.ListArray, comma: str) -> pa.Array:
    """Returns the texts of each list as JSON strings."""
    texts = pc.binary_join_element_wise('"', _escaped(lists.values), '"', "")
    return pc.binary_join(pa.ListArray.from_arrays(lists.offsets, texts), comma)


def _members(maps: pa.MapArray, comma: str, colon: str) -> pa.Array:
    """Returns the entries of each map as members of a JSON object."""
    texts = pc.binary_join_element_wise('"', _escaped(maps.keys), f'"{colon}"', _escaped(maps.items), '"', "")
    return pc.binary_join(pa.ListArray.from_arrays(maps.offsets, texts), comma)
