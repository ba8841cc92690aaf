"""Ids of topics for tasks that do not know of each other: each can say the id of any topic, and all say the same.

An id is 30 bits of a hash of the name, so that half of the 31-bit ids is left to what comes later. Of 1,000 topics two
have the same id in 1 of 2,000 archives, of 100 in 1 of 200,000: the commit finds it out and makes nothing visible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tiering.errors import InvalidRequestError

_BITS = 30


def topic_id_of(name: str) -> int:
    """The id of a topic in an archive that is written without a list of its topics; at least 1."""
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "big") >> (32 - _BITS)) + 1


def check_ids(names: Iterable[str]) -> None:
    """Raise :class:`InvalidRequestError` if two topics have the same id."""
    seen: dict[int, str] = {}
    for name in sorted(names):
        other = seen.setdefault(topic_id_of(name), name)
        if other != name:
            raise InvalidRequestError(
                f"topics {other!r} and {name!r} have the same id in an archive that is written by tasks alone",
                hint="write them to two stores, or use the job ingest, which numbers topics",
            )
