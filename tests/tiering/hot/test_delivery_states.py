"""``deliveries.json``: what was noted is there after any stop, whole, and nothing is noted where nothing may be."""

from __future__ import annotations

import json

import pytest

from tests.support.fs.crash_fs import CrashFileSystem, PowerCut
from tests.support.stores.hot_stores import ROOT
from tierlog.tiering.base.errors import ClosedError, ReadOnlyError
from tierlog.tiering.base.fs import replace_file
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.store_state import OpenMessageState, QueueDeliveryState
from tierlog.tiering.hot.delivery_states import DeliveryStates

PATHS = StorePaths(ROOT)
ORDERS = QueueDeliveryState(
    "orders", 0, 17, 25, (OpenMessageState(17, 2, 1_700_000_060_000, 0, 0, "timeout"), OpenMessageState(21, 1, 0, 9, 8))
)
PAYS = QueueDeliveryState("pays", 3, 1, 2, (OpenMessageState(1, 1, 5),))


def disk() -> CrashFileSystem:
    fs = CrashFileSystem()
    for folder in (PATHS.tmp, PATHS.tierlog):
        fs.make_dirs(folder)
    return fs


def states(fs: CrashFileSystem, reason: str | None = None) -> DeliveryStates:
    return DeliveryStates(fs, PATHS, lambda: reason)


def test_what_was_noted_is_there_after_a_power_cut() -> None:
    fs = disk()
    states(fs).save({"g": [ORDERS, PAYS], "h": [PAYS]})
    after = states(fs.crash(1, lose_everything=True))
    assert after.all() == {"g": (ORDERS, PAYS), "h": (PAYS,)}
    assert after.get("nobody") == ()


def test_a_change_of_one_group_leaves_the_others() -> None:
    fs = disk()
    noted = states(fs)
    noted.save({"g": [ORDERS], "h": [PAYS]})
    noted.save({"g": []})
    assert noted.all() == states(fs).all() == {"h": (PAYS,)}


def test_nothing_is_written_where_nothing_changed() -> None:
    fs = disk()
    noted = states(fs)
    noted.save({"g": []})
    assert not fs.exists(PATHS.deliveries_json)
    noted.save({"g": [ORDERS]})
    calls = fs.calls
    noted.save({"g": [ORDERS]})
    assert fs.calls == calls


def test_a_power_cut_anywhere_leaves_what_was_noted_before_or_after(seed: int) -> None:
    found = set()
    for number in range(1, 50):
        fs = disk()
        noted = states(fs)
        noted.save({"g": [ORDERS]})
        fs.cut_at = fs.calls + number
        try:
            noted.save({"g": [PAYS]})
            is_over = True
        except PowerCut:
            is_over = False
        (kept,) = states(fs.crash(seed + number)).get("g")
        assert kept == PAYS or (kept == ORDERS and not is_over)
        found.add(kept)
        if is_over:
            break
    assert found == {ORDERS, PAYS}


def test_what_a_group_was_given_is_durable_before_it_is_noted() -> None:
    fs = disk()
    order: list[str] = []
    noted = DeliveryStates(fs, PATHS, lambda: None, lambda: order.append(str(fs.exists(PATHS.deliveries_json))))
    noted.save({"g": [ORDERS]})
    assert order == ["False"]


def test_a_store_that_cannot_be_written_notes_nothing() -> None:
    fs = disk()
    with pytest.raises(ReadOnlyError, match="no disk"):
        states(fs, "no disk").save({"g": [ORDERS]})
    closed = states(fs)
    closed.close()
    with pytest.raises(ClosedError):
        closed.save({"g": [ORDERS]})
    assert states(fs).all() == {}


def test_members_that_are_not_known_are_ignored() -> None:
    fs = disk()
    states(fs).save({"g": [PAYS]})
    document = json.loads(fs.read(PATHS.deliveries_json))
    del document["crc32"]
    document["deliveries"][0]["later"] = 1
    replace_file(fs, PATHS.deliveries_json, json.dumps(document).encode(), PATHS.tmp)
    assert states(fs).get("g") == (PAYS,)
