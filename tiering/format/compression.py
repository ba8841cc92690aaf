"""Compressed bytes whose length is known or bounded before anything is allocated for them."""

from __future__ import annotations

import threading

import zstandard

from tierlog.tiering.base.errors import ChecksumMismatchError, TornRecordError

_OF_THREAD = threading.local()


def decompress(
    data: bytes, most_bytes: int, what: str, *, path: str | None = None, position: int | None = None
) -> bytes:
    """Returns the content of one zstd frame of at most ``most_bytes``.

    zstd allocates what a frame's header says it holds, whatever limit it is given, and the limit if the header does
    not say; ours do, so the header is looked at first. Raises :class:`ChecksumMismatchError` for what is no frame or a
    damaged one, :class:`TornRecordError` for one that says it is larger, or nothing.
    """
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most_bytes:
            raise TornRecordError(f"{what} of {size} bytes, at most {most_bytes}", path=path, position=position)
        return _decompressor().decompress(data, max_output_size=max(most_bytes, 1))
    except zstandard.ZstdError as error:
        raise ChecksumMismatchError(f"{what} does not decompress: {error}", path=path, position=position) from error


def decompress_neighbours(data: memoryview, out: memoryview) -> int:
    """Returns the content of frames that follow each other, by one call for all of them; how many bytes they hold.

    ``out`` has room for one byte more, as zstd may call the last frame done before its checksum was read. Memory is
    taken for what headers say, so the caller has looked at them. Raises :class:`ChecksumMismatchError` if one is
    damaged, of which a look at each of them says more.
    """
    try:
        with _decompressor().stream_reader(data, read_across_frames=True) as reader:
            return reader.readinto(out)
    except zstandard.ZstdError as error:
        raise ChecksumMismatchError(f"frames do not decompress: {error}") from error


def _decompressor() -> zstandard.ZstdDecompressor:
    """This thread's own, as two threads must not use one; a new one costs a third of decompressing 64 KiB."""
    if not hasattr(_OF_THREAD, "decompressor"):
        _OF_THREAD.decompressor = zstandard.ZstdDecompressor()
    found: zstandard.ZstdDecompressor = _OF_THREAD.decompressor
    return found
