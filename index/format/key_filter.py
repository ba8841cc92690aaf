"""The key filter of an index object: a split-block Bloom filter as Apache Parquet defines it. Plain codec and build.

The 64-bit value of a key is ``(hash_high << 32) | hash``. Its upper half chooses the block, its lower half a bit in
each of the block's eight words: bit ``(hash * salt[i] mod 2^32) >> 27`` of word i. The bit set is Parquet's, byte for
byte (``BloomFilter.md`` of the parquet-format project); Parquet's own header is not used.

Table of the section, big-endian as its header is:

====== ==== ====== ======== ====================================================
offset size type   field    meaning
====== ==== ====== ======== ====================================================
0      4    uint32 blocks   blocks that follow the table, at least 1
4      8    int64  keys     distinct keys that were put in, at least 1
12     4    uint32 bits_crc CRC-32 of the blocks
====== ==== ====== ======== ====================================================

Total 16. Then the blocks, 32 bytes each: eight uint32, **little-endian**. Written by: ``index.objects.builder``. Read
by: searches, checks, dump. Torn write: objects appear whole or not at all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierlog.index.format.errors import DamagedFilterError
from tierlog.index.format.layout import Items
from tierlog.index.format.object_sections import FILTER, encode_section, open_section
from tierlog.index.kernels.filter import add_items, add_keys
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.format.section import HEADER

#: What a builder spends on a distinct key: docs/decisions/0010-bits-of-a-key-filter.md.
DEFAULT_BITS_PER_KEY = 24
BLOCK_BYTES = 32
SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_TABLE = struct.Struct(">IqI")
_PIECE_BYTES = 1 << 20
_BLOCK = struct.Struct("<8I")
#: The whole section stays below 4 GiB, which a section's table cannot pass.
_MOST_BLOCKS = (1 << 27) - 2
_MASK_32 = (1 << 32) - 1


class KeyFilter:
    """A filter of the keys that an index object may hold. Reading is thread-safe; one thread fills it."""

    def __init__(self, words: NDArray[np.uint32], keys: int) -> None:
        self._words = words
        self._view = words.data.cast("B")
        self.keys = keys
        """Distinct keys that were put in."""

    @classmethod
    def sized(cls, keys: int, bits_per_key: int) -> KeyFilter:
        """Returns an empty filter for so many distinct keys, which :meth:`add` puts in."""
        if keys < 1 or bits_per_key < 1:
            raise InvalidRequestError(f"a filter of {bits_per_key} bits for each of {keys} keys")
        blocks = -(-keys * bits_per_key // (8 * BLOCK_BYTES))
        if blocks > _MOST_BLOCKS:
            raise InvalidRequestError("a key filter has at most 4 GiB", hint="cut the index object by slot range")
        return cls(np.zeros(8 * blocks, "<u4"), keys)

    def empty_like(self) -> KeyFilter:
        """Returns a filter without a key that has as many blocks."""
        return KeyFilter(np.zeros_like(self._words), self.keys)

    def has_same_bits(self, other: KeyFilter) -> bool:
        """Whether both hold the same bits."""
        return np.array_equal(self._words, other._words)

    @classmethod
    def build(cls, low: ArrayLike, high: ArrayLike, bits_per_key: int = DEFAULT_BITS_PER_KEY) -> KeyFilter:
        """Returns the filter of keys given by their two hashes, each counted once."""
        lows, highs = np.asarray(low, np.int64), np.asarray(high, np.int64)
        values = np.unique((highs.astype(np.uint64) << np.uint64(32)) | lows.astype(np.uint64))
        found = cls.sized(len(values), bits_per_key)
        found.add(lows, highs)
        return found

    def add(self, low: NDArray[np.integer], high: NDArray[np.integer]) -> None:
        """Puts keys in; their number was given before."""
        lows, highs = np.ascontiguousarray(low, np.uint32), np.ascontiguousarray(high, np.uint32)
        if lows.ndim != 1 or lows.shape != highs.shape:
            raise InvalidRequestError("a key has two hashes")
        add_keys(self._words.ctypes.data, self.blocks, lows.ctypes.data, highs.ctypes.data, len(lows))

    def add_items(self, items: Items) -> int:
        """Puts in the keys of items, contiguous and of a compacted layout with both hashes; returns the keys' sum."""
        fields = items.dtype.fields
        assert fields is not None
        found: int = add_items(
            words=self._words.ctypes.data, blocks=self.blocks, items=items.ctypes.data, count=len(items),
            width=items.dtype.itemsize, hash_at=int(fields["hash"][1]), high_at=int(fields["hash_high"][1]),
        )  # fmt: skip
        return found

    def may_contain(self, hash_low: int, hash_high: int) -> bool:
        """False only if the key was never put in."""
        words = _BLOCK.unpack_from(self._view, BLOCK_BYTES * (hash_high * self.blocks >> 32))
        return all(word >> ((hash_low * salt & _MASK_32) >> 27) & 1 for word, salt in zip(words, SALTS, strict=True))

    def may_contain_each(self, low: NDArray[np.integer], high: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Returns :meth:`may_contain` of many keys."""
        lows, highs = low.astype(np.uint64), high.astype(np.uint64)
        first = (highs * np.uint64(self.blocks) >> np.uint64(32)).astype(np.int64) * 8
        found = np.ones(len(lows), np.bool_)
        for number, salt in enumerate(SALTS):
            place = (lows * np.uint64(salt) & np.uint64(_MASK_32)) >> np.uint64(27)
            found &= (self._words[first + number] >> place.astype(np.uint32) & 1).astype(np.bool_)
        return found

    @property
    def blocks(self) -> int:
        """Number of 32-byte blocks."""
        return len(self._words) // 8

    @property
    def size_bytes(self) -> int:
        """Bytes of the bit set."""
        return self._words.nbytes

    @property
    def bits_per_key(self) -> float:
        """Bits of the bit set for each distinct key."""
        return 8 * self.size_bytes / self.keys

    def false_positive_rate(self) -> float:
        """The expected share of keys that were not put in and yet are not ruled out, by the bits that are set."""
        chance = np.bitwise_count(self._words).reshape(-1, 8) / 32
        return float(chance.prod(axis=1).mean())

    def encode(self) -> bytes:
        """Returns the filter section of an index object, header included."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yields the bytes of :meth:`encode` one after the other, not copied."""
        yield encode_section(
            FILTER, _TABLE.pack(self.blocks, self.keys, zlib.crc32(self._view)), self.size_bytes
        )  # fmt: skip
        for start in range(0, self.size_bytes, _PIECE_BYTES):
            yield self._view[start : start + _PIECE_BYTES]

    @classmethod
    def decode(cls, data: bytes) -> KeyFilter:
        """Reads and checks a whole section.

        Raises :class:`DamagedFilterError` if a byte of it differs, and :class:`UnsupportedFormatError` for an intact
        one of a later version; either way the object is to be read as one without a filter.
        """
        try:
            table = open_section(FILTER, data)
        except CorruptionError as error:
            raise DamagedFilterError(f"key filter: {error.message}") from error
        if len(table) != _TABLE.size:
            raise DamagedFilterError("table of a key filter has another length")
        blocks, keys, crc = _TABLE.unpack(table)
        start = HEADER.size + len(table)
        if blocks < 1 or keys < 1 or len(data) != start + BLOCK_BYTES * blocks:
            raise DamagedFilterError("key filter has another length than its blocks")
        if zlib.crc32(memoryview(data)[start:]) != crc:
            raise DamagedFilterError("checksum of a key filter differs")
        return cls(np.frombuffer(data, "<u4", 8 * blocks, start), keys)
