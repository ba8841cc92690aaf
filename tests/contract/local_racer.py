"""One of two processes that race for the objects of a local store; run by test_local_store.py."""

from __future__ import annotations

import json
import sys

from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import PreconditionFailedError
from tierlog.tiering.objects.local import LocalObjectStore

_CLAIMS = 40
_ADDITIONS = 20


def main() -> None:
    store = LocalObjectStore(sys.argv[1], SystemClock())
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    for number in range(_CLAIMS):
        try:
            store.put(f"claim/{number}", b"mine", if_absent=True)
        except PreconditionFailedError:
            continue
        won.append(f"claim/{number}")
    added = 0
    while added < _ADDITIONS:
        data, info = store.get("count")
        try:
            store.put("count", b"%d" % (int(data) + 1), if_match=info.etag)
        except PreconditionFailedError:
            continue
        added += 1
    print(json.dumps({"won": won, "added": added}))


if __name__ == "__main__":
    main()
