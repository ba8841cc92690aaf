"""A message as readers see it: the record, where it was found, and its fields taken apart."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import Tier, TimeAxis
from tierlog.tiering.format.body import inflated_body, is_compressed
from tierlog.tiering.format.properties import KEYS, OWN_FIELDS, TAGS, indexed_keys, split_keys
from tierlog.tiering.format.record import Record

#: Place in the total order of all answers: (time_ms, store_id, physical_offset).
Place = tuple[int, str, int]

#: Every message id, whole: the first of the offset's 16 digits is below 8.
MESSAGE_ID_PATTERN = "(?:[0-9A-Fa-f]{24})?[0-9A-Fa-f]{16}[0-7][0-9A-Fa-f]{15}"
_MESSAGE_ID = re.compile(MESSAGE_ID_PATTERN)
_OFFSET_DIGITS = 16


def offset_in_message_id(message_id: str) -> int:
    """Returns the physical offset in an offset id; :class:`InvalidRequestError` for anything else.

    32 or 56 hex digits: IPv4 or IPv6 address of the store, its port (int32), the physical offset (int64).
    """
    offset = int(message_id[-_OFFSET_DIGITS:], 16) if _MESSAGE_ID.fullmatch(message_id) else -1
    if not 0 <= offset < 1 << 63:
        raise InvalidRequestError(
            f"{message_id[:100]!r} is not a message id",
            hint="32 hex digits (56 with IPv6) from the answer to an append; a client's own id is found as a key",
        )
    return offset


@dataclass(frozen=True)
class StoredMessage:
    """One message read back."""

    record: Record
    store_id: str
    tier: Tier

    @property
    def keys(self) -> list[str]:
        """The application's keys, in their order."""
        return split_keys(self.record.properties.get(KEYS, ""))

    @property
    def tag(self) -> str:
        """The tag, empty if there is none."""
        return self.record.properties.get(TAGS, "")

    @property
    def properties(self) -> dict[str, str]:
        """Properties other than keys and tag."""
        return {name: value for name, value in self.record.properties.items() if name not in OWN_FIELDS}

    def readable_body(self) -> tuple[bytes, bool]:
        """The body, inflated if it is compressed, and whether that failed, so that it is given as it is stored."""
        return self._readable

    @cached_property
    def _readable(self) -> tuple[bytes, bool]:
        """The readable body, inflated once: a page counts the body's bytes before it shows them."""
        if not is_compressed(self.record):
            return self.record.body, False
        inflated = inflated_body(self.record)
        return (self.record.body, True) if inflated is None else (inflated, False)

    @property
    def shown_bytes(self) -> int:
        """Bytes that the message counts for where an answer is bounded: a compressed body counts as it is shown."""
        body, _ = self.readable_body()
        return self.record.size - len(self.record.body) + len(body)

    def has_key(self, key: str) -> bool:
        """Whether the message is found by this key; the text itself is compared."""
        return key in indexed_keys(self.record.properties)

    def time_ms(self, axis: TimeAxis) -> int:
        """One of the message's two times."""
        return self.record.store_ms if axis is TimeAxis.STORE else self.record.born_ms

    def place(self, axis: TimeAxis) -> Place:
        """Returns where the message stands in the total order."""
        return self.time_ms(axis), self.store_id, self.record.physical_offset


#: Offsets in order with the message there, None where it is gone or the tag's hash alone rules it out.
Messages = Generator[tuple[int, StoredMessage | None]]
