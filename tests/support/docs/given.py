"""What a page takes for granted: ``given THING PLACE`` in a setup comment makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.rocketmq.golden import unpack
from tierlog.service.sample import sample_log


def main(arguments: Sequence[str]) -> int:
    """``log FILE LINES``: the sample's log. ``broker DIR [NAME]``: a store that RocketMQ wrote (tests/golden)."""
    thing, place, *more = arguments
    path = Path(place).expanduser().absolute()
    if thing == "log":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(sample_log(int(more[0]))))
    elif thing == "broker":
        unpack(more[0] if more else "clean", path)
    else:
        raise ValueError(f"nobody knows how to give {thing!r}")
    return 0
