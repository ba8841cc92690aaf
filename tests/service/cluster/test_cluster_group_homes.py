"""A consumer group has one home for good, whoever asks first."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.objects.faulty_store import FaultyObjectStore
from tierlog.service.cluster.group_homes import GroupHomes, decode_home, encode_home
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import (
    ConflictError,
    CorruptionError,
    InvalidRequestError,
    ObjectStoreUnavailableError,
    UnsupportedFormatError,
)
from tierlog.tiering.base.paths import group_home_key
from tierlog.tiering.hot.consumer_groups import GROUP_PATTERN
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.object_store import validate_key


def nobody() -> str:
    raise AssertionError("somebody has decided before")


@settings(max_examples=30)
@given(st.from_regex(f"^(?:{GROUP_PATTERN})$".replace("$", r"\Z")))
def test_every_legal_group_name_is_a_legal_key(name: str) -> None:
    assert validate_key(group_home_key(name)).endswith(f"/{name}")


def test_the_first_who_asks_decides_for_all() -> None:
    objects = MemoryObjectStore(SystemClock())
    found: list[str] = []
    barrier = threading.Barrier(8)

    def ask(number: int) -> None:
        homes = GroupHomes(objects)
        barrier.wait(30)
        found.append(homes.home("billing", lambda: f"s{number}"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert set(found) == {GroupHomes(objects).home("billing", nobody)}


def test_a_known_group_costs_nothing() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    homes = GroupHomes(objects)
    assert homes.home("a%|b", lambda: "s1") == "s1"
    assert [call.operation for call in objects.calls] == ["get", "list", "put"]
    assert homes.home("a%|b", nobody) == "s1"
    assert homes.settle("a%|b", "s2") == "s1"
    assert len(objects.calls) == 3


def test_a_look_makes_no_home_and_sees_one_as_soon_as_it_is_there() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    looking, deciding = GroupHomes(objects), GroupHomes(objects)
    assert [looking.known("misspelt"), looking.known("misspelt")] == [None, None]
    assert [call.operation for call in objects.calls] == ["get", "get"]
    assert deciding.home("misspelt", lambda: "s1") == "s1"
    assert [looking.known("misspelt"), looking.known("misspelt")] == ["s1", "s1"]
    assert [call.operation for call in objects.calls][2:] == ["get", "list", "put", "get"]
    objects.fail_before("get")
    with pytest.raises(ObjectStoreUnavailableError):
        looking.known("other")


def test_groups_from_before_stay_where_they_are_unless_decided() -> None:
    objects = MemoryObjectStore(SystemClock())
    assert GroupHomes(objects).settle("old", "s2") == "s2"
    assert GroupHomes(objects).settle("old", "s1") == "s2"
    assert GroupHomes(objects).home("old", nobody) == "s2"


def test_a_lost_answer_is_looked_up() -> None:
    objects = FaultyObjectStore(MemoryObjectStore(SystemClock()))
    objects.fail_after("put")
    assert GroupHomes(objects).home("billing", lambda: "s1") == "s1"
    objects.fail_before("put")
    with pytest.raises(ObjectStoreUnavailableError):
        GroupHomes(objects).home("other", lambda: "s1")
    assert GroupHomes(objects).home("other", lambda: "s2") == "s2"


def test_damaged_homes_raise_classes_of_the_tree() -> None:
    assert decode_home(encode_home("g", "a"), "g") == "a"
    for data in (b"", b"[]", b"\xff", encode_home("other", "a"), encode_home("g", "NO"), b"[" * 5000, b" " * 70_000):
        with pytest.raises(CorruptionError):
            decode_home(data, "g")
    with pytest.raises(UnsupportedFormatError):
        decode_home(encode_home("g", "a").replace(b'"format": 1', b'"format": 2'), "g")
    with pytest.raises(InvalidRequestError):
        GroupHomes(MemoryObjectStore(SystemClock())).home("a/b", lambda: "s1")


def test_a_cluster_has_no_more_homes_than_it_may_and_keeps_those_it_has() -> None:
    objects = MemoryObjectStore(SystemClock())
    homes = GroupHomes(objects, 2)
    assert [homes.home(group, lambda: "s1") for group in ("a", "b", "a")] == ["s1"] * 3
    with pytest.raises(ConflictError, match="had 2 groups already"):
        homes.home("c", lambda: "s1")
    assert [GroupHomes(objects, 1).known(group) for group in ("a", "b", "c")] == ["s1", "s1", None]
    assert homes.settle("older", "s2") == "s2", "a group that is there has a home"
