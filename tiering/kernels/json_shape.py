"""How much there is in one value of JSON text, before anything makes objects of it; :mod:`json` is the oracle.

Brackets, quotes and separators are looked at, and nothing else: whether the text is right is for a parser to say, which
can be given no more than was counted here. The text may end anywhere; every byte is looked at inside of its bounds.
"""

from __future__ import annotations

from numba import int64

from tiering.kernels.primitives import called, kernel, load_i64, load_u8, store_i64

#: Levels of lists and objects inside of each other; a value that has more is not counted to its end.
MOST_DEPTH = 64

_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58
_OBJECT, _OBJECT_END, _LIST, _LIST_END = 123, 125, 91, 93


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
def measure_value(text, length, start, levels, most_values, members, found):
    """Count the value that begins at ``start``, blanks before it left out; returns where it ends.

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
            at += 1
            count = load_i64(members + 8 * (depth - 1)) + 1
            store_i64(members + 8 * (depth - 1), count)
            if depth <= levels and count > widest:
                widest = count
        elif byte in (_COMMA, _COLON):
            if depth == 0:
                break
            at += 1
        elif byte <= 32:
            at += 1
        else:
            at = _past_word(at, end)
            values += 1
        if values > most_values:
            return int64(-1)
        if depth == 0 and values > 0:
            break
    store_i64(found, values)
    store_i64(found + 8, widest)
    return at - text
