"""A service with the door for RocketMQ's clients: where it is found, how it ends, and what is there after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.rocketmq.remoting_client import RemotingClient
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.rocketmq.codes import RequestCode

_EXIT_S = 10


def _send(**more: object) -> dict[str, object]:
    return {
        "a": "p", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
        "i": "KEYS\x01order-4711\x02", "j": 0, **more,
    }  # fmt: skip


def _command(*arguments: str, listen: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TIERLOG_ROCKETMQ_LISTEN": listen, "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "tierlog.service.main", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


@contextmanager
def served(root: Path, listen: str = "127.0.0.1:0") -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A ``tierlog serve`` process, the address of its door and its URL; killed if the test leaves it running."""
    process = _command(
        "serve", "--root", str(root), "--port", "0", "--segment-bytes", "65536", "--queue-file-units", "60",
        "--index-slots", "100", "--index-items", "400", listen=listen,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        door = ""
        for line in process.stderr:
            if "RocketMQ clients at" in line:
                door = line.split()[-1]
            if "serving http" in line:
                yield process, door, line.split()[-1].rstrip("/")
                return
        raise AssertionError("the service ended before it served")
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_what_a_rocketmq_client_sends_is_found_over_http_and_survives_the_stop(tmp_path: Path) -> None:
    with served(tmp_path / "store") as (process, door, url):
        with RemotingClient(door) as client:
            answer = client.done(RequestCode.SEND_MESSAGE_V2, _send(), b"hello")
            message_id = answer.fields["msgId"]
            assert message_id.startswith("7F000001" + f"{int(door.rpartition(':')[2]):08X}")
        with urllib.request.urlopen(f"{url}/v1/messages/{message_id}", timeout=30) as found:
            assert json.load(found)["keys"] == ["order-4711"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(_EXIT_S) == 0
    with Store.open(tmp_path / "store", settings=tiny_settings()) as store:
        assert store.message(message_id).record.body == b"hello"


def test_what_was_answered_before_a_kill_is_there_once(tmp_path: Path) -> None:
    answered: list[bytes] = []

    def produce(door: str, name: int) -> None:
        with suppress(OSError), RemotingClient(door) as client:
            for number in range(100_000):
                body = b"%d-%d" % (name, number)
                if client.ask(RequestCode.SEND_MESSAGE_V2, _send(e=name % 4), body).code == 0:
                    answered.append(body)

    with served(tmp_path / "store") as (process, door, _):
        producers = [threading.Thread(target=produce, args=(door, name)) for name in range(8)]
        for each in producers:
            each.start()
        while len(answered) < 500:
            assert process.poll() is None
        process.kill()
        for each in producers:
            each.join(60)
    with Store.open(tmp_path / "store", settings=tiny_settings()) as store:
        found: list[bytes] = []
        for queue in range(4):
            offset, end = store.offsets("orders", queue)
            while offset < end:
                page = store.pull("orders", queue, offset, 1000)
                found += [one.record.body for one in page.messages]
                offset = page.next_offset
        assert store.check() == []
    assert len(found) == len(set(found))
    assert set(found) >= set(answered)


def test_a_port_that_is_taken_is_known_before_anything_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = _command("serve", "--root", str(tmp_path / "store"), "--port", "0", listen=listen)
        _, said = process.communicate(timeout=240)
        assert process.returncode != 0
        assert f"cannot listen on {listen}" in said
        assert "rocketmq.listen" in said
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_without_tokens_the_door_listens_on_the_loopback_only(tmp_path: Path, listen: str) -> None:
    process = _command("serve", "--root", str(tmp_path / "store"), "--port", "0", listen=listen)
    _, said = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "without tokens the service listens on the loopback only" in said


def test_a_querier_says_that_it_has_no_store_for_clients(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    process = _command(
        "serve", "--role", "querier", "--cold", f"file://{tmp_path / 'archive'}", "--port", "0", listen="127.0.0.1:0"
    )  # fmt: skip
    _, said = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "rocketmq.listen is set, but a querier has no store" in said
