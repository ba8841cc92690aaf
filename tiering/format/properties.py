"""Property text of a record: ``name 0x01 value 0x02`` back to back, UTF-8, nothing escaped (RocketMQ).

Reading: a piece ends at 0x02 or the end of the text and counts only if it is at least three characters long and its
first 0x01 is neither its first nor its last character; later 0x01 belong to the value; the last of equal names wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tierlog.tiering.base.errors import InvalidRequestError

NAME_END = "\x01"
VALUE_END = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
#: What the client chose the queue by (RocketMQ's name).
SHARDING_KEY = "__SHARDINGKEY"
#: Sums the whole record, see ``tiering.format.record``; the store's own, no property of the message.
RECORD_CHECKSUM = "__CRC32#"
#: Who sent a message and its number there, for requests that may be sent again (``tiering.hot.producers``).
PRODUCER, SEQUENCE = "TL_PID", "TL_SEQ"
#: The store's own: what a client sends under these names is never taken for the store's.
STORE_FIELDS = frozenset({RECORD_CHECKSUM, PRODUCER, SEQUENCE})
#: Properties that are no property of a message: they have a field of their own, or are the store's.
OWN_FIELDS = STORE_FIELDS | {KEYS, TAGS}
#: Whether a RocketMQ broker is to wait for the flush. It stores neither this nor what begins with the prefix.
WAIT, TRANSIENT = "WAIT", "__RMQ.TRANSIENT."


def _pairs_named(names: str) -> re.Pattern[bytes]:
    """Matches each whole pair whose name matches, with the end of the pair before it, by which it is found fast."""
    return re.compile(rf"\x02(?:{names})\x01[^\x02]*".encode())


_STORE_PAIRS = "|".join(map(re.escape, sorted(STORE_FIELDS)))
_OF_STORE = _pairs_named(_STORE_PAIRS)
_NOT_STORED = _pairs_named(rf"{_STORE_PAIRS}|{WAIT}|{re.escape(TRANSIENT)}[^\x01\x02]*")


def without_store_fields(text: bytes) -> bytes:
    """Returns a client's property text without what has a name of the store's own."""
    return _OF_STORE.sub(b"", b"\x02" + text)[1:]


def text_as_stored(text: bytes) -> bytes:
    """Returns what a RocketMQ broker stores of the property text of a message that is sent alone, in the same order.

    It leaves out what is for the broker only, and ends every pair.
    """
    text = _NOT_STORED.sub(b"", b"\x02" + text)[1:]
    return text if not text or text.endswith(b"\x02") else text + b"\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Property text in the mapping's order. Empty names or values and the two separators are refused."""
    for name, value in properties.items():
        if not name or not value:
            raise InvalidRequestError(f"property {name!r} has an empty name or value")
        if NAME_END in name or VALUE_END in name or NAME_END in value or VALUE_END in value:
            raise InvalidRequestError(f"property {name!r} contains a separator (0x01 or 0x02)")
    try:
        return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items()).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("a property is not valid Unicode text") from error


def decode_properties(text: bytes) -> dict[str, str]:
    """Returns the mapping that RocketMQ reads out of property text; undecodable bytes become U+FFFD."""
    properties: dict[str, str] = {}
    for piece in text.decode("utf-8", "replace").split(VALUE_END):
        cut = piece.find(NAME_END)
        if len(piece) >= 3 and 0 < cut < len(piece) - 1:
            properties[piece[:cut]] = piece[cut + 1 :]
    return properties


def split_keys(keys: str) -> list[str]:
    """Returns the distinct non-empty keys of a KEYS property, in their order."""
    return list(dict.fromkeys(key for key in keys.split(" ") if key))


def indexed_keys(properties: Mapping[str, str]) -> list[str]:
    """Returns every key a message is found by: the client's unique key first, then its keys."""
    unique = properties.get(UNIQ_KEY)
    return list(dict.fromkeys(([unique] if unique else []) + split_keys(properties.get(KEYS, ""))))
