"""A range that has nothing by one time, but something by the other: the answer says so, and never wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.objects.faulty_store import FaultyObjectStore
from tests.support.objects.priced_store import PricedStore
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Answer, Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.querier import Querier
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import NOTHING
from tierlog.service.main import main
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Order, TimeAxis
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

_URL = "memory://loaded"
_BORN_MS = 1_600_000_000_000
#: Around what was born, where nothing was stored.
BORN: dict[str, Any] = {"from_ms": _BORN_MS, "to_ms": _BORN_MS + 1000}
_SETTINGS = tiny_settings(query__concurrency=1)


@dataclass
class Loaded:
    """A store into which old messages were loaded just now."""

    engine: Store
    priced: PricedStore
    faulty: FaultyObjectStore
    clock: ManualClock


@pytest.fixture(params=["hot", "archived"])
def loaded(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Loaded]:
    clock = ManualClock()
    faulty = FaultyObjectStore(MemoryObjectStore(clock))
    priced = PricedStore(faulty)
    with Store.open(
        tmp_path / "s", settings=_SETTINGS, cold_url=_URL, store_id="a", clock=clock, objects=priced
    ) as engine:
        born = [Message("t", b"%d" % at, ["k"], tag="old", born_ms=_BORN_MS + at) for at in range(50)]
        engine.append(born)
        if request.param == "archived":
            engine.archive(everything=True, drop_hot=True)
        yield Loaded(engine, priced, faulty, clock)


def hint_of(answer: Answer) -> str | None:
    assert not answer.messages
    return None if answer.hint is None else answer.hint.axis.value


def test_what_was_born_in_a_range_is_hinted_at_where_nothing_was_stored_in_it_and_the_other_way_round(
    loaded: Loaded,
) -> None:
    now_ms = loaded.clock.now_ms()
    assert hint_of(loaded.engine.query(Query("t", **BORN))) == "born"
    assert hint_of(loaded.engine.query(Query("t", "k", to_ms=_BORN_MS + 1000, order=Order.OLDEST))) == "born"
    assert hint_of(loaded.engine.query(Query("t", from_ms=now_ms - 1000, axis=TimeAxis.BORN))) == "store"


def test_a_querier_and_an_archive_alone_hint_as_a_store_does(loaded: Loaded) -> None:
    loaded.engine.archive(everything=True)
    with Archive.open(_URL, settings=_SETTINGS, clock=loaded.clock, objects=loaded.priced) as archive:
        assert hint_of(archive.query(Query("t", **BORN))) == "born"
    with Querier.open(None, [_URL], settings=_SETTINGS, clock=loaded.clock, objects=loaded.priced) as querier:
        assert hint_of(querier.query(Query("t", **BORN))) == "born"


def test_there_is_no_hint_where_there_is_nothing_to_say(loaded: Loaded) -> None:
    engine = loaded.engine
    for nothing in (
        Query("t", "nobody", **BORN),
        Query("t", tag="new", **BORN),
        Query("t", from_ms=5, to_ms=6),
        Query("t", "nobody"),
    ):
        answer = engine.query(nothing)
        assert (hint_of(answer), answer.coverage.complete) == (None, True)
    assert hint_of(engine.query(Query("t", tag="old", **BORN))) == "born"
    found = engine.query(Query("t", limit=50, from_ms=5))
    assert (found.hint, len(found.messages)) == (None, 50)
    assert engine.query(Query("t", dry_run=True, **BORN)).hint is None


def test_the_requests_of_the_look_are_in_the_bill_and_in_the_budget(loaded: Loaded) -> None:
    for budget in (None, *range(12)):
        before = loaded.priced.requests.total()
        coverage = loaded.engine.query(Query("t", max_requests=budget, **BORN)).coverage
        assert coverage.requests == loaded.priced.requests.total() - before
        assert budget is None or coverage.requests <= budget


def test_a_look_that_fails_says_nothing(loaded: Loaded) -> None:
    whole = loaded.engine.query(Query("t", **BORN))
    loaded.engine.archive(everything=True, drop_hot=True)
    with Archive.open(_URL, settings=_SETTINGS, clock=loaded.clock, objects=loaded.priced) as archive:
        loaded.faulty.fail_before("get_range", "*/log/*", times=None)
        answer = archive.query(Query("t", **BORN))
    loaded.faulty.heal()
    assert hint_of(whole) == "born"
    assert hint_of(answer) is None
    assert (answer.coverage.complete, answer.coverage.failures) == (True, [])


def test_a_service_hints_in_every_form_and_the_command_says_which_flag_to_add(
    loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(loaded.engine, _SETTINGS) as url:
        for flags in ([], ["--all"]):
            argv = ["query", "t", "--from", str(BORN["from_ms"]), "--to", str(BORN["to_ms"]), "--url", url, *flags]
            assert main([*argv, "--format", "json"]) == NOTHING
            out, err = capsys.readouterr()
            assert json.loads(out)["hint"]["time"] == "born"
            assert "messages were born in it: add --time born" in err
        asked = {"from": BORN["from_ms"], "to": BORN["to_ms"]}
        for more in ({}, {"all": "true"}):
            lines = httpx.get(
                f"{url}/v1/topics/t/messages", params=asked | more, headers={"Accept": "application/x-ndjson"}
            ).text.splitlines()
            assert json.loads(lines[-1])["hint"]["time"] == "born"
            assert len(lines) == 1
