"""What requests cost: list prices of Amazon S3 Standard, us-east-1, USD. Deleting and aborting are free."""

from __future__ import annotations

#: PUT, POST, COPY and LIST; each part of an upload and each page of 1,000 listed names is one.
USD_PER_WRITE = 0.005 / 1000
#: GET, HEAD and every other request.
USD_PER_READ = 0.0004 / 1000
#: An upload that is larger is made in parts of that size, and two requests more; as the S3 client of ours does.
PART_BYTES = 8 << 20
#: Names in one page of a listing.
LISTED_AT_ONCE = 1_000


def usd_of(*, writes: int = 0, reads: int = 0) -> float:
    """The price of so many requests."""
    return writes * USD_PER_WRITE + reads * USD_PER_READ
