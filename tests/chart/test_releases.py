"""Releases beside each other, and upgrades: what must not change does not, and what must does."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import yaml

from tests.support.service.chart import Chart, Json, Rendered
from tierlog.service.access.tokens import read_toml

_KEPT: Json = {"tokens": {"existingSecret": "own-tokens"}}


def _sums(rendered: Rendered, kind: str) -> Json:
    found: Json = rendered.one(kind)["spec"]["template"]["metadata"]["annotations"]
    return found


def test_two_releases_in_one_namespace_share_no_object_and_no_pod(chart: Chart) -> None:
    first, second = (chart.render(base="full", release=name) for name in ("blue", "green"))
    names = [
        {(each["kind"], each["metadata"]["name"]) for each in rendered.documents if each["kind"] != "ServiceAccount"}
        for rendered in (first, second)
    ]
    assert names[0] & names[1] == set()
    for each in first.all("Service"):
        for _, metadata, _ in second.pods():
            assert not each["spec"]["selector"].items() <= metadata["labels"].items()


def test_a_release_that_has_the_charts_name_is_not_named_twice(chart: Chart) -> None:
    assert chart.render(release="tierlog").one("StatefulSet")["metadata"]["name"] == "tierlog-store"
    assert chart.render(release="my-tierlog").one("StatefulSet")["metadata"]["name"] == "my-tierlog-store"
    assert chart.render(release="logs").one("StatefulSet")["metadata"]["name"] == "logs-tierlog-store"


def test_only_pods_whose_settings_change_are_started_again(chart: Chart) -> None:
    before = chart.render(_KEPT, base="irsa")
    after = chart.render({**_KEPT, "queriers": {"settings": {"query": {"threads": 8}}}}, base="irsa")
    assert _sums(before, "StatefulSet") == _sums(after, "StatefulSet")
    assert _sums(before, "Deployment") != _sums(after, "Deployment")


def test_a_setting_of_all_starts_all_again(chart: Chart) -> None:
    before = chart.render(_KEPT, base="irsa")
    after = chart.render({**_KEPT, "settings": {"log": {"level": "warning"}}}, base="irsa")
    for kind in ("StatefulSet", "Deployment"):
        assert _sums(before, kind)["checksum/config"] != _sums(after, kind)["checksum/config"]
        assert _sums(before, kind)["checksum/secrets"] == _sums(after, kind)["checksum/secrets"]


def test_no_label_of_a_pod_or_a_selector_has_a_version_in_it(chart: Chart) -> None:
    """A new version of the chart alone starts nothing again, and changes nothing that cannot be changed."""
    rendered = chart.render(base="full")
    for who, metadata, _ in rendered.pods():
        if not who.startswith("Pod/"):
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & metadata["labels"].keys(), who
    for claim in rendered.one("StatefulSet")["spec"]["volumeClaimTemplates"]:
        assert "helm.sh/chart" not in claim["metadata"]["labels"]


def test_tokens_are_drawn_anew_and_known_by_their_hash_alone(chart: Chart) -> None:
    first, second = (chart.render(release=name).tokens() for name in ("blue", "green"))
    names = {"admin-token", "node-token", "metrics-token", "test-token"}
    assert {first[name] for name in names} & {second[name] for name in names} == set()
    for tokens in (first, second):
        read_toml(tokens["tokens.toml"], "the chart's tokens")
        known = {each["name"]: each for each in tomllib.loads(tokens["tokens.toml"])["token"]}
        for name in names:
            assert len(tokens[name]) == len("tierlog_") + 64
            assert known[name.removesuffix("-token")]["sha256"] == hashlib.sha256(tokens[name].encode()).hexdigest()
            assert tokens[name] not in tokens["tokens.toml"]
        assert known["node"]["scopes"] == ["read"]
        assert known["metrics"]["topics"] == []
        assert known["test"]["scopes"] == ["produce", "read"]
        assert known["test"]["topics"] == ["helm-test-*"]


def test_a_pod_sees_the_keys_of_the_tokens_secret_that_it_needs(chart: Chart) -> None:
    rendered = chart.render(base="irsa")
    seen = {
        who.partition("/")[0]: [item["key"] for item in volume["secret"]["items"]]
        for who, _, spec in rendered.pods()
        for volume in spec["volumes"]
        if volume["name"] == "tokens"
    }
    assert seen == {
        "StatefulSet": ["tokens.toml", "node-token"],
        "Deployment": ["tokens.toml", "node-token"],
        "Pod": ["test-token"],
    }


def test_stores_share_a_prefix_and_each_has_its_own_id_and_address(chart: Chart) -> None:
    container = chart.render(base="irsa").container("StatefulSet")
    assert "--store-id=$(POD_NAME)" in container["args"]
    assert "--cold=s3://logs/prod" in container["args"]
    env = {each["name"]: each for each in container["env"]}
    assert env["TIERLOG_CLUSTER_ADDRESS"]["value"] == "http://$(POD_NAME).tl-tierlog-nodes.logs.svc:8080"
    order = [each["name"] for each in container["env"]]
    assert order.index("POD_NAME") < order.index("TIERLOG_CLUSTER_ADDRESS"), "else it is not replaced"


def _open_ports(rendered: Rendered, component: str) -> set[int]:
    """Ports to which a component may go beyond this release's own pods and DNS."""
    rules = rendered.one("NetworkPolicy", f"-{component}")["spec"]["egress"]
    return {port["port"] for rule in rules for port in rule["ports"]} - {53, "http"}


def test_stores_reach_their_bucket_and_what_takes_their_traces_and_nothing_else(chart: Chart) -> None:
    """The policy is on unless told otherwise, so it has to let through what the other values ask for."""
    assert _open_ports(chart.render(), "store") == set()
    bucket: Json = {"cold": {"url": "s3://logs/prod", "existingSecret": "keys"}}
    for endpoint, port in (
        ("", 443), ("https://s3.example.com", 443), ("http://minio", 80), ("http://minio:9000", 9000),
        ("https://[2001:db8::1]:8443", 8443), ("https://[2001:db8::1]", 443),
    ):  # fmt: skip
        assert _open_ports(chart.render({"cold": {**bucket["cold"], "endpoint": endpoint}}), "store") == {port}
    traced = chart.render({**bucket, "stores": {"settings": {"tracing": {"endpoint": "http://otel.svc:4318"}}}})
    assert _open_ports(traced, "store") == {443, 4318}
    assert _open_ports(traced, "job") == {443}
    assert _open_ports(chart.render({"cold": {"url": "s3://logs", "ambient": True}}), "store") == {443, 80}


def test_a_store_without_an_archive_is_in_no_cluster(chart: Chart) -> None:
    env = [each["name"] for each in chart.render().container("StatefulSet")["env"]]
    assert "TIERLOG_CLUSTER_ADDRESS" not in env


def test_jobs_of_one_store_are_there_for_each(chart: Chart) -> None:
    jobs = {each["metadata"]["name"]: each for each in chart.render(base="full").all("CronJob")}
    assert sorted(jobs) == sorted(
        ["tl-tierlog-merge", "tl-tierlog-verify"]
        + [f"tl-tierlog-{job}-{number}" for job in ("expire", "rebuild") for number in range(4)]
    )
    for name, each in jobs.items():
        assert each["spec"]["concurrencyPolicy"] == "Forbid"
        assert each["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] > 0
        args = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
        if name[-1].isdigit():
            assert f"--store=tl-tierlog-store-{name[-1]}" in args


def test_the_merging_job_needs_a_bucket(chart: Chart) -> None:
    assert chart.render(base="irsa").all("CronJob")
    assert not chart.render().all("CronJob")
    assert not chart.render(base="file").all("CronJob")


def test_alerts_and_dashboard_arrive_as_they_are_tested_elsewhere(chart: Chart) -> None:
    monitoring = Path(__file__).resolve().parents[2] / "monitoring"
    rendered = chart.render(base="full")
    ours = yaml.safe_load((monitoring / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    theirs = rendered.one("PrometheusRule")["spec"]["groups"]
    for group in ours:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = (
                "https://git.example.com/tierlog/blob/main/" + rule["annotations"]["runbook_url"]
            )
    assert theirs == ours
    (text,) = rendered.one("ConfigMap", "-dashboard")["data"].values()
    assert json.loads(text) == json.loads((monitoring / "dashboard.json").read_text(encoding="utf-8"))
