"""URLs of cold tiers, and the stores below the prefix of one.

The forms are ``file:///dir``, ``file://./dir``, ``s3://bucket/prefix`` and ``memory://name``. A path that begins with
``/``, ``./`` or ``../`` is that of a directory; a bare name is none, because it may be meant for a bucket.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from typing import NamedTuple

from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.paths import store_of_head
from tierlog.tiering.objects.local import LocalObjectStore
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import ObjectStore, validate_key
from tierlog.tiering.objects.s3_client import DEFAULT_LIMITS, S3Limits
from tierlog.tiering.objects.s3_protocol import DEFAULT_KEEPING, S3ObjectOptions
from tierlog.tiering.objects.s3_store import S3ObjectStore

_HINT = "use a directory (/directory or file:///directory), s3://bucket/prefix or memory://name"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

_memory_stores: dict[str, MemoryObjectStore] = {}
_memory_lock = threading.Lock()


class _Place(NamedTuple):
    scheme: str
    name: str
    prefix: str = ""


def open_object_store(
    url: str,
    *,
    clock: Clock,
    endpoint_url: str | None = None,
    limits: S3Limits = DEFAULT_LIMITS,
    keeping: S3ObjectOptions = DEFAULT_KEEPING,
    make: bool = True,
) -> ObjectStore:
    """Opens the object store at ``url``; with ``make`` a missing directory is made, but never a bucket.

    ``memory://name`` gives every caller in this process the same store, with the clock of the first one. The
    endpoint, the limits and how objects are kept are for S3 only. Raises InvalidRequestError for a URL of another form.
    """
    place = _parse(url)
    if place.scheme == "file":
        return LocalObjectStore(place.name, clock, make=make)
    if place.scheme == "memory":
        with _memory_lock:
            return _memory_stores.setdefault(place.name, MemoryObjectStore(clock))
    return S3ObjectStore(
        place.name,
        place.prefix,
        endpoint_url=endpoint_url,
        limits=limits,
        keeping=keeping,
    )


def canonical_url(url: str) -> str:
    """Returns the one text for all spellings of ``url``, which a store remembers to know its archive again.

    Paths become absolute and lose ``..`` and trailing slashes; symbolic links are kept, as their target may
    move.
    """
    place = _parse(url)
    return f"{place.scheme}://{place.name}" + (f"/{place.prefix}" if place.prefix else "")


def stores_below(objects: ObjectStore) -> Iterable[str]:
    """Yields the ids of the stores below the prefix.

    It takes one listing request for each: a jump skips the store's other objects.
    """
    after = ""
    while True:
        key = next((info.key for info in objects.list("", after)), None)
        if key is None:
            return
        folder = key.partition("/")[0]
        for info in objects.list(f"{folder}/head"):
            if store_of_head(info.key) is not None:
                yield folder
            break
        after = f"{folder}/\U0010ffff"


def _parse(url: str) -> _Place:
    if url.startswith(("/", "./", "../")):
        return _parse_file(url, url)
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in ("file", "s3", "memory"):
        raise InvalidRequestError(f"{url!r} is not the URL of an object store", hint=_HINT)
    if scheme == "file":
        return _parse_file(url, rest)
    if scheme == "memory":
        name = rest.rstrip("/")
        if not name or "/" in name:
            raise InvalidRequestError(f"{url!r} does not name a memory store", hint=_HINT)
        return _Place(scheme, name)
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or "?" in bucket:  # not repeated here: what people put there is their password
        raise InvalidRequestError(
            "the S3 URL has a user, a password or options in it",
            hint="credentials come from the usual AWS variables and files, the endpoint from TIERLOG_S3_ENDPOINT",
        )
    if not _BUCKET.fullmatch(bucket):
        raise InvalidRequestError(f"{url!r} does not name a bucket", hint=_HINT)
    prefix = prefix.strip("/")
    if "?" in prefix or "#" in prefix:
        raise InvalidRequestError(
            f"the URL of bucket {bucket} has options", hint="the endpoint and the region are settings, not parts of it"
        )
    if prefix:
        try:
            validate_key(prefix)
        except StoreError as error:
            raise InvalidRequestError(f"{url!r} has a prefix that no key can have: {error.message}") from error
    return _Place(scheme, bucket, prefix)


def _parse_file(url: str, rest: str) -> _Place:
    # The path is taken as it stands, without percent-decoding: people type it, and "%" and "#" are legal in
    # names.
    if not rest.startswith("/") and rest.split("/", 1)[0] not in (".", ".."):
        raise InvalidRequestError(
            f"{url!r} names a host",
            hint="use file:///directory, or ./directory from the working directory",
        )
    if "\0" in rest:
        raise InvalidRequestError(f"{url!r} is not a path")
    # abspath and not Path.absolute, which keeps "..". POSIX lets it keep two leading slashes; we do not.
    path = "/" + os.path.abspath(rest).lstrip("/")
    if path == "/":
        raise InvalidRequestError(f"{url!r} is the root directory", hint="name a directory for the archive")
    return _Place("file", path)
