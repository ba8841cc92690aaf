"""The stores that keep consumer groups: one small object a group, made if absent, never replaced, remembered for ever.

::

    {"format": 1, "group": "billing", "store_id": "a"}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice

from tierlog.tiering.base.errors import (
    ConflictError,
    CorruptionError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    UnavailableError,
    UnsupportedFormatError,
)
from tierlog.tiering.base.paths import group_home_key
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.hot.identity import validate_known_store_id
from tierlog.tiering.objects.object_store import ObjectStore

FORMAT = 1
_MOST_BYTES = 64 << 10
MAX_HOMES = 10_000
#: Homes that are remembered; others are read again.
_REMEMBERED = 100_000


def encode_home(group: str, store_id: str) -> bytes:
    """Encodes the object of a group."""
    return (json.dumps({"format": FORMAT, "group": group, "store_id": store_id}) + "\n").encode()


def decode_home(data: bytes, group: str, *, path: str | None = None) -> str:
    """Decodes the store of ``group``; :class:`CorruptionError`, or :class:`UnsupportedFormatError`."""
    try:
        document = json.loads(data if len(data) <= _MOST_BYTES else b"")
        written, named = document["format"], document["group"]
        store_id = validate_known_store_id(document["store_id"])
    except (StoreError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = f"the home of group {group!r} is damaged ({type(error).__name__})"
        raise CorruptionError(problem, path=path) from error
    if isinstance(written, int) and written > FORMAT:
        raise UnsupportedFormatError(f"the home of group {group!r} is of format {written}", path=path)
    if written != FORMAT or named != group:
        raise CorruptionError(f"this is not the home of group {group!r}", path=path)
    return store_id


class GroupHomes:
    """Thread safe. The first use of a group costs one GET, and one LIST for each 1,000 groups and one PUT if it is the
    first anywhere."""

    def __init__(self, objects: ObjectStore, most: int = MAX_HOMES) -> None:
        """Decides no more homes where there are ``most``, groups that were removed included."""
        self._objects = objects
        self._most = most
        self._known: dict[str, str] = {}

    def home(self, group: str, choose: Callable[[], str]) -> str:
        """Returns the store that keeps ``group``; ``choose`` names one if nobody has decided yet.

        Raises :class:`ConflictError` if there are too many, and the object store's error if it does not answer, and
        then nothing was decided as far as anybody knows.
        """
        known = self.known(group)
        if known is None:
            self._check_room()
            known = self._make(group, choose())
            self._remember(group, known)
        return known

    def known(self, group: str) -> str | None:
        """Returns the store of ``group``, None if nobody has decided yet: one GET each time until somebody has."""
        known = self._known.get(group)
        if known is None:
            known = self._read(validate_group(group))
            if known is not None:
                self._remember(group, known)
        return known

    def settle(self, group: str, store_id: str) -> str:
        """Decides for a group that a store had before it was in a cluster: one PUT, that store unless decided."""
        known = self._known.get(group)
        if known is None:
            known = self._known[group] = self._make(validate_group(group), store_id)
        return known

    def _check_room(self) -> None:
        there = sum(1 for _ in islice(self._objects.list(group_home_key("")), self._most))
        if there >= self._most:
            raise ConflictError(
                f"the cluster has had {there} groups already",
                hint="cluster.max_groups is the limit; a home is for ever",
            )

    def _remember(self, group: str, store_id: str) -> None:
        if len(self._known) < _REMEMBERED:
            self._known[group] = store_id

    def _read(self, group: str) -> str | None:
        key = group_home_key(group)
        try:
            data, _ = self._objects.get(key)
        except ObjectNotFoundError:
            return None
        return decode_home(data, group, path=key)

    def _make(self, group: str, store_id: str) -> str:
        """Makes the object. Whatever the put answered, what is there then has decided: ours or a faster one's."""
        key = group_home_key(group)
        try:
            self._objects.put(key, encode_home(group, store_id), if_absent=True)
        except (PreconditionFailedError, UnavailableError) as error:
            found = self._read(group)
            if found is not None:
                return found
            if isinstance(error, UnavailableError):
                raise
            # the refusal was a conflict of two writes that both failed
            raise UnavailableError("the home of a group that stood in the way is gone", path=key) from error
        return store_id
