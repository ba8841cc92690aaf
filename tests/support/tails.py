"""Short ways to make tails for tests."""

from __future__ import annotations

from tiering.format.tail import TailHead, TailKind, payload_crc32


def data_head(first: int, payload: bytes, *, segment_bytes: int = 4096) -> TailHead:
    """A data tail of one store that holds these bytes."""
    return TailHead(
        "s", "v", 1, "00ff" * 4, TailKind.DATA, first, first + len(payload), segment_bytes, len(payload),
        payload_crc32(payload),
    )  # fmt: skip
