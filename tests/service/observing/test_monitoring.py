"""Alerts and dashboard speak of metrics that exist; promtool finds nothing wrong, and each alert fires and does not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from tests.support.fs.crash_fs import CrashFileSystem
from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import ROOT as STORE
from tierlog.service.api.application.app import create_app
from tierlog.service.api.metrics import Metrics
from tierlog.service.cluster.table_view import OwnNode, TableView
from tierlog.service.delivery.timers import Timers
from tierlog.service.engine.store import Store
from tierlog.service.observing.metric_families import FAMILIES, PROCESS, SECTIONS
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.objects.memory import MemoryObjectStore

MONITORING = Path(__file__).parents[3] / "monitoring"
_NAME = re.compile(r"\b(?:tierlog|process)_[a-z_]+\b")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def sample_names() -> set[str]:
    found = set(PROCESS)
    for family in FAMILIES.values():
        is_histogram = family.kind == "histogram"
        found |= {family.name + end for end in ("_bucket", "_sum", "_count")} if is_histogram else {family.sample}
    return found


def test_every_metric_that_an_alert_or_a_panel_names_exists() -> None:
    expressions = [rule["expr"] for rule in alerts()]
    expressions += [target["expr"] for panel in panels() for target in panel["targets"]]
    named = {name for expression in expressions for name in _NAME.findall(expression)}
    assert len(named) > 30
    assert named <= sample_names()


def test_every_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 12
    for rule in alerts():
        kebab = re.sub("(?<!^)(?=[A-Z])", "-", rule["alert"].removeprefix("Tierlog")).lower()
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#alert-{kebab}"
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    assert [case["name"] for case in cases] == [rule["alert"] for rule in alerts()]


def test_every_panel_has_words_a_unit_and_a_place_of_its_own() -> None:
    found = dashboard()
    assert "id" not in found
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    assert [panel["title"] for panel in found["panels"] if panel["type"] == "row"] == [
        "Overview", "Appends", "Tiers", "Archive and cost", "Queries and consumers", "HTTP",
    ]  # fmt: skip
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert target["legendFormat"]
            assert 'instance=~"$instance"' in target["expr"]
            assert panel["datasource"] == target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    return found


def run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=MONITORING, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_only_then(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", "alerts.yaml")
    assert "SUCCESS" in run(promtool, "test", "rules", "alerts_test.yaml")


@pytest.mark.slow
def test_every_expression_of_the_dashboard_is_one(promtool: str, tmp_path: Path) -> None:
    found = [target["expr"].replace("$__rate_interval", "5m") for panel in panels() for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(found)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(found)} rules found" in run(promtool, "check", "rules", str(file))


@pytest.mark.slow
def test_promtool_finds_nothing_to_say_about_a_scrape_after_every_kind_of_traffic(promtool: str) -> None:
    clock = ManualClock()
    engine = Store.open(
        STORE, settings=tiny_settings(), cold_url="memory://archive", clock=clock, fs=CrashFileSystem(),
        objects=MemoryObjectStore(clock),
    )  # fmt: skip
    engine.delay_numbers = Timers(engine, clock, SystemRandomness()).numbers
    own = OwnNode(engine.store_id, "http://localhost", engine.volume_id, lambda: 1)
    cluster = TableView(MemoryObjectStore(clock), clock, SystemRandomness(), refresh_ms=1_000, own=own)
    client = TestClient(create_app(engine, tiny_settings(), cluster=cluster), "http://localhost")
    messages = {"messages": [{"body": "x", "keys": ["k"]}] * 3}
    for durability in ("async", "flushed", "archived"):
        client.post("/v1/topics/orders/messages", params={"durability": durability}, json=messages)
    client.post("/v1/topics/orders/messages", json=messages, headers={"Idempotency-Key": "p:0"})
    client.post("/v1/admin/archive", json={"all": True, "drop_hot": True})
    client.post("/v1/topics/orders/messages", json=messages)
    for question in ("key=k", "", "key=k&dry_run=true", "key=k&max_requests=0", "limit=nothing"):
        client.get(f"/v1/topics/orders/messages?{question}")
    client.get("/v1/topics/orders/queues/0/messages")
    client.post("/v1/groups/billing/members", json={"topics": ["orders"]})
    engine.groups.leave("billing", engine.groups.describe("billing").members[0].member_id)
    engine.groups.commit("billing", {("orders", engine.store_id, 0): 0})
    client.post("/v1/admin/erase", json={"topic": "orders", "key": "k"})
    client.get("/nowhere")
    too_large = b"x" * (tiny_settings().serve.max_request_bytes + 1)
    client.post("/v1/topics/orders/messages", content=too_large, headers={"Content-Type": "application/json"})
    text = client.get("/metrics").text
    run(promtool, "check", "metrics", text=text)
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    left_out = {family.sample for family in FAMILIES.values()} - shown
    of_queriers = {"tierlog_silent_stores", "tierlog_store_ask_seconds"}
    of_doors = {family.sample for family in SECTIONS["RocketMQ's clients"]}
    of_followers = {family.sample for family in FAMILIES.values() if family.sample.startswith("tierlog_follow_")}
    assert left_out == ({"tierlog_produce_window_from_seconds"} - shown) | of_queriers | of_doors | of_followers
    of_none = {name for name in sample_names() if re.sub("_(bucket|count|sum)$", "", name) in left_out}
    empty = [name for name in sample_names() - set(PROCESS) - of_none if f"\n{name}" not in text]
    assert empty == []


def test_a_store_that_was_fenced_says_so() -> None:
    clock, bucket = ManualClock(), MemoryObjectStore(ManualClock())
    engine = Store.open(
        STORE, settings=tiny_settings(), cold_url="memory://archive", clock=clock, fs=CrashFileSystem(), objects=bucket
    )
    engine.archive(everything=True)
    metrics = Metrics(engine)
    assert b"tierlog_fenced 0.0" in metrics.text()
    Store.open(
        STORE, settings=tiny_settings(), cold_url="memory://archive", store_id=engine.store_id, restore=True,
        clock=clock, fs=CrashFileSystem(), objects=bucket,
    )  # fmt: skip
    assert engine._manifest is not None
    engine._manifest.refresh()
    assert b"tierlog_fenced 1.0" in metrics.text()
