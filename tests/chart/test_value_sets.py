"""Every set of values in ``ci/``: what Helm, Kubernetes and tierlog itself say about the result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest

from docs.tools.chart_files import CHARTS_OWN
from tests.support.service.chart import CHART, SETS, Chart, Json, Rendered, path_of
from tierlog.service.config.settings import ENV_ALIASES, Settings
from tierlog.service.main import build_parser

_VERSIONS = ("1.27", "1.32", "1.37")
#: Of what the Prometheus operator defines: the fields that the chart uses, and no others.
_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["endpoints", "selector"],
    "properties": {
        "jobLabel": {"type": "string"},
        "selector": {"type": "object", "additionalProperties": False, "properties": {"matchLabels": {}}},
        "namespaceSelector": {"type": "object", "additionalProperties": False, "properties": {"matchNames": {}}},
        "endpoints": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string"},
                    "interval": {"type": "string"},
                    "scheme": {"enum": ["http", "https"]},
                    "authorization": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["type", "credentials"],
                        "properties": {"type": {"const": "Bearer"}, "credentials": {"$ref": "#/$defs/key"}},
                    },
                    "tlsConfig": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "ca": {"$ref": "#/$defs/source"},
                            "cert": {"$ref": "#/$defs/source"},
                            "keySecret": {"$ref": "#/$defs/key"},
                            "serverName": {"type": "string"},
                        },
                    },
                },
            },
        },
    },
    "$defs": {
        "key": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "key"],
            "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
        },
        "source": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"secret": {"$ref": "#/$defs/key"}},
        },
    },
}
_RULE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["groups"],
    "properties": {
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "rules"],
                "properties": {
                    "name": {"type": "string"},
                    "rules": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["alert", "expr"],
                            "properties": {name: {} for name in ("alert", "expr", "for", "labels", "annotations")},
                        },
                    },
                },
            },
        }
    },
}


@pytest.fixture(params=SETS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rendered(chart: Chart, name: str) -> Rendered:
    return chart.render(base=name)


def test_lint_finds_nothing(chart: Chart, name: str) -> None:
    done = chart.run("lint", "--strict", str(CHART), "-f", str(path_of(name)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@pytest.mark.parametrize("version", _VERSIONS)
def test_kubernetes_takes_every_object(rendered: Rendered, version: str) -> None:
    for each in rendered.documents:
        if each["kind"] == "ServiceMonitor":
            jsonschema.validate(each["spec"], _MONITOR)
        elif each["kind"] == "PrometheusRule":
            jsonschema.validate(each["spec"], _RULE)
        else:
            kubernetes_validate.validate(each, version, strict=True)


def test_no_process_can_do_more_than_it_needs(rendered: Rendered) -> None:
    for who, _, spec in rendered.pods():
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, who
        assert context["runAsUser"] == 10001, who
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, who
        assert spec["automountServiceAccountToken"] is False, who
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), who
        for each in spec["containers"] + spec.get("initContainers", []):
            own = each["securityContext"]
            assert own["readOnlyRootFilesystem"] is True, who
            assert own["allowPrivilegeEscalation"] is False, who
            assert own["capabilities"] == {"drop": ["ALL"]}, who
            assert "privileged" not in own, who


def test_variables_of_services_are_kept_out_of_pods(rendered: Rendered) -> None:
    """A Service named tierlog-hot would give TIERLOG_HOT_SERVICE_HOST, which is no setting: nobody has to know that."""
    assert all(spec["enableServiceLinks"] is False for _, _, spec in rendered.pods())


def test_every_selector_finds_pods_of_this_release(rendered: Rendered) -> None:
    pods = [metadata["labels"] for _, metadata, _ in rendered.pods()]
    services = [each["metadata"]["labels"] for each in rendered.all("Service")]
    for each in rendered.documents:
        spec = each.get("spec", {})
        if each["kind"] == "Service":
            assert _fits(spec["selector"], pods), each["metadata"]["name"]
        elif each["kind"] in ("StatefulSet", "Deployment"):
            wanted = spec["selector"]["matchLabels"]
            assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
        elif each["kind"] == "PodDisruptionBudget":
            assert _fits(spec["selector"]["matchLabels"], pods), each["metadata"]["name"]
        elif each["kind"] == "NetworkPolicy" and not each["metadata"]["name"].endswith("-job"):
            assert _fits(spec["podSelector"]["matchLabels"], pods), each["metadata"]["name"]
        elif each["kind"] == "ServiceMonitor":
            assert _fits(spec["selector"]["matchLabels"], services) == 1, each["metadata"]["name"]


def test_names_are_short_enough_and_each_stands_once(rendered: Rendered) -> None:
    seen = [(each["kind"], each["metadata"]["name"]) for each in rendered.documents]
    assert len(seen) == len(set(seen))
    for kind, each in seen:
        assert len(each) <= (52 if kind in ("StatefulSet", "CronJob") else 63), each
    for _, metadata, _ in rendered.pods():
        assert all(len(value) <= 63 for value in metadata["labels"].values())
    assert all(each["metadata"]["namespace"] == "logs" for each in rendered.documents)


def test_nothing_secret_is_readable_by_who_may_not_read_secrets(rendered: Rendered) -> None:
    public = [each for each in rendered.documents if each["kind"] != "Secret"]
    tokens = rendered.tokens().values() if rendered.all("Secret") else []
    text = repr(public)
    for token in tokens:
        assert token not in text
        assert token.partition("\n")[0] not in text or token.startswith("[[token]]")
    assert "tierlog_" not in re.sub(r"tierlog_[a-z_]+\b", "", text), "something looks like a token"
    for who, _, spec in rendered.pods():
        for each in spec["containers"]:
            for variable in each.get("env", []):
                is_key = variable["name"].startswith("AWS_") and variable["name"] != "AWS_REGION"
                assert ("secretKeyRef" in variable.get("valueFrom", {})) == is_key, f"{who} {variable}"


def test_every_mount_has_its_volume_and_every_volume_is_mounted(rendered: Rendered) -> None:
    for who, _, spec in rendered.pods():
        mounted = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
        there = {volume["name"] for volume in spec["volumes"]}
        claimed = {"data"} if who.startswith("StatefulSet") else set()
        assert mounted <= there | claimed, who
        assert there <= mounted, who


def test_what_processes_are_told_is_what_they_know(rendered: Rendered, tmp_path: Path) -> None:
    known = {name.upper().replace(".", "_"): name for name in _names(Settings.model_json_schema())}
    for who, _, spec in rendered.pods():
        for variable in spec["containers"][0].get("env", []):
            name = variable["name"]
            if name.startswith("TIERLOG_") and name not in _CLIENT_VARIABLES:
                setting = known.get(name.removeprefix("TIERLOG_"))
                assert setting or name in ENV_ALIASES.values(), f"{who} has {name}"
    for who in ("stores", "queriers"):
        if who == "queriers" and not rendered.all("Deployment"):
            continue
        file = tmp_path / f"{who}.toml"
        file.write_text(rendered.settings(who))
        settings = Settings.load(file)
        assert str(settings.access.tokens_file) == "/etc/tierlog/tokens/tokens.toml"


def test_ports_are_the_same_everywhere(rendered: Rendered) -> None:
    port = build_parser().parse_args(rendered.container("StatefulSet")["args"]).port
    for each in rendered.all("Service"):
        assert each["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]
    for who, _, spec in rendered.pods():
        for own in spec["containers"][0].get("ports", []):
            assert own == {"name": "http", "containerPort": port}, who
    address = [each for each in rendered.container("StatefulSet")["env"] if each["name"] == "TIERLOG_CLUSTER_ADDRESS"]
    assert all(each["value"].endswith(f":{port}") for each in address)


def test_stores_are_started_as_the_command_line_allows(rendered: Rendered) -> None:
    arguments = build_parser().parse_args(rendered.container("StatefulSet")["args"])
    assert arguments.root == "/data/store", "an empty folder, where a new volume has lost+found"
    assert arguments.store_id == "$(POD_NAME)"
    assert arguments.host == "0.0.0.0", "whatever the image's environment says"


def test_a_dead_bucket_starts_no_pod_again(rendered: Rendered) -> None:
    """/readyz is for traffic; nothing that ends a pod asks it."""
    for kind in ("StatefulSet", "Deployment"):
        for each in rendered.all(kind):
            own: Json = each["spec"]["template"]["spec"]["containers"][0]
            assert "readyz" not in repr([own["livenessProbe"], own["startupProbe"]])
            if "httpGet" in own["readinessProbe"]:
                assert own["readinessProbe"]["httpGet"]["path"] == "/readyz"
                assert own["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_pods_have_time_to_stop(rendered: Rendered) -> None:
    for kind in ("StatefulSet", "Deployment"):
        for each in rendered.all(kind):
            spec = each["spec"]["template"]["spec"]
            sleeps = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
            assert spec["terminationGracePeriodSeconds"] > sleeps + 10


_CLIENT_VARIABLES = {
    "TIERLOG_TOKEN_FILE",
    "TIERLOG_TOKEN_OVER_HTTP",
    "TIERLOG_CA_FILE",
    "TIERLOG_CLIENT_CERTIFICATE",
    "TIERLOG_CLIENT_KEY",
}


def _names(schema: Json) -> list[str]:
    found = []
    for group, node in schema["properties"].items():
        of = schema["$defs"][node["$ref"].rpartition("/")[2]]["properties"] if "$ref" in node else None
        found += [f"{group}.{name}" for name in of] if of else [group]
    assert set(found) >= CHARTS_OWN
    return found


def _fits(wanted: Json, labels: list[Any]) -> int:
    return sum(wanted.items() <= each.items() for each in labels)
