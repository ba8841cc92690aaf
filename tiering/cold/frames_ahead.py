"""Decompresses frames that are read in order, some of them on another thread while those before are read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial

from tiering.cold.caching.fetch_pool import FetchPool
from tiering.errors import StoreError
from tiering.format.sorted_segment import FramePlace

#: Frames that a thread decompresses at a time: to hand over less takes as long as the work.
GROUP_FRAMES = 16

Decode = Callable[[FramePlace], bytes]
#: Takes so many bytes of memory if they are left, and gives them back.
Take = Callable[[int], bool]
Give = Callable[[int], None]


def frames_ahead(
    places: Sequence[FramePlace], decode: Decode, pool: FetchPool, take: Take, give: Give
) -> Generator[bytes]:
    """The frames in order; what ``decode`` raises comes up where its frame would have come.

    Of each group of 16 frames the next one is decompressed on the pool, if there is memory for it. Where no thread has
    begun with it by the time that it is wanted, whoever wants it does it himself: nobody waits for a busy pool.
    """
    held = coming_bytes = 0
    coming: Future[list[bytes]] | None = None
    try:
        for start in range(0, len(places), GROUP_FRAMES):
            frames = [] if coming is None or coming.cancel() else coming.result()
            held, coming_bytes, coming = coming_bytes, 0, None
            following = places[start + GROUP_FRAMES : start + 2 * GROUP_FRAMES]
            size = sum(place.raw_bytes for place in following)
            if following and take(size):
                coming, coming_bytes = pool.submit(partial(_decoded, following, decode)), size
            for number, place in enumerate(places[start : start + GROUP_FRAMES]):
                yield frames[number] if number < len(frames) else decode(place)
            give(held)
            held = 0
    finally:
        if coming is not None:
            coming.cancel()
        give(held + coming_bytes)


def _decoded(places: Sequence[FramePlace], decode: Decode) -> list[bytes]:
    """As many as are whole: the next one is decoded again by who wants it, who has to be told what is wrong."""
    frames = []
    for place in places:
        try:
            frames.append(decode(place))
        except StoreError:
            break
    return frames
