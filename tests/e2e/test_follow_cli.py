"""``tierlog follow`` as a process beside brokers: what it serves, refuses and says, and how it ends."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.objects.real_s3 import free_port
from tests.support.processes.shell import Shell, command
from tests.support.rocketmq.fake_cluster import FakeCluster, cluster_of
from tests.support.stores.followed import broker_log
from tierlog.service.exit_codes import WRONG_USE
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.rocketmq.codes import RequestCode
from tierlog.tiering.rocketmq.remoting import BrokerClient, runtime_info

SIZES = ["--queue-file-units", "60", "--index-slots", "100", "--index-items", "400"]


def where(cluster: FakeCluster, tmp_path: Path, *brokers: str) -> list[str]:
    named = [part for broker in brokers for part in ("--broker", broker)]
    return [
        *("--namesrv", cluster.nameserver.address, *named, "--root", str(tmp_path / "root")),
        *("--cold", f"file://{tmp_path / 'cold'}", *SIZES),
    ]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.loads(answer.read())


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def found(url: str, key: str, **more: str) -> list[Any]:
    asked = "&".join(f"{name}={value}" for name, value in {"key": key, **more}.items())
    return list(get(f"{url}/v1/topics/orders/messages?{asked}")["messages"])


def eventually(ask: Any) -> Any:
    waits = threading.Event()
    for _ in range(600):
        answer = None
        with suppress(urllib.error.HTTPError):  # no such topic yet
            answer = ask()
        if answer:
            return answer
        waits.wait(0.05)
    raise AssertionError("it never was so")


def test_one_command_beside_a_running_broker_answers_for_it_and_goes_on_after_a_restart(
    tmp_path: Path, shell: Shell
) -> None:
    log = broker_log()
    with cluster_of(broker_a=log) as cluster:
        with command("follow", *where(cluster, tmp_path, "broker-a"), says="following", quiet=False) as url:
            assert eventually(lambda: found(url, "key-1"))
            assert get(f"{url}/readyz")["follow_error"] is None
            assert eventually(lambda: 'tierlog_follow_lag_bytes{broker="broker-a"} 0.0' in text(f"{url}/metrics"))
            assert eventually(lambda: get(f"{url}/v1/stats")["followed"]["broker-a"]["margin_ms"])
            followed = get(f"{url}/v1/stats")["followed"]["broker-a"]
            assert (followed["state"], followed["lag_bytes"], followed["end"]) == ("following", 0, log.end)
            shell("stats", "--url", url, "--format", "table")
            (line,) = [line for line in shell.out.splitlines() if line.startswith("followed.broker-a ")]
            assert line.split(maxsplit=1)[1].startswith("following, 0 bytes and 0 s behind, 72.0 h until")
            metrics = text(f"{url}/metrics")
            assert 'tierlog_follow_state{broker="broker-a",state="following"} 1.0' in metrics
            groups = get(f"{url}/v1/groups")
            assert "shop" in json.dumps(groups)
            request = urllib.request.Request(
                f"{url}/v1/topics/orders/messages", b'{"messages":[{"body":"x"}]}', {"Content-Type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError, match="409"):
                urllib.request.urlopen(request, timeout=20)
        longer = broker_log(160)
        cluster.brokers[0].grow(longer)
        with command("follow", *where(cluster, tmp_path, "broker-a"), says="following", quiet=False) as url:
            assert eventually(lambda: found(url, "key-145") or found(url, "key-157"))
    segments = sorted((tmp_path / "root" / "broker-a" / "commitlog").iterdir())
    ours = b"".join(path.read_bytes() for path in segments)
    assert ours[: longer.end] == longer.data


def test_several_brokers_are_asked_together_and_each_by_its_name(tmp_path: Path) -> None:
    with cluster_of(broker_a=broker_log(60), broker_b=broker_log(120)) as cluster:
        arguments = where(cluster, tmp_path, "broker-a", "broker-b")
        with command("follow", *arguments, says="following", quiet=False) as url:
            both = eventually(lambda: (one := found(url, "key-1")) and len(one) == 2 and one)
            assert {message["store_id"] for message in both} == {"broker-a", "broker-b"}
            (alone,) = found(url, "key-1", store_id="broker-b")
            assert alone["store_id"] == "broker-b"
            (topic,) = [one for one in get(f"{url}/v1/topics")["topics"] if one["topic"] == "orders"]
            assert {queue["store_id"] for queue in topic["offsets"]} == {"broker-a", "broker-b"}
            metrics = text(f"{url}/metrics")
            assert 'tierlog_follow_gap_bytes_total{broker="broker-b"} 0.0' in metrics
            assert "tierlog_appended_messages_total" in text(f"{url}/metrics?store_id=broker-a")
            assert set(get(f"{url}/v1/stats")["followed"]) == {"broker-a", "broker-b"}
            archives = get(f"{url}/v1/stats")["archives"]
            assert archives == [f"file://{tmp_path / 'cold'}"]
        # the stores remember their archive, and whoever asks all of them reads it too
        at = arguments.index("--cold")
        with command("follow", *arguments[:at], *arguments[at + 2 :], says="following", quiet=False) as url:
            assert eventually(lambda: len(found(url, "key-1")) == 2)
            assert get(f"{url}/v1/stats")["archives"] == archives


def test_while_its_only_store_is_not_open_the_process_tells_health_and_metrics(tmp_path: Path) -> None:
    directory, log = tmp_path / "store", broker_log()
    (directory / "commitlog").mkdir(parents=True)
    arguments = ["--broker", "broker-a", "--store", str(directory), "--root", str(tmp_path / "root"), *SIZES]
    with command(
        "follow", *arguments, "--cold", f"file://{tmp_path / 'cold'}", says="following", quiet=False
    ) as url:  # fmt: skip
        for _ in range(2):
            assert 'tierlog_follow_state{broker="broker-a",state="waiting"} 1.0' in text(f"{url}/metrics")
        assert get(f"{url}/livez")["status"] == "alive"
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            get(f"{url}/readyz")
        assert "a broker has no log here yet" in caught.value.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            found(url, "key-1")
        for base in range(0, log.end, log.segment_bytes):
            piece = log.read(base, log.segment_bytes)
            (directory / "commitlog" / f"{base:020}").write_bytes(piece + bytes(log.segment_bytes - len(piece)))
        assert eventually(lambda: found(url, "key-1"))
        assert get(f"{url}/readyz")["status"] == "ready"


def test_where_it_listens_is_told_to_the_nameserver_at_each_start_and_taken_back_at_each_stop(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with cluster_of(broker_a=broker_log()) as cluster:
        nameserver = cluster.nameserver
        for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
            nameserver.answer(code, b"")

        def told(code: RequestCode) -> set[tuple[str, str]]:
            asked = [frame.fields for frame in nameserver.asked if frame.code == code]
            return {(fields["brokerName"], fields["brokerAddr"]) for fields in asked}

        entries = {("tierlog-east", listen), ("tierlog-east-archive", listen)}
        for is_there in (True, True, False):  # the archive is needed most when the broker is away
            if not is_there:
                cluster.brokers[0].close()
            nameserver.asked.clear()
            arguments = [*where(cluster, tmp_path, "broker-a"), "--listen", listen]
            with command("follow", *arguments, says="following", quiet=False):
                eventually(lambda: told(RequestCode.REGISTER_BROKER) == entries)
                client = BrokerClient(listen, clock=SystemClock())
                state = "following" if is_there else "connecting"
                assert eventually(lambda: runtime_info(client)["tierlog.broker-a"] == state)  # noqa: B023
                client.close()
                assert not told(RequestCode.UNREGISTER_BROKER)
            assert told(RequestCode.UNREGISTER_BROKER) == entries


def test_a_broker_that_goes_away_leaves_its_store_answering_and_health_says_so(tmp_path: Path) -> None:
    with (
        cluster_of(broker_a=broker_log()) as cluster,
        command("follow", *where(cluster, tmp_path, "broker-a"), says="following", quiet=False) as url,
    ):
        assert eventually(lambda: found(url, "key-1"))
        cluster.brokers[0].close()
        assert "broker-a" in eventually(lambda: get(f"{url}/readyz")["follow_error"])
        assert found(url, "key-1")


def test_a_store_whose_broker_is_lost_takes_messages_when_it_is_told_to(tmp_path: Path, shell: Shell) -> None:
    with cluster_of(broker_a=broker_log()) as cluster:
        arguments = where(cluster, tmp_path, "broker-a")
        shell("follow", *arguments, "--promote-now", "--port", "0", code=WRONG_USE)
        assert "there is no store yet" in shell.err
        with command("follow", *arguments, says="following", quiet=False) as url:
            assert eventually(lambda: found(url, "key-1"))
        shell("follow", *arguments, "--promote-now", "--port", "0", code=WRONG_USE)
        assert "stop it first" in shell.err
        cluster.brokers[0].close()
        for flag in ("--promote-now", "--promote"):
            with command("follow", *arguments, flag, says="following", quiet=False) as url:
                body = json.dumps({"messages": [{"body": "x", "keys": [flag]}]}).encode()
                headers = {"Content-Type": "application/json"}
                urllib.request.urlopen(
                    urllib.request.Request(f"{url}/v1/topics/orders/messages", body, headers)
                ).close()
                assert len(found(url, flag)) == len(found(url, "key-1")) == 1
                assert 'state="promoted"} 1.0' in text(f"{url}/metrics")
        shell("follow", *arguments, "--port", "0", code=WRONG_USE)
        assert "takes messages itself" in shell.err


def test_what_cannot_be_followed_is_refused_with_a_hint(tmp_path: Path, shell: Shell) -> None:
    with cluster_of(broker_a=broker_log(), broker_b=broker_log()) as cluster:
        shell("follow", *where(cluster, tmp_path, "broker-x"), "--port", "0", code=WRONG_USE)
        assert "broker-a, broker-b" in shell.err
        shell("follow", *where(cluster, tmp_path), "--port", "0", code=WRONG_USE)
        assert "--broker" in shell.err
        cluster.brokers[0].configure(enableControllerMode="true")
        shell("follow", *where(cluster, tmp_path, "broker-a"), "--port", "0", code=WRONG_USE)
        assert "controller mode" in shell.err
        shell("follow", *where(cluster, tmp_path, "broker-b"), "--access-key", "k", "--port", "0", code=WRONG_USE)
        assert "secret" in shell.err
        assert not (tmp_path / "root" / "broker-b" / "commitlog").exists()


def test_a_followed_directory_is_not_served_as_an_ordinary_one(tmp_path: Path, shell: Shell) -> None:
    with (
        cluster_of(broker_a=broker_log()) as cluster,
        command("follow", *where(cluster, tmp_path, "broker-a"), says="following", quiet=False) as url,
    ):
        assert eventually(lambda: found(url, "key-1"))
    shell("serve", "--root", str(tmp_path / "root" / "broker-a"), "--port", "0", code=WRONG_USE)
    assert "tierlog follow" in shell.err
