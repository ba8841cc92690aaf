"""An upload in parts that never ends by itself; run, and killed, by s3_contract.py."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from tests.contract.contract_base import PART_BYTES
from tierlog.tiering.objects.s3_store import S3ObjectStore


def _pieces() -> Iterator[bytes]:
    for _ in range(3):
        yield bytes(PART_BYTES)  # a part is sent when the next one is there
    print("two parts are stored", flush=True)
    time.sleep(600)


def main() -> None:
    bucket, root, endpoint_url = sys.argv[1:]
    store = S3ObjectStore(bucket, root, endpoint_url=endpoint_url, part_bytes=PART_BYTES)
    store.upload("up/x", _pieces())


if __name__ == "__main__":
    main()
