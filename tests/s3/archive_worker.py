"""A store whose archive is on a real server, to be killed or raced; run by test_archives.py.

``… loop ROOT URL FROM``: append and archive until killed; a line for each acknowledged message.
``… claim ROOT URL FROM``: append, say ready, wait for a line, archive, say how that ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.message.batch import Message

TOPIC = "t"
_BATCH = 30


def opened(root: Path, url: str) -> Store:
    settings = tiny_settings(cold__s3_endpoint=os.environ["TIERLOG_S3_ENDPOINT"])
    return Store.open(root, settings=settings, cold_url=url, store_id="raced")


def append(engine: Store, first: int) -> int:
    """A batch of a segment's half, and the next number."""
    numbers = range(first, first + _BATCH)
    engine.append([Message(TOPIC, b"%d " % number * 200, keys=(f"k{number}",)) for number in numbers])
    print(f"acknowledged {first} {first + _BATCH}", flush=True)
    return first + _BATCH


def main() -> None:
    mode, root, url, text = sys.argv[1:]
    engine, number = opened(Path(root), url), int(text)
    if mode == "loop":
        while True:
            number = append(engine, append(engine, number))
            engine.archive(everything=True, drop_hot=True)
    append(engine, number)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        engine.archive(everything=True)
    except StoreError as error:
        print(f"lost {type(error).__name__}", flush=True)
    else:
        print("won", flush=True)
    engine.close()


if __name__ == "__main__":
    main()
