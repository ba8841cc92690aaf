"""An operator deletes the SSD: the service comes back from the bucket, and what an old disk still holds comes after."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

Json = dict[str, Any]
_SIZES = ["--segment-bytes", "65536", "--queue-file-units", "60", "--index-slots", "100", "--index-items", "400"]
_WATCH_S = 30.0


def tierlog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    command = [sys.executable, "-m", "tierlog.service.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def served(root: Path, cold: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service and its URL, killed at the end as a machine that is lost."""
    command = [
        sys.executable, "-m", "tierlog.service.main", "serve", "--root", str(root), "--cold", f"file://{cold}",
        "--port", "0", *_SIZES, *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "serving http" in line:
                yield process, line.split()[-1].rstrip("/")
                return
        raise AssertionError(f"the service ended before it served: {said}")
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def call(url: str, path: str, body: object = None, method: str | None = None) -> Json:
    """One request, answered well."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: Json = json.load(answer)
        return found


def produce(url: str, topic: str, first: int, end: int) -> list[tuple[int, int]]:
    """Append messages with a key each; their queues and offsets."""
    messages = [{"body": f"{topic} {number}", "keys": [f"k{number}"]} for number in range(first, end)]
    results = call(url, f"/v1/topics/{topic}/messages", {"messages": messages})["results"]
    return [(result["queue_id"], result["queue_offset"]) for result in results]


def consumed(url: str, topic: str) -> list[str]:
    """Every message of a topic as consumers get them, queue by queue over whatever is in the way."""
    found = []
    for queue in call(url, f"/v1/topics/{topic}")["offsets"]:
        offset = 0
        while True:
            page = call(url, f"/v1/topics/{topic}/queues/{queue['queue_id']}/messages?offset={offset}&limit=100")
            found += [message["body"] for message in page["messages"]]
            if page["status"] == "NO_NEW_MESSAGE":
                break
            assert page["next_offset"] > offset
            offset = page["next_offset"]
    return found


def by_key(url: str, topic: str, number: int) -> list[str]:
    answer = call(url, f"/v1/topics/{topic}/messages?key=k{number}")
    assert answer["coverage"]["complete"]
    return [message["body"] for message in answer["messages"]]


def bodies(topic: str, *ranges: range) -> list[str]:
    return sorted(f"{topic} {number}" for numbers in ranges for number in numbers)


def archive(url: str) -> None:
    call(url, "/v1/admin/archive", {"all": True, "drop_hot": True})
    assert call(url, "/v1/admin/check", {"deep": True})["findings"] == []


@pytest.mark.slow
def test_the_ssd_is_deleted_and_the_service_comes_back(tmp_path: Path) -> None:
    cold, ssd = tmp_path / "cold", tmp_path / "ssd"
    with served(ssd, cold) as (_, url):
        produce(url, "orders", 0, 300)
        produce(url, "pays", 0, 40)
        seen = call(url, "/v1/topics/orders/queues/0/messages?offset=0&limit=5")["next_offset"]
        offsets = {"offsets": [{"topic": "orders", "queue_id": 0, "offset": seen}]}
        call(url, "/v1/groups/billing/offsets", offsets, "PUT")
        call(url, "/v1/admin/archive", {"all": True})
        handed_out = produce(url, "orders", 300, 320)  # acknowledged, and on this disk alone
    old = tmp_path / "old"
    shutil.move(ssd, old)

    refused = tierlog("serve", "--root", str(ssd), "--cold", f"file://{cold}", "--store-id", store_in(cold))
    assert refused.returncode == 2
    assert "--restore" in refused.stderr

    with served(ssd, cold, "--restore") as (_, url):
        assert sorted(consumed(url, "orders")) == bodies("orders", range(300))
        assert sorted(consumed(url, "pays")) == bodies("pays", range(40))
        assert [by_key(url, "orders", number) for number in (0, 150, 299, 310)] == [
            ["orders 0"], ["orders 150"], ["orders 299"], [],
        ]  # fmt: skip
        assert len(call(url, "/v1/topics/pays/messages?limit=100")["messages"]) == 40
        (committed,) = call(url, "/v1/groups/billing/offsets")["offsets"]
        assert committed == {"topic": "orders", "store_id": store_in(cold), "queue_id": 0, "offset": seen}
        assert not {*produce(url, "orders", 400, 420)} & {*handed_out}
        archive(url)

        for appended in (20, 0):
            done = tierlog("salvage", str(old), "--url", url)
            assert done.returncode == 0, done.stderr
            report = json.loads(done.stdout)
            assert (report["read"], report["appended"]) == (20, appended)
        archive(url)
        tailed = tierlog("tail", "orders", "--url", url, "--queue", "0", "--format", "ndjson")
        lines = [json.loads(line) for line in tailed.stdout.splitlines()]
        assert any(line.get("body") == "orders 0" for line in lines)
        assert any("TL_SALVAGED" in line.get("properties", {}) for line in lines)
    fenced = tierlog("serve", "--root", str(old), "--cold", f"file://{cold}")
    assert fenced.returncode != 0
    assert "salvage" in fenced.stderr

    shutil.rmtree(ssd)
    with served(ssd, cold, "--restore") as (_, url):
        assert sorted(consumed(url, "orders")) == bodies("orders", range(320), range(400, 420))
        assert by_key(url, "orders", 310) == ["orders 310"]
        produce(url, "orders", 500, 510)
        archive(url)


def store_in(cold: Path) -> str:
    (store,) = [each.name for each in cold.iterdir() if (each / "head").exists()]
    return store


@pytest.mark.slow
def test_what_the_bucket_acknowledged_outlives_the_ssd(tmp_path: Path) -> None:
    cold, ssd = tmp_path / "cold", tmp_path / "ssd"
    with served(ssd, cold) as (_, url):
        produce(url, "orders", 0, 30)
        messages = [{"body": f"orders {number}", "keys": [f"k{number}"]} for number in range(30, 40)]
        call(url, "/v1/topics/orders/messages?durability=archived", {"messages": messages})
        produce(url, "orders", 40, 45)
    old = tmp_path / "old"
    shutil.move(ssd, old)
    with served(ssd, cold, "--restore") as (_, url):
        found = consumed(url, "orders")
        assert set(bodies("orders", range(40))) <= {*found}
        assert by_key(url, "orders", 35) == ["orders 35"]
        report = json.loads(tierlog("salvage", str(old), "--url", url).stdout)
        assert report["appended"] == 45 - len(found)
        archive(url)
        assert sorted(consumed(url, "orders")) == bodies("orders", range(45))


@pytest.mark.slow
def test_what_the_new_service_refuses_is_named_by_salvage_and_all_else_comes_over_http(tmp_path: Path) -> None:
    """One message fills a segment, so that a mark has no room; another is larger than the new service takes."""
    cold, old, new, config = (tmp_path / name for name in ("cold", "old", "new", "config.toml"))
    full, large = "f" * (65_536 - 8 - 91 - len("full")), "l" * (65_536 - 8 - 91 - len("large") - 200)
    with served(old, cold) as (_, url):
        produce(url, "orders", 0, 10)
        call(url, "/v1/admin/archive", {"all": True})
        produce(url, "orders", 10, 20)
        for topic, body in (("full", full), ("large", large + "."), ("large", large)):
            call(url, f"/v1/topics/{topic}/messages", {"messages": [{"body": body, "queue_id": 0}]})
        produce(url, "orders", 20, 30)
    config.write_text(f"[hot]\nmax_body_bytes = {len(large)}\n")
    with served(new, cold, "--restore", "--config", str(config)) as (_, url):
        for appended in (21, 0):
            done = tierlog("salvage", str(old), "--url", url)
            report = json.loads(done.stdout)
            assert (done.returncode, report["appended"]) == (1, appended), done.stderr
            assert {each["topic"] for each in report["not_saved"]} == {"full", "large"}
            assert all("over the limit" in each["reason"] for each in report["not_saved"])
            assert "not_saved" in done.stderr
        assert sorted(consumed(url, "orders")) == bodies("orders", range(30))
        assert consumed(url, "large") == [large]
    with served(new, cold) as (_, url):
        for appended in (2, 0):
            done = tierlog("salvage", str(old), "--url", url)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["appended"] == appended
        assert (consumed(url, "full"), consumed(url, "large")) == ([full], [large, large + "."])


@pytest.mark.slow
def test_nothing_to_restore_makes_nothing(tmp_path: Path) -> None:
    root, cold = tmp_path / "ssd", tmp_path / "cold"
    for flags, says in (
        (["--cold", f"file://{cold}"], "nothing to restore"),
        (["--cold", "s3://bucket/prefix", "--store-id", "NOT LEGAL"], "bad store id"),
        ([], "--cold"),
    ):
        done = tierlog("serve", "--root", str(root), "--port", "0", "--restore", *flags)
        assert done.returncode in (1, 2), done.stderr
        assert says in done.stderr
    cold.mkdir()
    done = tierlog("load", "/dev/null", "--topic", "t", "--root", str(root), "--cold", f"file://{cold}", "--restore")
    assert done.returncode == 1
    assert "nothing to restore" in done.stderr
    assert not root.exists()
    assert [*cold.rglob("*head*")] == []


@pytest.mark.slow
def test_a_command_can_restore_as_well(tmp_path: Path) -> None:
    cold, lines = tmp_path / "cold", tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    load = ["load", str(lines), "--topic", "t", "--cold", f"file://{cold}", *_SIZES]
    assert tierlog(*load, "--root", str(tmp_path / "a")).returncode == 0
    assert tierlog("archive", "--all", "--root", str(tmp_path / "a")).returncode == 0
    assert tierlog(*load, "--root", str(tmp_path / "b"), "--restore").returncode == 0
    found = tierlog("query", "t", "--root", str(tmp_path / "b"), "--format", "ndjson").stdout.splitlines()
    assert sorted(json.loads(line)["body"] for line in found if "body" in json.loads(line)) == [
        "one",
        "one",
        "two",
        "two",
    ]


def readiness(url: str) -> tuple[int, Json]:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.slow
def test_a_node_that_was_taken_over_says_so_and_why(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    with served(tmp_path / "a", cold) as (_, old_url):
        produce(old_url, "orders", 0, 10)
        call(old_url, "/v1/admin/archive", {"all": True})
        with served(tmp_path / "b", cold, "--restore") as (_, url):
            deadline_s = time.monotonic() + _WATCH_S
            while readiness(old_url)[0] == 200 and time.monotonic() < deadline_s:
                time.sleep(0.2)
            status, said = readiness(old_url)
            assert status == 503
            assert "salvage" in said["detail"]
            assert "salvage" in call(old_url, "/v1/stats")["read_only_reason"]
            assert sorted(consumed(old_url, "orders")) == bodies("orders", range(10)), "it goes on reading"
            produce(url, "orders", 10, 20)
            archive(url)
            assert sorted(consumed(url, "orders")) == bodies("orders", range(20))
