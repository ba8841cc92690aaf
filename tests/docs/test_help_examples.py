"""Every example of every ``tierlog COMMAND --help`` is run as it stands there, and ends well.

Only what no help text can know is put in its place: addresses, paths, and ids that a store gives. A new command's
examples are run as soon as the command is among ``COMMANDS``.
"""

from __future__ import annotations

import re
import shutil
import signal
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.docs.shell import Shell
from tests.support.objects.real_s3 import free_port
from tests.support.processes.nodes import ask
from tests.support.rocketmq.fake_cluster import cluster_of
from tests.support.rocketmq.golden import unpack
from tests.support.stores.engines import tiny_settings
from tests.support.stores.followed import BrokerLog, broker_log
from tierlog.index.search.query import Query
from tierlog.service import main
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import Order
from tierlog.tiering.message.batch import Message

EXAMPLES = {"tierlog": main.EXAMPLES} | {
    module.__name__.rpartition(".")[2]: module.EXAMPLES for module in main.COMMANDS
}
_SERVICE = "127.0.0.1:8080"


def _asks_a_service(name: str) -> bool:
    return any(_SERVICE in example for _, example in EXAMPLES[name])


#: Sizes as those of the broker's store, for which the same variables count.
_SEGMENT_BYTES, _QUEUE_FILE_UNITS = 262_144, 100
_QUEUES, _BATCH = 4, 400
#: Spread over all queues, and more for the first alone, which examples speak of offsets of.
_SPREAD, _MESSAGES = 5_200, 8_800
_BEGIN_MS = parse_time("2026-03-01T10:00:00Z")
#: What goes on until it is stopped: what it says when it is ready, and how people end it.
_LASTING = {
    r"\btierlog serve\b": (("serving http", "querying at http", "gateway at"), signal.SIGTERM),
    r"\btierlog follow\b": (("following",), signal.SIGTERM),
    r" (-f|--follow)\b": (("message_id",), signal.SIGINT),
}
#: Commands about a cluster; all others see the archive of one store.
_OF_CLUSTERS = ("cluster", "route")


@dataclass(frozen=True, slots=True)
class World:
    """A folder in which the examples make sense, as it was made first; ids of what is in it."""

    folder: Path
    kept: Path
    message_id: str
    tombstone_id: str
    nameserver: str
    """Of a cluster with one broker, ``broker-a``, whose log is in ``followed`` as well."""

    def renew(self) -> None:
        """Undo what examples have done."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)

    def placed(self, name: str, example: str, url: str) -> str:
        """The example with this world's addresses, paths and ids."""
        archive = "cluster" if name in _OF_CLUSTERS else "cold"
        for there, here in (
            ("http://127.0.0.1:8080", url),
            ("s3://bucket/prefix", f"file://{self.folder}/{archive}"),
            ("--host 0.0.0.0", "--host 127.0.0.1"),
            ("/var/lib/rocketmq/store", f"{self.folder}/broker"),
            ("/mnt/broker-a/store", f"{self.folder}/broker"),
            ("/mnt/archive", f"{self.folder}/adopted"),
            ("/data/rocketmq/store", f"{self.folder}/followed"),
            ("10.0.0.1:9876", self.nameserver),
            ("10.0.0.7:10911", f"127.0.0.1:{free_port()}"),
            ("127.0.0.1:9876", self.nameserver),
            ("1073741824", str(_SEGMENT_BYTES)),
            ("source ~/.tierlog.tcsh", "test -s ~/.tierlog.tcsh"),
        ):
            example = example.replace(there, here)
        example = re.sub(r"\b[0-9A-F]{32}\b", self.message_id, example)
        return re.sub(r"\b[0-9a-f]{16}\b", self.tombstone_id, example)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Made once: stores with months behind them, a broker's store, files to load, a home with a shell's folders."""
    folder = tmp_path_factory.mktemp("examples") / "world"
    message_id, tombstone_id = _store(folder / "store", folder / "cold", "store")
    _store(folder / "old-store", folder / "cluster", "store-1")
    unpack("clean", folder / "broker")
    lines = "".join(f"2026-03-01T12:00:{second:02} id=4711 line {second}\n" for second in range(60))
    (folder / "app.log").write_text(lines)
    order = '{"order": {"id": "4711"}, "customer": "ann", "time": "2026-03-01T12:00:00Z"}\n'
    (folder / "orders.jsonl").write_text(order * 3)
    (folder / "tierlog.toml").write_text("[hot]\nretention_ms = 86_400_000\n")
    (folder / "gateway.toml").write_text('[rocketmq]\ngrpc_listen = "127.0.0.1:0"\n')
    for made in (".local/share/bash-completion/completions", ".zfunc"):
        (folder / "home" / made).mkdir(parents=True)
    _program(folder / "bin" / "journalctl", "echo a line of a unit; echo another")
    if shutil.which("jq") is None:
        _program(folder / "bin" / "jq", "grep -q .")
    log = broker_log()
    _broker_directory(folder / "followed", log)
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    with cluster_of(broker_a=log) as cluster:
        yield World(folder, kept, message_id, tombstone_id, cluster.nameserver.address)


def _broker_directory(folder: Path, log: BrokerLog) -> None:
    """A broker's commit log as its files."""
    (folder / "commitlog").mkdir(parents=True)
    for at in range(0, len(log.data), log.segment_bytes):
        data = log.data[at : at + log.segment_bytes].ljust(log.segment_bytes, b"\0")
        (folder / "commitlog" / f"{log.begin + at:020}").write_bytes(data)


def _store(root: Path, cold: Path, store_id: str) -> tuple[str, str]:
    """A store most of whose messages are archived, with an erasure; ids of an archived message and of the erasure."""
    clock = ManualClock(_BEGIN_MS)
    settings = tiny_settings(hot__segment_bytes=_SEGMENT_BYTES, hot__queue_file_units=_QUEUE_FILE_UNITS)
    engine = Store.open(root, cold_url=f"file://{cold}", store_id=store_id, settings=settings, clock=clock)
    for first in range(0, _MESSAGES, _BATCH):
        if first == _MESSAGES - _BATCH:  # what was archived and erased is not older than anything in the bucket may be
            clock.advance(SystemClock().now_ms() - clock.now_ms())
            engine.groups.commit("billing", {("orders", store_id, queue_id): 100 for queue_id in range(_QUEUES)})
            engine.archive(everything=True)
        engine.append([_message(number) for number in range(first, first + _BATCH)])
        clock.advance(600_000)
    receipt = engine.removal.erase(Query("orders", "gone"), wait=True)
    (found,) = engine.query(Query("orders", "4711", limit=1, order=Order.OLDEST)).messages
    engine.close()
    return found.record.message_id, receipt["tombstone_id"]


def _message(number: int) -> Message:
    queue_id = number % _QUEUES if number < _SPREAD else 0
    return Message("orders", b"order %d" % number, ("4711" if number % 40 else "gone",), queue_id=queue_id)


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def shell(world: World, forked: dict[str, str], tmp_path: Path) -> Iterator[Shell]:
    """A shell in a world that no example has changed."""
    world.renew()
    environment = {
        **forked, "HOME": f"{world.folder}/home", "PATH": f"{forked['PATH']}:{world.folder}/bin", "TERM": "dumb",
        "LC_ALL": "C.UTF-8", "TIERLOG_HOT_SEGMENT_BYTES": str(_SEGMENT_BYTES),
        "TIERLOG_HOT_QUEUE_FILE_UNITS": str(_QUEUE_FILE_UNITS), "TIERLOG_INDEX_SLOTS": "100",
        "TIERLOG_INDEX_ITEMS": "400", "TIERLOG_SERVE_PORT": "0",
        "TIERLOG_HOT_DISK_MAX_USED_PERCENT": "100", "TIERLOG_HOT_DISK_FULL_PERCENT": "100",
    }  # fmt: skip
    opened = Shell(world.folder, tmp_path, environment)
    opened.run("set -o pipefail")
    yield opened
    opened.close()


def _cluster(shell: Shell, world: World) -> str:
    """Serve two stores, of which the first took over from ``./old-store`` and has new messages; its address."""
    ports = free_port(), free_port()
    for number, (port, more) in enumerate(zip(ports, ("--restore", ""), strict=True), 1):
        shell.start(
            f"TIERLOG_CLUSTER_ADDRESS=http://127.0.0.1:{port} tierlog serve --root node-{number} --port {port} "
            f"--cold {world.folder}/cluster --store-id store-{number} {more}",
            ("serving http",),
        )
    url = f"http://127.0.0.1:{ports[0]}"
    shell.run(f"until tierlog cluster --url {url} --format json | grep -q store-2; do sleep 0.1; done")
    messages = [{"body": f"new order {number}", "keys": ["4711"]} for number in range(40)]
    ask(url, "/v1/topics/orders/messages", {"messages": messages})
    return url


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if _asks_a_service(name) else []) for name in EXAMPLES]
)
def test_every_example_of_a_help_text_ends_well(name: str, world: World, shell: Shell) -> None:
    examples: Sequence[tuple[str, str]] = EXAMPLES[name]
    url = _cluster(shell, world) if _asks_a_service(name) else ""
    for _, example in examples:
        command = world.placed(name, example, url)
        if name == "follow":  # each is a first start
            shell.run("rm -rf archive cold/broker-a")
        for form, (said, ending) in _LASTING.items():
            if re.search(form, command):
                pid, _ = shell.start(command, said)
                assert shell.stop(pid, ending) == 0, command
                break
        else:
            code, out, errors = shell.run(command)
            assert code == 0, f"{command}\nended with {code}:\n{out}{errors}"
