"""Above the watermark hot copies go whatever their age, if the archive holds them; above the limit appends wait."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.service.api_client import ApiClient
from tests.support.stores.engines import tiny_settings
from tests.support.world import ROOT, URL, World
from tierlog.index.search.query import Query
from tierlog.service.api.application.app import create_app
from tierlog.service.api.metrics import Metrics
from tierlog.tiering.base.errors import DiskFullError, UnavailableError
from tierlog.tiering.base.types import Order, PullStatus
from tierlog.tiering.message.batch import Message

SEGMENT = 65_536
TOTAL = 40 * SEGMENT
BODY = bytes(4_000)


class SmallDisk(CrashFileSystem):
    """A disk that holds 40 segments; what lies on it is used, and what others put there."""

    others = 0
    total = TOTAL

    def free_bytes(self, path: Path) -> int:
        return max(0, self.total - self.others - sum(len(inode.data) for inode in list(self._names.values())))

    def total_bytes(self, path: Path) -> int:
        return self.total

    def segments(self) -> list[int]:
        return [int(name) for name in self.list_dir(ROOT / "commitlog")]


class FullWorld(World):
    fs: SmallDisk

    def __init__(self, *, has_archive: bool = True, **settings: object) -> None:
        sizes = {"hot__disk_max_used_percent": 50, "hot__disk_full_percent": 75, "index__items": 200, **settings}
        super().__init__(settings=tiny_settings(**sizes), fs=SmallDisk(), url=URL if has_archive else None)
        self.appended = 0
        self.open()

    def append(self, segments: int = 1) -> None:
        for _ in range(segments * SEGMENT // 4_096):
            self.clock.advance(200)
            self.engine.append([Message("t", b"%06d" % self.appended + BODY, [f"k{self.appended}"], queue_id=0)])
            self.appended += 1

    def fill_up(self) -> None:
        while True:
            self.append()
            self.round()

    def round(self) -> None:
        with contextlib.suppress(UnavailableError):
            self.engine.run_tiers()

    def used_percent(self) -> float:
        return 100 - 100 * self.fs.free_bytes(ROOT) / TOTAL

    def numbers(self) -> list[int]:
        answer = self.engine.query(Query("t", None, limit=10_000, order=Order.OLDEST))
        assert answer.coverage.complete
        return [int(message.record.body[:6]) for message in answer.messages]


def test_below_the_watermark_nothing_goes_before_its_age() -> None:
    world = FullWorld()
    world.append(10)
    for _ in range(3):
        world.round()
    assert world.used_percent() < 50
    assert world.fs.segments()[0] == 0


def test_above_it_the_oldest_copies_go_once_they_are_archived_and_indexed() -> None:
    world = FullWorld()
    for _ in range(30):
        world.append(2)
        world.round()
        world.round()
        assert world.used_percent() <= 50 + 100 * 3 / 40
    assert world.fs.segments()[0] > 0
    assert world.numbers() == list(range(world.appended))
    assert [message.keys for message in world.engine.query(Query("t", "k3")).messages] == [["k3"]]
    assert world.engine.check(deep=True) == []


def test_no_more_goes_than_brings_the_disk_below_it() -> None:
    world = FullWorld()
    world.append(10)
    world.engine.archive(everything=True)
    world.fs.others = TOTAL * 51 // 100 - (TOTAL - world.fs.free_bytes(ROOT))
    before = world.fs.segments()
    for _ in range(3):
        world.round()
    assert world.used_percent() <= 50
    assert world.fs.segments() == before[1:]


@pytest.mark.parametrize("has_archive", [True, False])
def test_at_most_ten_segments_go_in_a_round_and_never_the_last(has_archive: bool) -> None:
    world = FullWorld(has_archive=has_archive, hot__disk_max_used_percent=74)
    world.append(24)
    world.round()
    kept = world.fs.segments()
    assert kept[0] == 0
    world.fs.total, world.fs.others = 3 * TOTAL, TOTAL * 9 // 4
    world.round()
    assert world.fs.segments()[0] == kept[10]
    for _ in range(4):
        world.round()
    (last,) = world.fs.segments()
    assert last >= kept[-1]
    assert world.engine.pull("t", 0, world.appended - 1, 1).status is PullStatus.FOUND
    assert world.engine.pull("t", 0, 0, 1).status is (PullStatus.FOUND if has_archive else PullStatus.OFFSET_TOO_SMALL)
    assert world.engine.check() == []


def test_nothing_unpublished_goes_whatever_the_disk_says() -> None:
    world = FullWorld()
    world.append(2)
    world.round()
    world.bucket.die()
    world.append(20)
    world.fs.others = TOTAL
    archived_to = world.engine.stats()["archived_to"]
    for _ in range(5):
        world.round()
        world.clock.advance(10**9)
        segments = world.fs.segments()
        assert segments[0] <= archived_to  # type: ignore[operator]
        assert segments[-1] >= 20 * SEGMENT
    world.engine.close()
    world.open()  # with an archive that it cannot reach
    world.round()
    assert world.fs.segments() == segments
    world.bucket.revive()
    assert world.numbers() == list(range(world.appended))
    for _ in range(4):
        world.clock.advance(20_000)
        world.round()
    assert len(world.fs.segments()) == 1
    assert world.numbers() == list(range(world.appended))
    assert world.engine.check(deep=True) == []


def test_a_store_that_never_reached_its_archive_removes_nothing() -> None:
    world = FullWorld()
    world.bucket.die()
    world.append(5)
    world.fs.others = TOTAL
    for _ in range(3):
        world.round()
        world.clock.advance(10**9)
    assert world.fs.segments()[0] == 0


def test_above_the_limit_appends_are_refused_before_anything_is_written_and_go_on_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = FullWorld(has_archive=False)
    metrics = Metrics(world.engine)
    assert b"\ntierlog_disk_full 0.0\n" in metrics.text()
    world.append(1)
    calls, before = world.fs.calls, world.engine.stats()["log_end"]
    world.fs.others = TOTAL * 3 // 4
    world.clock.advance(1_000)
    for topic in ("t", "new"):
        with pytest.raises(DiskFullError):
            world.engine.append([Message(topic, b"x")])
    assert (world.fs.calls, world.engine.stats()["log_end"]) == (calls, before)
    assert world.engine.disk_full_reason is not None
    assert world.engine.read_only_reason is None
    assert b"\ntierlog_disk_full 1.0\n" in metrics.text()
    assert world.numbers() == list(range(world.appended))
    world.engine.groups.commit("g", {("t", world.engine.store_id, 0): 3})
    world.fs.others = 0
    world.clock.advance(1_000)
    world.append(1)
    assert world.engine.disk_full_reason is None
    assert b"\ntierlog_disk_full 0.0\n" in metrics.text()
    assert [line.split(":")[0] for line in caplog.messages if "appends" in line] == [
        "appends are refused",
        "there is room on the disk again; appends go on",
    ]
    assert world.numbers() == list(range(world.appended))
    assert world.engine.check() == []


def test_a_dead_archive_fills_the_disk_to_the_limit_and_a_living_one_empties_it() -> None:
    world = FullWorld()
    world.append(1)
    world.round()
    world.bucket.die()
    with pytest.raises(DiskFullError):
        world.fill_up()
    assert 75 < world.used_percent() < 90
    world.bucket.revive()
    while world.engine.disk_full_reason is not None:
        world.clock.advance(20_000)
        world.round()
    for _ in range(8):
        world.round()
    assert world.used_percent() <= 50 + 100 / 40
    world.append(1)
    assert world.numbers() == list(range(world.appended))
    assert world.engine.check(deep=True) == []


def test_a_full_disk_is_507_and_not_ready_and_reading_goes_on() -> None:
    world = FullWorld(has_archive=False)
    world.append(1)
    http = ApiClient(create_app(world.engine, world.settings))
    world.fs.others = TOTAL
    world.clock.advance(1_000)
    body = {"messages": [{"body": "x"}]}
    answer = http.request("POST", "/v1/topics/t/messages", body)
    assert (answer.status_code, answer.json()["type"]) == (507, "urn:tierlog:problem:disk-full")
    ready = http.request("GET", "/readyz")
    assert (ready.status_code, "over 75 % full" in ready.json()["detail"]) == (503, True)
    assert http.request("GET", "/livez").status_code == 200
    assert len(http.request("GET", "/v1/topics/t/queues/0/messages?offset=3").json()["messages"]) > 5
    assert http.request("GET", "/v1/stats").json()["disk_free_bytes"] == 0
    world.fs.others = 0
    world.clock.advance(1_000)
    assert http.request("POST", "/v1/topics/t/messages", body).status_code == 200
    assert http.request("GET", "/readyz").status_code == 200
