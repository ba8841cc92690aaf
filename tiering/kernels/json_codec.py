"""Reads and writes messages as JSON text, and counts what is in a value, without an object for each.

:func:`read_rows` reads messages into columns: what nearly all clients send, and nothing else. A parser that makes
objects, and what takes those apart again, are the oracle. Whatever is out of the ordinary ends the reading, and the
oracle decides: a field that is unknown or there twice, a null, a number that is no plain one, half of a surrogate pair.
The text is whole UTF-8, which the caller has seen to. Texts are copied to buffers of their own, of which each has room
for the whole text and eight bytes more. Offsets are of 32 bits, one more than there are texts.

:func:`measure_value` counts what one value holds before anything makes objects of it. Brackets, quotes and separators
are looked at, and nothing else: whether the text is right is for a parser to say, which can be given no more than was
counted here. The text may end anywhere.

:func:`write_results` writes where messages went. Here and for counting :mod:`json` is the oracle. Every byte is looked
at inside of the bounds of its text.
"""

from __future__ import annotations

import numpy as np

from tierlog.tiering.kernels.primitives import (
    called,
    copy_short,
    inlined,
    int64,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    same_bytes,
    store_i32,
    store_i64,
    store_u8,
    trailing_zeros,
    uint64,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

#: Levels of lists and objects inside of each other; a value that has more is not counted to its end.
MOST_DEPTH = 64

_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58
_OBJECT, _OBJECT_END, _LIST, _LIST_END = 123, 125, 91, 93
#: The fields that are read, each with the quote that ends its name; a field's number is its bit.
FIELDS = ("body", "keys", "tag", "properties", "born_ms", "queue_id")
_BODY, _KEYS, _TAG, _PROPERTIES, _BORN_MS, _QUEUE_ID = range(len(FIELDS))
FIELD_NAMES = np.frombuffer("".join(f'{field}"' for field in FIELDS).encode(), np.uint8)
_LENGTHS = tuple(len(field) + 1 for field in FIELDS)
#: The only name in a document around its messages.
DOCUMENT_NAME = np.frombuffer(b'"messages"', np.uint8)
#: The bits of fields that a row may be without, as no text can be.
HAS_BORN_MS, HAS_QUEUE_ID = 1 << _BORN_MS, 1 << _QUEUE_ID
#: What the least row takes, and a text in a list.
LEAST_ROW_BYTES, LEAST_TEXT_BYTES = len('{"body":""}'), len('"",')
_ONES, _TOPS = 0x0101010101010101, 0x8080808080808080
#: More could be beyond what is taken; every number of so many digits is below.
_MOST_DIGITS = 18
_PIECES = ('{"message_id":"', '","queue_id":', ',"queue_offset":', ',"store_ms":', "},")
#: What stands around the values of a message.
PIECES = np.frombuffer("".join(_PIECES).encode(), np.uint8)
_ID, _QUEUE, _OFFSET, _TIME, _END = map(len, _PIECES)
_OFFSET_DIGITS = 16
#: The most that a message takes beside the digits of its host.
MOST_BYTES = len(PIECES) + _OFFSET_DIGITS + 4 + 10 + 2 * 19


@called
def _past_text(at, end):
    """Behind the quote that ends a text, from behind the one that begins it."""
    while at < end:
        byte = load_u8(at)
        if byte == _BACKSLASH:
            at += 1
        elif byte == _QUOTE:
            return at + 1
        at += 1
    return end


@called
def _past_word(at, end):
    """Behind a number or a word, or whatever stands in the place of one."""
    while at < end:
        byte = load_u8(at)
        if byte <= 32 or byte in (_COMMA, _COLON, _QUOTE, _OBJECT, _OBJECT_END, _LIST, _LIST_END):
            break
        at += 1
    return at


@kernel
def measure_value(*, text, length, start, levels, most_values, members, found):
    """Counts the value that begins at ``start``, blanks before it left out; returns where it ends.

    ``length`` if the text ends first, -1 if there are more than ``most_values`` or more levels than ``MOST_DEPTH``.
    ``found`` gets how many values there are, names in objects among them, and how many members the object has that has
    most, of those in the first ``levels`` levels. ``members`` has room for a number for each level.
    """
    at = text + start
    end = text + length
    depth = int64(0)
    values = int64(0)
    widest = int64(0)
    while at < end:
        byte = load_u8(at)
        # a text; a list or object that begins; one that ends
        if byte == _QUOTE:
            at = _past_text(at + 1, end)
            values += 1
        elif byte in (_OBJECT, _LIST):
            at += 1
            values += 1
            depth += 1
            if depth > MOST_DEPTH:
                values = most_values + 1
            else:
                store_i64(members + 8 * (depth - 1), 0)
        elif byte in (_OBJECT_END, _LIST_END):
            if depth == 0:
                break
            at += 1
            depth -= 1
        elif byte == _COLON and depth > 0:
            # a name, which makes its object wider
            at += 1
            count = load_i64(members + 8 * (depth - 1)) + 1
            store_i64(members + 8 * (depth - 1), count)
            if depth <= levels and count > widest:
                widest = count
        elif byte in (_COMMA, _COLON):
            # what stands between values
            if depth == 0:
                break
            at += 1
        elif byte <= 32:
            at += 1
        else:
            # a number or a word
            at = _past_word(at, end)
            values += 1
        if values > most_values:
            return int64(-1)
        if depth == 0 and values > 0:
            break
    store_i64(found, values)
    store_i64(found + 8, widest)
    return at - text


@inlined
def _past_blanks(at, end, is_lines):
    """Returns the next byte that is none; in lines, the end of one is more than a blank."""
    while at < end:
        byte = load_u8(at)
        if byte != 32 and byte != 9 and byte != 13 and (byte != 10 or is_lines != 0):
            break
        at += 1
    return at


@inlined
def _past(at, end, is_lines, wanted):
    """Behind the ``wanted`` byte and blanks around it; 0 if another is there."""
    at = _past_blanks(at, end, is_lines)
    found = int64(0)
    if at < end and load_u8(at) == wanted:
        found = _past_blanks(at + 1, end, is_lines)
    return found


@called
def _hex(at):
    """Returns the number of four hex digits, below 0 if they are none."""
    found = int64(0)
    for place in range(4):
        digit = int64(load_u8(at + place))
        if 48 <= digit <= 57:
            digit -= 48
        elif 65 <= digit <= 70 or 97 <= digit <= 102:
            digit = (digit & 7) + 9
        else:
            return int64(-1)
        found = found << 4 | digit
    return found


@called
def _read_escape(at, end, out):
    """Returns what a backslash and the bytes behind it stand for to ``out``: where both go on.

    0 for what is not taken.
    """
    if at + 2 > end:
        return int64(0), out
    kind = load_u8(at + 1)
    if kind == 117:  # u
        if at + 6 > end:
            return int64(0), out
        code = _hex(at + 2)
        if code < 0 or 0xD800 <= code < 0xE000:
            return int64(0), out
        if code < 0x80:
            store_u8(out, code)
            return at + 6, out + 1
        if code < 0x800:
            store_u8(out, 0xC0 | code >> 6)
            store_u8(out + 1, 0x80 | code & 0x3F)
            return at + 6, out + 2
        store_u8(out, 0xE0 | code >> 12)
        store_u8(out + 1, 0x80 | code >> 6 & 0x3F)
        store_u8(out + 2, 0x80 | code & 0x3F)
        return at + 6, out + 3
    if kind == 110:  # n
        kind = 10
    elif kind == 116:  # t
        kind = 9
    elif kind == 114:  # r
        kind = 13
    elif kind == 98:  # b
        kind = 8
    elif kind == 102:  # f
        kind = 12
    elif kind != _QUOTE and kind != _BACKSLASH and kind != 47:
        return int64(0), out
    store_u8(out, kind)
    return at + 2, out + 1


@called
def _read_text(at, end, out):
    """Copies a text, from behind its opening quote, to ``out``: where both go on; 0 for what is not taken."""
    while at < end:
        while at + 8 <= end:
            eight = uint64(load_i64(at))
            store_i64(out, int64(eight))
            quote = eight ^ uint64(_QUOTE * _ONES)
            escape = eight ^ uint64(_BACKSLASH * _ONES)
            found = (quote - uint64(_ONES)) & ~quote
            found |= (escape - uint64(_ONES)) & ~escape
            found |= (eight - uint64(32 * _ONES)) & ~eight
            found &= uint64(_TOPS)
            if found != uint64(0):
                skipped = trailing_zeros(int64(found)) >> 3
                at += skipped
                out += skipped
                break
            at += 8
            out += 8
        if at >= end:
            break
        byte = load_u8(at)
        if byte == _QUOTE:
            return at + 1, out
        if byte < 32:
            return int64(0), out
        if byte == _BACKSLASH:
            at, out = _read_escape(at, end, out)
            if at == 0:
                return int64(0), out
        else:
            store_u8(out, byte)
            at += 1
            out += 1
    return int64(0), out


@called
def _read_number(at, end):
    """Returns a whole number that is written plainly, and where it ends; 0 for anything else."""
    first = at
    number = int64(0)
    while at < end and 48 <= load_u8(at) <= 57:
        number = 10 * number + int64(load_u8(at)) - 48
        at += 1
        if at - first > _MOST_DIGITS:
            return int64(0), number
    is_plain = at > first and (load_u8(first) != 48 or at == first + 1)
    if at < end and (load_u8(at) == 46 or load_u8(at) | 32 == 101):  # a fraction or an exponent
        is_plain = False
    return at if is_plain else int64(0), number


@called
def _field(at, end, field_names):
    """Returns the number of the field whose name, and the quote behind it, are here; below 0 for another."""
    name = field_names
    for field, length in enumerate(_LENGTHS):
        if at + length <= end and same_bytes(at, name, length):
            return int64(field)
        name += length
    return int64(-1)


@called
def _read_keys(at, end, is_lines, column, filled):
    """The texts of a list, from behind its bracket: where it ends, how many there are by then, where the copies end.

    ``column`` is ends and texts, ``filled`` how many there are before and where their copies end.
    """
    ends, keys = column
    count, out = filled
    at = _past_blanks(at, end, is_lines)
    if at < end and load_u8(at) == _LIST_END:
        return at + 1, count, out
    while at < end and load_u8(at) == _QUOTE:
        at, out = _read_text(at + 1, end, out)
        if at == 0:
            break
        count += 1
        store_i32(ends + 4 * count, out - keys)
        at = _past_blanks(at, end, is_lines)
        if at < end and load_u8(at) == _LIST_END:
            return at + 1, count, out
        at = _past(at, end, is_lines, _COMMA)
        if at == 0:
            break
    return int64(0), count, out


@called
def _read_pairs(at, end, is_lines, columns, filled):
    """The names and texts of an object, from behind its brace, likewise."""
    name_ends, names, value_ends, values = columns
    count, name_out, value_out = filled
    at = _past_blanks(at, end, is_lines)
    if at < end and load_u8(at) == _OBJECT_END:
        return at + 1, count, name_out, value_out
    while at < end and load_u8(at) == _QUOTE:
        at, name_out = _read_text(at + 1, end, name_out)
        if at == 0:
            break
        at = _past(at, end, is_lines, _COLON)
        if at == 0 or at >= end or load_u8(at) != _QUOTE:
            break
        at, value_out = _read_text(at + 1, end, value_out)
        if at == 0:
            break
        count += 1
        store_i32(name_ends + 4 * count, name_out - names)
        store_i32(value_ends + 4 * count, value_out - values)
        at = _past_blanks(at, end, is_lines)
        if at < end and load_u8(at) == _OBJECT_END:
            return at + 1, count, name_out, value_out
        at = _past(at, end, is_lines, _COMMA)
        if at == 0:
            break
    return int64(0), count, name_out, value_out


@struct_kernel(
    "text length is_lines field_names document_name most_rows queues body_ends bodies keys_of key_ends keys "
    "tag_ends tags properties_of name_ends names value_ends values born_ms queue_id fields totals"
)
def read_rows(job):
    """Fills the columns with the messages of a document, or of lines; returns how many, -1 for what is not taken.

    The first offset of each column is 0 already. ``fields`` gets the bits of each row's fields, and ``totals`` how many
    keys and properties there are and the bits of the fields of all rows. Numbers that are not there are left as they
    are. More rows than ``most_rows``, and a queue from ``queues`` on, are not taken; of keys and properties there is
    room for as many as the text can hold.
    """
    (
        text, length, is_lines, field_names, document_name, most_rows, queues, body_ends, bodies, keys_of, key_ends,
        keys, tag_ends, tags, properties_of, name_ends, names, value_ends, values, born_ms, queue_id, fields, totals,
    ) = load_fields(job, 23)  # fmt: skip
    at = text
    end = text + length
    # the document around the messages
    if is_lines == 0:
        at = _past(at, end, is_lines, _OBJECT)
        if at == 0 or at + 10 > end or not same_bytes(at, document_name, 10):
            return int64(-1)
        at = _past(at + 10, end, is_lines, _COLON)
        if at == 0:
            return int64(-1)
        at = _past(at, end, is_lines, _LIST)
        if at == 0:
            return int64(-1)
    # one message after the other
    body_out, key_out, tag_out, name_out, value_out = bodies, keys, tags, names, values
    rows = int64(0)
    key_count = int64(0)
    pair_count = int64(0)
    every = int64(0)
    while True:
        if is_lines != 0:
            at = _past_blanks(at, end, 0)  # lines without anything
            if at == end:
                break
        at = _past(at, end, is_lines, _OBJECT)
        if at == 0 or rows == most_rows:
            return int64(-1)
        # its fields, each of them once
        seen = int64(0)
        while True:
            if at >= end or load_u8(at) != _QUOTE:
                return int64(-1)
            field = _field(at + 1, end, field_names)
            if field < 0 or seen >> field & 1:
                return int64(-1)
            seen |= int64(1) << field
            at += 1
            while load_u8(at) != _QUOTE:
                at += 1
            at = _past(at + 1, end, is_lines, _COLON)
            if at == 0 or at >= end:
                return int64(-1)
            # the value, into its column
            byte = load_u8(at)
            if field == _BODY and byte == _QUOTE:
                at, body_out = _read_text(at + 1, end, body_out)
            elif field == _TAG and byte == _QUOTE:
                at, tag_out = _read_text(at + 1, end, tag_out)
            elif field == _KEYS and byte == _LIST:
                at, key_count, key_out = _read_keys(at + 1, end, is_lines, (key_ends, keys), (key_count, key_out))
            elif field == _PROPERTIES and byte == _OBJECT:
                at, pair_count, name_out, value_out = _read_pairs(
                    at + 1, end, is_lines, (name_ends, names, value_ends, values), (pair_count, name_out, value_out)
                )
            elif field == _BORN_MS:
                at, number = _read_number(at, end)
                store_i64(born_ms + 8 * rows, number)
            elif field == _QUEUE_ID:
                at, number = _read_number(at, end)
                if number >= queues:
                    return int64(-1)
                store_i32(queue_id + 4 * rows, number)
            else:
                return int64(-1)
            # what stands behind it
            if at == 0:
                return int64(-1)
            at = _past_blanks(at, end, is_lines)
            if at < end and load_u8(at) == _OBJECT_END:
                break
            at = _past(at, end, is_lines, _COMMA)
            if at == 0:
                return int64(-1)
        # the row is complete: where its parts of the columns end
        at += 1
        if seen & 1 == 0:  # no body
            return int64(-1)
        store_u8(fields + rows, seen)
        every |= seen
        rows += 1
        store_i32(body_ends + 4 * rows, body_out - bodies)
        store_i32(tag_ends + 4 * rows, tag_out - tags)
        store_i32(keys_of + 4 * rows, key_count)
        store_i32(properties_of + 4 * rows, pair_count)
        # the next message, or the end
        at = _past_blanks(at, end, is_lines)
        if is_lines != 0:
            if at < end and load_u8(at) != 10:
                return int64(-1)
        elif at < end and load_u8(at) == _LIST_END:
            at = _past(at + 1, end, is_lines, _OBJECT_END)
            if at != end:
                return int64(-1)
            break
        else:
            at = _past(at, end, is_lines, _COMMA)
            if at == 0:
                return int64(-1)
    store_i64(totals, key_count)
    store_i64(totals + 8, pair_count)
    store_i64(totals + 16, every)
    return rows


@called
def _write_number(number, out):
    """Writes a number that is not below 0; returns where it ends."""
    digits = int64(1)
    rest = number
    while rest >= 10:
        rest //= 10
        digits += 1
    end = out + digits
    at = end
    while at > out:
        at -= 1
        store_u8(at, 48 + number % 10)
        number //= 10
    return end


@struct_kernel("count pieces host host_digits physical_offset queue_id queue_offset store_ms out")
def write_results(job):
    """Writes an object for each message, with a comma behind it; returns how many bytes.

    ``host`` is what every message id begins with. ``out`` has room for ``MOST_BYTES`` and the host's for each.
    """
    count, pieces, host, host_digits, physical_offset, queue_id, queue_offset, store_ms, out = load_fields(job, 9)
    at = out
    for i in range(count):
        piece = pieces
        copy_short(at, piece, _ID)
        at += _ID
        piece += _ID
        copy_short(at, host, host_digits)
        at += host_digits
        physical = load_i64(physical_offset + 8 * i)
        for digit in range(_OFFSET_DIGITS):
            value = physical >> 4 * (_OFFSET_DIGITS - 1 - digit) & 15
            store_u8(at + digit, value + (48 if value < 10 else 55))
        at += _OFFSET_DIGITS
        copy_short(at, piece, _QUEUE)
        at = _write_number(int64(load_i32(queue_id + 4 * i)), at + _QUEUE)
        piece += _QUEUE
        copy_short(at, piece, _OFFSET)
        at = _write_number(load_i64(queue_offset + 8 * i), at + _OFFSET)
        piece += _OFFSET
        copy_short(at, piece, _TIME)
        at = _write_number(load_i64(store_ms + 8 * i), at + _TIME)
        piece += _TIME
        copy_short(at, piece, _END)
        at += _END
    return at - out
