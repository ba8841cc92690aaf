"""The caches as a whole store and a reader of an archive use them."""

from __future__ import annotations

from pathlib import Path

from tests.support.stores.engines import tiny_settings
from tests.support.threads import wait_for_threads
from tests.support.world import World
from tierlog.index.search.query import Coverage, Query
from tierlog.service.archive.archive import Archive
from tierlog.service.archive.readers import StoreReader
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.cold.manifest.change import ManifestChange
from tierlog.tiering.message.batch import Message

COUNT = 2000
KEY = "key-700"


def cached(**settings: object) -> Settings:
    return tiny_settings(**{"cold__disk_cache_bytes": 1 << 24, **settings})


class ReadWorld(World):
    """An archive of many segments in memory, and those who read it over real files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "store", settings=cached())
        with_store = self.node()
        for start in range(0, COUNT, 100):
            numbers = range(start, start + 100)
            with_store.append(
                [Message("orders", b"%d" % n + bytes(200), [f"key-{n}"], queue_id=n % 3) for n in numbers]
            )
        with_store.archive(everything=True, drop_hot=True)
        with_store.close()

    def node(self, *, read_only: bool = False, **settings: object) -> Store:
        engine = self.open(settings=cached(**settings), read_only=read_only)
        assert engine._cold_index is not None
        engine._cold_index.warm()  # as the background does when it starts
        wait_for_filters()
        return engine

    def reader(self, **settings: object) -> Archive:
        return self.cold(settings=cached(**settings))

    def ranges_asked(self) -> int:
        return sum(call.operation == "get_range" for call in self.bucket.calls)

    def index_ranges_asked(self) -> int:
        return sum(call.operation == "get_range" and call.key.endswith(".idx") for call in self.bucket.calls)


def point_read(engine: StoreReader) -> tuple[int, int]:
    """Requests and round trips of a look-up that must find its message."""
    answer = engine.query(Query("orders", KEY))
    assert [message.keys for message in answer.messages] == [[KEY]]
    wait_for_disk()
    return answer.coverage.requests, answer.coverage.round_trips


def wait_for_disk() -> None:
    wait_for_threads("tierlog-disk-cache")


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_point_read_after_a_restart_costs_no_request(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    node = world.node()
    first, _ = point_read(node)
    node.close()
    assert first > 1
    again = world.node()
    assert point_read(again)[0] == 0
    layers = again.stats()["cache"]
    assert isinstance(layers, dict)
    assert layers["disk"]["hits"] >= first
    again.close()


def test_a_reader_of_an_archive_keeps_its_cache_where_it_is_told(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    for expected in (False, True):
        reader = world.reader(cold__cache_dir=str(tmp_path / "cache"))
        before = world.ranges_asked()
        point_read(reader)
        assert (world.ranges_asked() == before) is expected
        reader.close()


def test_a_reader_of_an_archive_writes_nothing_unless_told(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    before = files_below(tmp_path)
    reader = world.reader()
    point_read(reader)
    reader.close()
    assert files_below(tmp_path) == before


def test_opening_read_only_leaves_the_stores_cache_alone(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    node = world.node()
    point_read(node)
    node.close()
    before = files_below(tmp_path)
    reader = world.node(read_only=True)
    point_read(reader)
    reader.close()
    assert files_below(tmp_path) == before


def wait_for_filters() -> None:
    wait_for_threads("tierlog-filters")


def miss(engine: StoreReader) -> Coverage:
    """A look-up of a key that is nowhere."""
    answer = engine.query(Query("orders", "absent"))
    assert answer.coverage.complete
    assert answer.messages == []
    wait_for_filters()
    return answer.coverage


def test_a_miss_asks_nothing_once_all_filters_are_in_memory(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    reader = world.reader()
    first = miss(reader)
    assert first.index_searched == first.index_considered > 3
    miss(reader)
    again = miss(reader)
    assert (again.index_filtered, again.index_searched) == (first.index_considered, 0)
    assert again.requests == again.manifest_requests
    point_read(reader)
    counters = reader.stats()["cache"]["filters"]  # type: ignore[index]
    assert counters["fetched"] == first.index_considered
    reader.close()


def test_a_node_has_the_filters_of_what_it_publishes_without_a_request_and_after_a_restart(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    node = world.node()
    node.append([Message("orders", b"new", ["key-new"])])
    node.archive(everything=True, drop_hot=True)
    wait_for_filters()
    miss(node)
    miss(node)
    node.close()
    asked = world.index_ranges_asked()
    again = world.node()
    coverage = miss(again)
    assert (coverage.index_filtered, coverage.index_searched) == (coverage.index_considered, 0)
    assert again.stats()["cache"]["filters"]["fetched"] == 0  # type: ignore[index]
    again.close()
    assert world.index_ranges_asked() == asked


def test_filters_of_objects_that_left_the_manifest_leave_memory(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    node = world.node()
    manifest = node._manifest
    assert manifest is not None
    miss(node)
    miss(node)
    filters = node._manifest.cache.others["filters"]  # type: ignore[union-attr]
    before = filters.counters().entries
    gone, *_ = manifest.all_index_entries(manifest.reader(), manifest.refresh())
    manifest.commit_other(ManifestChange(remove=(gone,)))
    miss(node)
    assert filters.counters().entries == before - 1
    assert gone.key not in filters  # type: ignore[operator]
    node.close()


def test_a_cache_that_another_process_has_is_done_without(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    first, second = (world.reader(cold__cache_dir=str(tmp_path / "cache")) for _ in range(2))
    for engine in (first, second):
        point_read(engine)
    assert ["disk" in engine.stats()["cache"] for engine in (first, second)] == [True, False]  # type: ignore[operator]
    for engine in (first, second):
        engine.close()


def test_check_and_queries_by_time_leave_the_hit_rate_of_point_reads_unchanged(tmp_path: Path) -> None:
    world = ReadWorld(tmp_path)
    node = world.node(cold__cache_bytes=200_000, cold__disk_cache_bytes=0)
    point_read(node)
    assert point_read(node)[0] == 0
    assert node.check(deep=True) == []
    seen = 0
    for _ in range(2):
        answer = node.query(Query("orders", limit=COUNT))
        seen += len(answer.messages)
    assert seen == 2 * COUNT
    assert node.stats()["cache"]["metadata"]["evictions"] > 0  # type: ignore[index]
    assert point_read(node)[0] == 0
    node.close()
