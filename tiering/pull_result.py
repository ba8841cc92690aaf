"""The answer of a pull: how much one looks at, and what it says where there is nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field

from tiering.errors import StoreError
from tiering.hot.tag_code import shows_tag
from tiering.message import StoredMessage
from tiering.tag_filter import TagFilter
from tiering.types import PullStatus

# What one pull looks at is bounded, so that a tag which nobody has does not read a whole queue.
_MAX_MESSAGES = 10_000
_MAX_FOUND_BYTES = 4 << 20
_MAX_READ_BYTES = 16 << 20

#: Offsets in order with the message there, None where it is gone or the tag's hash alone rules it out.
Messages = Generator[tuple[int, StoredMessage | None]]


@dataclass(slots=True)
class PullResult:
    """Answer of a pull. ``min_offset`` counts both tiers; ``next_offset`` is where to go on."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)


def edge_of(offset: int, first: int, end: int, gap_end: int | None) -> PullResult | None:
    """The answer for an offset that holds nothing, or None; ``gap_end`` is that of the declared gap it lies in."""
    if gap_end is not None:
        return PullResult(PullStatus.NO_MATCHED_MESSAGE, gap_end, first, end)
    if offset < first:
        return PullResult(PullStatus.OFFSET_TOO_SMALL, first, first, end)
    if offset > end:
        return PullResult(PullStatus.OFFSET_TOO_LARGE, end, first, end)
    if offset == end:
        return PullResult(PullStatus.NO_NEW_MESSAGE, end, first, end)
    return None


def _until_failure(messages: Messages) -> Messages:
    """The messages before a failure, if there are any: a pull that goes on behind them meets it again."""
    is_first = True
    try:
        for message in messages:
            yield message
            is_first = False
    except StoreError:
        if is_first:
            raise


def collect(
    messages: Messages, offset: int, limit: int, wanted: TagFilter | None, first: int, end: int, tier_end: int
) -> PullResult:
    """The answer of a pull from ``messages``, which are closed; ``tier_end`` is where the next tier begins.

    A failure ends the answer before it; the one that meets it first raises it.
    """
    with contextlib.closing(messages):
        return _collect(messages, offset, limit, wanted, first, end, tier_end)


def _collect(
    messages: Messages, offset: int, limit: int, wanted: TagFilter | None, first: int, end: int, tier_end: int
) -> PullResult:
    result = PullResult(PullStatus.NO_MATCHED_MESSAGE, offset, first, end)
    found_bytes = read_bytes = 0
    for looked_at, (at, message) in enumerate(_until_failure(messages)):
        if len(result.messages) == limit or looked_at == _MAX_MESSAGES:
            return result
        if found_bytes > _MAX_FOUND_BYTES or read_bytes > _MAX_READ_BYTES:
            return result
        result.next_offset = at + 1
        if message is None:
            continue
        read_bytes += message.record.size
        if wanted is None or (message.tag in wanted.tags and shows_tag(message.record)):
            result.messages.append(message)
            result.status = PullStatus.FOUND
            found_bytes += message.shown_bytes
    if result.next_offset == offset:
        # nothing lies between here and the next tier: a gap, whose end is where to go on
        result.next_offset = max(offset, tier_end)
    return result
