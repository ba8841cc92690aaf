"""The short form of the doctor's question: does compare-and-swap hold here? About 50 requests, once."""

from __future__ import annotations

from tiering.cold.doctor import FOLDER
from tiering.cold.object_store import ObjectStore
from tiering.cold.races import Condition, ThreadRacers, race
from tiering.errors import PreconditionFailedError

_WRITERS = 8
_ROUNDS = 2


def broken_condition(store: ObjectStore, token: str) -> str | None:
    """What is wrong with conditional writes, or None; raises the store's error if it cannot be asked.

    One after another first, which finds servers that know no conditions, then a short race. What is written lies where
    doctors work, and is removed.
    """
    names: list[str] = []

    def name(text: str) -> str:
        names.append(f"{FOLDER}{token}/{text}")
        return names[-1]

    racers = ThreadRacers(store, _WRITERS)
    try:
        for problem in (_absent_is_ignored(store, name("absent")), _match_is_ignored(store, name("stale"))):
            if problem is not None:
                return problem
        for condition in Condition:
            report = race(store, racers, condition, name, _ROUNDS)
            if report.broken:
                return f"put {condition}, raced by {_WRITERS} writers: {report.violations[0]}"
        return None
    finally:
        racers.close()
        for key in dict.fromkeys(names):
            store.delete(key)


def _absent_is_ignored(store: ObjectStore, key: str) -> str | None:
    store.put(key, b"first", if_absent=True)
    try:
        store.put(key, b"second", if_absent=True)
    except PreconditionFailedError:
        return None
    return "put if absent replaced an object"


def _match_is_ignored(store: ObjectStore, key: str) -> str | None:
    stale = store.put(key, b"one").etag
    store.put(key, b"two")
    try:
        store.put(key, b"three", if_match=stale)
    except PreconditionFailedError:
        return None
    return "put if match replaced another version"
