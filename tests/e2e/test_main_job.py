"""The main job on whole logs: load, archive, drop the hot copy, and find every line again by key and by time.

The expectation comes from a plain scan of the file (``tests.support.oracles.logs``). Every distinct key and seeded time
ranges are asked three times: all hot, half hot, all cold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.conftest import shared_data_folder
from tests.support.objects.s3_server import S3Server
from tests.support.oracles.logs import (
    LogRules,
    PlainScan,
    real_log,
    real_log_names,
    rules_for,
    scan_plainly,
    write_sample,
)
from tests.support.stores.engines import tiny_settings
from tierlog.index.search.query import Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader
from tierlog.service.cli.line_loader import LineRules, TimestampParser, batches_of, compile_pattern
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.types import Order, PullStatus, TimeAxis
from tierlog.tiering.message.batch import Message
from tierlog.tiering.objects.memory import MemoryObjectStore

TOPIC = "log"
#: Few keys with many messages each, and many keys with few; `make test-all` takes the other logs.
QUICK_LOGS = ("OpenSSH_2k.log", "no-log")
_ASKED = [0]


@dataclass
class Job:
    """One log on its way through a store."""

    engine: Store
    scan: PlainScan
    settings: Settings
    clock: ManualClock
    store_ms: list[int] = field(default_factory=list)

    def append(self, messages: list[Message]) -> None:
        """Load a stretch in small batches, time passing between them."""
        for start in range(0, len(messages), 50):
            self.clock.advance(700)
            acknowledged = self.engine.append(messages[start : start + 50])
            self.store_ms += [each.store_ms for each in acknowledged]


def messages_of(path: Path, rules: LogRules) -> list[Message]:
    """The messages that ``tierlog load`` makes of a file."""
    born = None
    if rules.born and rules.born_format:
        born = TimestampParser(compile_pattern(rules.born), rules.born_format, year=rules.year, now_ms=0)
    line_rules = LineRules(TOPIC, [compile_pattern(key) for key in rules.keys], None, born)
    return [m for batch in batches_of([str(path)], line_rules) for m in batch.messages]


def assert_finds_everything(job: Job, ask: Callable[[Query], list[bytes]], seed: int, *, every: int = 1) -> None:
    """Every distinct key (or one in ``every``), and time ranges on both axes, in both orders, over several pages."""
    loaded = len(job.store_ms)
    lines = job.scan.lines[:loaded]
    wrong = []
    for number, (key, places) in enumerate(job.scan.by_key.items()):
        if number % every:
            continue
        expected = [lines[place].body for place in places if place < loaded]
        order = Order.NEWEST if number % 2 else Order.OLDEST
        found = ask(Query(TOPIC, key, limit=10_000, order=order))
        if found != (expected[::-1] if order is Order.NEWEST else expected):
            wrong.append(key)
    assert wrong == []
    assert ask(Query(TOPIC, "no-such-key")) == []
    chance = random.Random(seed)
    born = [line.born_ms for line in lines]
    axes: list[tuple[TimeAxis, list[int | None]]] = [(TimeAxis.STORE, list(job.store_ms))]
    if None not in born:
        axes.append((TimeAxis.BORN, born))
    for axis, times in axes:
        for order in Order:
            for _ in range(6):
                start, end = sorted(chance.choices([time for time in times if time is not None], k=2))
                end += chance.randrange(1, 3_000)
                inside = sorted((times[n], n) for n in range(loaded) if start <= (times[n] or 0) < end)
                expected = [lines[n].body for _, n in inside]
                limit = chance.choice([5, 64, 1_000, 10_000])
                if len(inside) > 60 * limit:
                    limit = 1_000
                found = ask(Query(TOPIC, None, start, end, limit, axis, order))
                assert found == (expected[::-1] if order is Order.NEWEST else expected), (axis, order, start, end)


def asking(source: StoreReader) -> Callable[[Query], list[bytes]]:
    """Ask for all pages; every page must be complete."""

    def ask(query: Query) -> list[bytes]:
        found: list[bytes] = []
        cursor = None
        while True:
            _ASKED[0] += 1
            page = Query(
                query.topic, query.key, query.from_ms, query.to_ms, query.limit, query.axis, query.order, cursor
            )
            answer = source.query(page)
            assert answer.coverage.complete, answer.coverage
            assert answer.coverage.failures == []
            found += [message.record.body for message in answer.messages]
            cursor = answer.next_cursor
            if cursor is None:
                return found

    return ask


def assert_queues_are_whole(job: Job) -> None:
    """Pulling every queue from the start gives every line once."""
    pulled: list[bytes] = []
    for queue in job.engine.topic(TOPIC).queues:
        offset = 0
        while (answer := job.engine.pull(TOPIC, queue.queue_id, offset, 100)).status is PullStatus.FOUND:
            assert [m.record.queue_offset for m in answer.messages] == list(range(offset, answer.next_offset))
            pulled += [message.record.body for message in answer.messages]
            offset = answer.next_offset
        assert answer.status is PullStatus.NO_NEW_MESSAGE
    assert sorted(pulled) == sorted(line.body for line in job.scan.lines[: len(job.store_ms)])


@contextmanager
def opened_cold(
    kind: str, folder: Path, server: S3Server | None
) -> Iterator[tuple[str, MemoryObjectStore | None, str]]:
    """(cold URL, object store to hand in, S3 endpoint) of one kind of cold tier."""
    if kind == "memory":
        yield "memory://main-job", MemoryObjectStore(ManualClock()), ""
    elif kind == "s3":
        assert server is not None
        yield f"s3://{server.new_bucket()}/archive", None, server.endpoint_url
    else:
        yield f"file://{folder}/cold", None, ""


def run_main_job(path: Path, folder: Path, kind: str, server: S3Server | None, seed: int) -> str:
    """The whole way of one log; returns a line of figures."""
    rules = rules_for(path)
    scan, messages = scan_plainly(path, rules), messages_of(path, rules)
    assert [m.body for m in messages] == [line.body for line in scan.lines]
    assert [tuple(m.keys) for m in messages] == [line.keys for line in scan.lines]
    _ASKED[0] = 0
    few = 10 if kind == "s3" else 1  # all keys are asked of S3 once, when everything is cold
    with opened_cold(kind, folder, server) as (url, objects, endpoint):
        settings = tiny_settings(cold__s3_endpoint=endpoint or None)
        clock = ManualClock()

        def open_engine() -> Store:
            return Store.open(folder / "store", settings=settings, cold_url=url, clock=clock, objects=objects)

        job = Job(open_engine(), scan, settings, clock)
        try:
            half = len(messages) // 2
            job.append(messages[:half])
            assert_finds_everything(job, asking(job.engine), seed, every=few)
            report = job.engine.archive(everything=True, drop_hot=True)
            assert report.border == report.archived_to == report.indexed_to > 0
            job.append(messages[half:])
            assert_finds_everything(job, asking(job.engine), seed + 1, every=few)
            assert_queues_are_whole(job)
            job.engine.close()
            job.engine = open_engine()
            assert job.engine.check(deep=True) == []
            report = job.engine.archive(everything=True, drop_hot=True)
            assert_finds_everything(job, asking(job.engine), seed + 2)
            assert_queues_are_whole(job)
            assert job.engine.check(deep=True) == []
            cold = Archive.open(url, settings=settings, objects=objects)
            assert_finds_everything(job, asking(cold), seed + 3, every=few)
            stored = sum(info.bytes for info in cold.files())
            cold.close()
        finally:
            job.engine.close()
    raw = sum(len(message.body) for message in messages)
    return (
        f"{path.name}: {len(messages)} messages, {len(scan.by_key)} distinct keys, {_ASKED[0]} queries, 0 wrong; "
        f"{raw} body bytes, {report.archived_to} log bytes, {stored} archive bytes"
    )


def quick_or_slow(names: list[str]) -> list[ParameterSet]:
    """One of the logs belongs to the quick tests, all the others to the slow ones."""
    return [pytest.param(name, marks=() if name in QUICK_LOGS else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("file", "memory")), "s3"])
def test_sample_log_is_found_again_from_every_cold_tier(
    kind: str, tmp_path: Path, s3_server: S3Server, seed: int
) -> None:
    lines = 200 if kind == "s3" else 700
    print(run_main_job(write_sample(tmp_path, lines), tmp_path, kind, s3_server, seed))


@pytest.mark.parametrize("name", quick_or_slow(real_log_names(shared_data_folder())))
def test_every_line_of_a_real_log_is_found_again(name: str, shared_data: Path, tmp_path: Path, seed: int) -> None:
    print(run_main_job(real_log(shared_data, name), tmp_path, "file", None, seed))


@pytest.mark.slow
@pytest.mark.timeout(900)  # some ten thousand requests to the S3 server of the tests
@pytest.mark.parametrize("kind", ["memory", "s3"])
@pytest.mark.parametrize("name", real_log_names(shared_data_folder())[:3])
def test_every_line_of_a_real_log_is_found_again_from_other_cold_tiers(
    name: str, kind: str, shared_data: Path, tmp_path: Path, s3_server: S3Server, seed: int
) -> None:
    print(run_main_job(real_log(shared_data, name), tmp_path, kind, s3_server, seed))
