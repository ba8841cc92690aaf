"""Several brokers of one process, what settings are refused, and what is asked of a way to a broker."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.rocketmq.fake_cluster import cluster_of
from tests.support.rocketmq.scripted_broker import FollowerWorld, ScriptedBroker, facts, until
from tests.support.stores.engines import small_settings
from tests.support.stores.followed import BrokerLog, broker_log
from tierlog.index.search.query import Query
from tierlog.service.config.follow import FollowSettings
from tierlog.service.follow.followed_broker import FollowState
from tierlog.service.follow.followed_directory import store_id_of
from tierlog.service.follow.follower import margin_ms
from tierlog.service.follow.followers import Followers
from tierlog.service.follow.upstream import BrokerNow, check_settings, upstream_of
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, UnavailableError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.rocketmq.log_source import LogBounds, NoLogYetError, SourceLostError

HOUR_MS = 3_600_000


def followers_of(world: FollowerWorld, **brokers: ScriptedBroker) -> Followers:
    names = " ".join(brokers)
    settings = world.settings.model_copy(update={"follow": FollowSettings(broker=names, namesrv="127.0.0.1:1")})
    return Followers.of(
        world.root, settings, cold_url=world.url, clock=world.clock, fs=world.fs, objects=cast("Any", world.bucket),
        upstream=brokers.__getitem__,
    )  # fmt: skip


def test_each_broker_has_a_store_and_one_that_is_away_holds_up_no_other() -> None:
    world = FollowerWorld(broker_log(60))
    near, far = ScriptedBroker(broker_log(60), world, name="near"), ScriptedBroker(broker_log(120), world, name="far")
    followers = followers_of(world, near=near, far=far)
    followers.open()
    near.refusal = UnavailableError("nobody listens")
    followers.start()
    assert far.done.wait(20)
    first, second = followers.brokers()
    waits = threading.Event()
    for _ in range(2_000):  # near's pauses move the clock of both: far may be behind for a moment
        if second.state is FollowState.FOLLOWING:
            break
        waits.wait(0.01)
    assert (first.state, second.state) == (FollowState.CONNECTING, FollowState.FOLLOWING)
    assert second.end == far.log.end
    problem = followers.readiness_problem
    assert problem is not None
    assert "near" in problem.reason
    followers.stop()
    assert world.fs.exists(world.root / "near" / "commitlog")
    assert world.fs.exists(world.root / "far" / "commitlog")


def test_a_store_that_does_not_open_leaves_none_open() -> None:
    world = FollowerWorld(broker_log(60))
    far = ScriptedBroker(broker_log(60), world, name="far")
    far.refusal = NotFoundError("no broker has the name far")
    followers = followers_of(world, near=world.broker, far=far)
    with pytest.raises(InvalidRequestError, match="has the name far"):
        followers.open()
    assert not world.fs.is_locked(world.root / "near" / "lock")


def test_a_stop_ends_a_follower_whose_broker_hangs() -> None:
    world = FollowerWorld(broker_log(60))
    hangs, ends = threading.Event(), threading.Event()

    def hang(number: int) -> None:
        hangs.set()
        ends.wait(20)

    followers = followers_of(world, near=world.broker)
    followers.open()
    world.broker.on_read = hang
    followers.start()
    assert hangs.wait(20)
    followers.stop()
    assert followers.brokers()[0].state is FollowState.STOPPED
    assert not world.fs.is_locked(world.root / "near" / "lock")
    ends.set()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"broker": ""}, "no broker is named"),
        ({"namesrv": ""}, "where the broker is found"),
        ({"broker": "a b", "ha": "127.0.0.1:1"}, "--ha is of one broker"),
        ({"broker": "a b", "store": "/x"}, "--store is of one broker"),
        ({"store": "/x", "mode": "replica"}, "a replica is what"),
        ({"hold": True}, "--hold"),
        ({"store": "/x", "namesrv": "", "promote": True}, "whether the broker is gone"),
        ({"store": "/x", "namesrv": "", "listen": "127.0.0.1:1"}, "who looks for the archive"),
        ({"namesrv": "nowhere"}, "is no address"),
        ({"access_key": "k"}, "go together"),
        ({"secret_key": "s"}, "go together"),
        ({"access_key": "k", "secret_key_file": "/nowhere/secret"}, "cannot be read"),
    ],
)
def test_settings_that_say_too_little_or_contradict_each_other_are_refused(changes: dict[str, Any], what: str) -> None:
    settings = FollowSettings(**{"broker": "a", "namesrv": "127.0.0.1:9876", **changes})
    with pytest.raises(InvalidRequestError, match=what):
        check_settings(settings)


def test_a_secret_comes_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("very-secret\n")
    settings = FollowSettings(broker="a", namesrv="127.0.0.1:9876", access_key="k", secret_key_file=tmp_path / "secret")
    check_settings(settings)
    assert "very-secret" not in repr(FollowSettings(secret_key="very-secret"))  # type: ignore[arg-type]


def test_names_of_brokers_become_ids_of_stores() -> None:
    assert [store_id_of(name) for name in ("broker-a", "Broker_A.1", "x" * 80)] == ["broker-a", "broker-a-1", "x" * 63]
    with pytest.raises(InvalidRequestError, match="--store-id"):
        store_id_of("___")
    with pytest.raises(InvalidRequestError, match="same store"):
        Followers.of(Path("/x"), _settings("Broker_A broker-a"))
    with pytest.raises(InvalidRequestError, match="of one broker"):
        Followers.of(Path("/x"), _settings("a b"), store_id="c")


def _settings(brokers: str) -> Any:
    return small_settings().model_copy(update={"follow": FollowSettings(broker=brokers, namesrv="127.0.0.1:1")})


def test_a_margin_ends_when_the_broker_may_remove_what_is_not_here() -> None:
    now_ms, size = 1_000 * HOUR_MS, facts().segment_bytes
    old_ms = now_ms - 70 * HOUR_MS
    behind, level = BrokerNow(LogBounds(0, 5 * size + 9)), 5 * size
    assert margin_ms(facts(), behind, level, old_ms, now_ms) == 72 * HOUR_MS  # the newest segment stays
    assert margin_ms(facts(), behind, 2 * size, old_ms, now_ms) == 2 * HOUR_MS
    assert margin_ms(facts(), behind, 2 * size, now_ms - 80 * HOUR_MS, now_ms) == 0
    full = BrokerNow(behind.bounds, 0.9)
    assert margin_ms(facts(), full, 2 * size, now_ms, now_ms) == 0
    assert margin_ms(None, behind, 2 * size, old_ms, now_ms) is None


def test_a_master_that_the_nameserver_forgot_is_asked_where_it_was() -> None:
    log = broker_log(60)
    with cluster_of(broker_a=log) as cluster:
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        first = upstream.connect()
        assert (first.cluster, first.address) == ("east", cluster.brokers[0].remoting.address)
        assert first.now() == BrokerNow(LogBounds(0, log.end), 0.4)
        assert [group.name for group in first.state().groups] == ["shop"]
        first.close()
        assert not upstream.is_gone()
        cluster.nameserver.close()
        again = upstream.connect()
        assert again.address == first.address
        again.close()
        cluster.brokers[0].close()
        assert upstream.is_gone()


@pytest.mark.parametrize("is_reachable", [False, True])
def test_a_master_that_moved_is_found_where_the_nameserver_says_whether_the_old_one_answers_or_not(
    is_reachable: bool,
) -> None:
    log, longer = broker_log(60), broker_log(120)
    with cluster_of(broker_a=log, other=longer) as cluster:
        before, after = cluster.brokers
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        upstream.connect().close()
        if not is_reachable:
            before.close()
        cluster.tell("broker-a", after, before)
        moved = upstream.connect()
        assert moved.address == after.remoting.address
        assert upstream.slaves == (before.remoting.address,)
        assert moved.now() == BrokerNow(LogBounds(0, longer.end), 0.4)
        moved.source.begin(log.end)
        assert bytes(moved.source.read(20.0)) in longer.data[log.end :]
        moved.close()


def test_a_broker_is_not_gone_while_a_slave_of_it_may_become_master() -> None:
    log = broker_log(60)
    with cluster_of(broker_a=log, other=log) as cluster:
        master, slave = cluster.brokers
        cluster.tell("broker-a", master, slave)
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        upstream.connect().close()
        master.close()
        cluster.tell("broker-a", None, slave)
        assert not upstream.is_gone()
        assert not upstream.is_back()  # it takes no messages as a slave
        slave.close()
        assert upstream.is_gone()


def test_while_a_slave_acts_as_master_nothing_is_promoted_and_the_master_that_is_back_is_followed_on() -> None:
    log, longer = broker_log(60), broker_log(120)
    world = FollowerWorld(log)
    with cluster_of(broker_a=log, slave=log, back=longer) as cluster:
        master, slave, back = cluster.brokers
        cluster.tell("broker-a", master, slave)
        follow = FollowSettings(
            broker="broker-a", namesrv=cluster.nameserver.address, promote=True, promote_after_ms=1_000
        )
        followers = Followers.of(
            world.root, world.settings.model_copy(update={"follow": follow}), cold_url=world.url, clock=world.clock,
            fs=world.fs, objects=cast("Any", world.bucket),
        )  # fmt: skip
        followers.open()
        followers.start()
        (broker,) = followers.brokers()
        until(lambda: broker.end == log.end)
        master.close()
        cluster.tell("broker-a", None, slave)
        until(lambda: broker.state is FollowState.CONNECTING)
        gone_ms = world.clock.now_ms()
        until(lambda: world.clock.now_ms() > gone_ms + 60_000)  # the follower's waits move it
        assert broker.state is FollowState.CONNECTING
        assert broker.slaves == (slave.remoting.address,)
        asked = {frame.code for frame in slave.remoting.asked}
        cluster.tell("broker-a", back, slave)
        until(lambda: broker.end == longer.end and broker.state is FollowState.FOLLOWING)
        assert not asked  # it has no log of its own
        assert broker.store is not None
        for number in range(120):
            topic = "orders" if number // 6 % 2 == 0 else "%RETRY%shop"
            assert len(broker.store.query(Query(topic=topic, key=f"key-{number}")).messages) == 1
        followers.stop()


def test_a_broker_that_listens_and_answers_nothing_is_not_gone() -> None:
    with cluster_of(broker_a=broker_log(60)) as cluster:
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        upstream.connect().close()
        cluster.brokers[0].remoting.raw = b""
        cluster.nameserver.raw = b""
        assert not upstream.is_gone()


@pytest.mark.parametrize("source", ["network", "files"])
def test_a_process_that_begins_while_the_broker_is_gone_knows_where_it_was(source: str, tmp_path: Path) -> None:
    log = broker_log(60)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020}").write_bytes(log.data[: log.segment_bytes])
    with cluster_of(broker_a=log) as cluster:
        store = tmp_path if source == "files" else None
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address, store=store)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        cluster.tell("broker-a", None)
        assert not upstream.is_gone()  # nothing is known of it
        upstream.remember(cluster.brokers[0].remoting.address)
        assert upstream.is_back()
        cluster.brokers[0].close()
        assert upstream.is_gone()
        assert not upstream.is_back()


def test_a_folder_without_the_log_of_a_broker_that_has_had_messages_is_refused_and_not_waited_for(
    tmp_path: Path,
) -> None:
    with cluster_of(broker_a=BrokerLog(b"")) as cluster:
        settings = FollowSettings(broker="broker-a", store=tmp_path, namesrv=cluster.nameserver.address)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        with pytest.raises(NoLogYetError):
            upstream.connect()
        cluster.brokers[0].grow(broker_log(60))
        with pytest.raises(NotFoundError, match="has had messages, and no log is here"):
            upstream.connect()


def test_a_broker_that_answers_again_is_asked_though_its_files_were_followed_while_it_did_not(tmp_path: Path) -> None:
    log, paths, clock = broker_log(60), StorePaths(tmp_path), ManualClock()
    paths.commitlog.mkdir()
    _write(log, paths)
    with cluster_of(broker_a=log) as cluster:
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address, store=tmp_path)
        upstream = upstream_of("broker-a", settings, clock, LocalFileSystem())
        cluster.tell("broker-a", None)  # it was started again, and is not registered yet
        link = upstream.connect()
        clock.advance(10_000)
        assert link.now().bounds.min_offset == 0
        cluster.tell("broker-a", cluster.brokers[0])
        clock.advance(9_999)
        assert link.now().disk_used is None
        clock.advance(1)
        with pytest.raises(SourceLostError, match="answers again"):
            link.now()
        link.close()
        link = upstream.connect()
        assert link.now().disk_used is not None
        link.close()


def _write(log: BrokerLog, paths: StorePaths) -> None:
    """The files of a broker that runs."""
    paths.commitlog.mkdir(exist_ok=True)
    for base in range(0, log.end, log.segment_bytes):
        paths.segment(base).write_bytes(log.data[base : base + log.segment_bytes].ljust(log.segment_bytes, b"\0"))
    paths.abort.touch()


def test_files_are_read_alone_once_another_broker_has_the_name_after_a_failover(tmp_path: Path) -> None:
    log, longer, paths = broker_log(60), broker_log(400), StorePaths(tmp_path)
    assert longer.end > log.end + log.segment_bytes
    _write(log, paths)
    with cluster_of(broker_a=log, other=longer) as cluster:
        its, other = cluster.brokers
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address, store=tmp_path)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        link = upstream.connect()
        assert (link.now().disk_used, link.source.bounds()) == (0.4, LogBounds(0, log.end))
        its.close()
        cluster.tell("broker-a", other)
        other.configure(brokerRole="SLAVE")
        link.close()
        link = upstream.connect()
        assert link.now() == BrokerNow(LogBounds(0, log.end))
        assert link.source.bounds() == LogBounds(0, log.end)
        assert not link.goes_on_at(log.end)
        assert link.facts is not None
        assert link.facts.role == "ASYNC_MASTER"
        assert link.address == other.remoting.address  # whom clients ask, and who keeps the store from its promotion
        link.close()


def test_an_address_behind_which_another_broker_answers_ends_a_stretch_of_reading_files(tmp_path: Path) -> None:
    log, paths = broker_log(60), StorePaths(tmp_path)
    _write(log, paths)
    with cluster_of(broker_a=log) as cluster:
        settings = FollowSettings(broker="broker-a", namesrv=cluster.nameserver.address, store=tmp_path)
        upstream = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem())
        link = upstream.connect()
        assert link.now().bounds == LogBounds(0, log.end)
        cluster.brokers[0].remoting.tell_bounds(log.end + log.segment_bytes, log.end + log.segment_bytes)
        with pytest.raises(SourceLostError, match="is not the broker that writes these files"):
            link.now()
        with pytest.raises(SourceLostError):
            link.goes_on_at(log.end)
        link.close()


def test_files_of_a_broker_with_dledger_are_refused_by_name_though_nobody_answers(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0").mkdir()
    settings = FollowSettings(broker="broker-a", store=tmp_path)
    with pytest.raises(InvalidRequestError, match="runs with DLedger"):
        upstream_of("broker-a", settings, SystemClock(), LocalFileSystem()).connect()


@pytest.mark.parametrize("in_controller_mode", [False, True])
def test_files_of_a_broker_in_controller_mode_tell_what_is_confirmed_though_nobody_answers(
    in_controller_mode: bool, tmp_path: Path
) -> None:
    log, paths = broker_log(60), StorePaths(tmp_path)
    paths.commitlog.mkdir()
    paths.segment(0).write_bytes(log.data[: log.segment_bytes])
    confirmed = int.from_bytes(log.data[:4], "big")
    paths.checkpoint.write_bytes(replace(Checkpoint(), confirm_offset=confirmed).encode())
    if in_controller_mode:
        (tmp_path / "epochFileCheckpoint").write_text("1-0\n")
    settings = FollowSettings(broker="broker-a", store=tmp_path)
    link = upstream_of("broker-a", settings, SystemClock(), LocalFileSystem()).connect()
    link.source.begin(0)
    assert (len(link.source.read(0.0)) == confirmed) is in_controller_mode
    link.close()


def test_a_broker_that_nobody_knows_is_told_with_the_names_that_there_are() -> None:
    with cluster_of(broker_a=BrokerLog(b"")) as cluster:
        settings = FollowSettings(broker="broker-x", namesrv=cluster.nameserver.address)
        with pytest.raises(NotFoundError) as caught:
            upstream_of("broker-x", settings, SystemClock(), LocalFileSystem()).connect()
        assert "broker-a" in str(caught.value.hint)
