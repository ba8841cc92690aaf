"""An upgrade of a release whose secrets the cluster holds already: Helm asks an API server that knows nothing else."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.service.chart import CHART, NAMESPACE, Chart, Json, Rendered, path_of

_KINDS = {
    "v1": ["Secret", "ConfigMap", "Service", "ServiceAccount", "Pod"],
    "apps/v1": ["StatefulSet", "Deployment"],
    "policy/v1": ["PodDisruptionBudget"],
    "batch/v1": ["CronJob"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
}


class _Api(http.server.ThreadingHTTPServer):
    """Which kinds there are, and some secrets by name."""

    secrets: dict[str, Json]


class _Answers(http.server.BaseHTTPRequestHandler):
    server: _Api

    def do_GET(self) -> None:
        found = self._found(self.path.partition("?")[0].strip("/").split("/"))
        body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _found(self, path: list[str]) -> Json | None:
        match path:
            case ["version"]:
                return {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                names = [name.split("/") for name in _KINDS if "/" in name]
                groups = [
                    {"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}]}
                    for group, version in names
                ]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["api" | "apis", *version] if "/".join(version) in _KINDS:
                kinds = _KINDS["/".join(version)]
                resources = [
                    {"name": f"{kind.lower()}s", "singularName": kind.lower(), "namespaced": True, "kind": kind,
                     "verbs": ["get"]}
                    for kind in kinds
                ]  # fmt: skip
                return {"kind": "APIResourceList", "groupVersion": "/".join(version), "resources": resources}
            case ["api", "v1", "namespaces", _, "secrets", name]:
                return self.server.secrets.get(name)
        return None

    def log_message(self, *_: object) -> None:
        """Nothing on the test's output."""


@pytest.fixture
def api() -> Iterator[_Api]:
    server = _Api(("127.0.0.1", 0), _Answers)
    server.secrets = {}
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join(30)
    server.server_close()


class _Cluster:
    """The chart as it is rendered by somebody who can ask the API server."""

    def __init__(self, chart: Chart, api: _Api, folder: Path) -> None:
        self._chart, self._api = chart, api
        self._config = folder / "config.json"
        address = f"http://127.0.0.1:{api.server_address[1]}"
        self._config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "c",
                    "clusters": [{"name": "c", "cluster": {"server": address}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )  # fmt: skip

    def render(self, base: str = "irsa", values: Json | None = None) -> Rendered:
        done = self._chart.run(
            "template", "tl", str(CHART), "-n", NAMESPACE, "-f", str(path_of(base)), "-f", "-", "--dry-run=server",
            "--disable-openapi-validation", "--kubeconfig", str(self._config), values=values,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return Rendered(tuple(each for each in yaml.safe_load_all(done.stdout) if each))

    def holds(self, name: str, **data: str) -> None:
        encoded = {key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in data.items()}
        self._api.secrets[name] = {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded
        }  # fmt: skip

    def install(self, rendered: Rendered) -> None:
        """The tokens are in the cluster, as this release's."""
        secret = rendered.one("Secret", "-tokens")
        secret["metadata"]["annotations"] = {
            "meta.helm.sh/release-name": "tl", "meta.helm.sh/release-namespace": NAMESPACE
        }  # fmt: skip
        self._api.secrets[secret["metadata"]["name"]] = secret


@pytest.fixture
def cluster(chart: Chart, api: _Api, tmp_path: Path) -> _Cluster:
    return _Cluster(chart, api, tmp_path)


def _digest(rendered: Rendered) -> str:
    annotations = rendered.one("StatefulSet")["spec"]["template"]["metadata"]["annotations"]
    return str(annotations["checksum/secrets"])


def test_tokens_that_were_drawn_are_kept_and_no_pod_is_started_again(cluster: _Cluster) -> None:
    first = cluster.render()
    cluster.install(first)
    second = cluster.render()
    assert second.tokens() == first.tokens()
    assert _digest(second) == _digest(first)


def test_a_secret_of_an_older_chart_gets_the_token_that_it_lacks(cluster: _Cluster) -> None:
    first = cluster.render()
    old = first.one("Secret", "-tokens")
    del old["data"]["test-token"]
    entries = first.tokens()["tokens.toml"].split("[[token]]")
    kept = "[[token]]".join(each for each in entries if 'name = "test"' not in each)
    old["data"]["tokens.toml"] = base64.b64encode(kept.encode()).decode()
    cluster.install(first)
    upgraded = cluster.render().tokens()
    known = {each["name"]: each for each in tomllib.loads(upgraded["tokens.toml"])["token"]}
    assert known["test"]["sha256"] == hashlib.sha256(upgraded["test-token"].encode()).hexdigest()
    assert upgraded["tokens.toml"].startswith(kept)
    for name in ("admin-token", "node-token", "metrics-token"):
        assert upgraded[name] == first.tokens()[name]


def test_without_its_secret_a_release_gets_new_tokens(cluster: _Cluster) -> None:
    assert cluster.render().tokens() != cluster.render().tokens()


def test_new_keys_of_the_bucket_start_pods_again(cluster: _Cluster) -> None:
    """The environment of a process is read at its start only."""
    cluster.install(cluster.render("s3-secret"))
    cluster.holds("bucket-keys", access_key_id="a", secret_access_key="b")
    before = _digest(cluster.render("s3-secret"))
    assert _digest(cluster.render("s3-secret")) == before
    cluster.holds("bucket-keys", access_key_id="a", secret_access_key="c")
    assert _digest(cluster.render("s3-secret")) != before


def test_a_new_token_of_the_nodes_starts_pods_again_and_a_new_entry_for_a_client_does_not(cluster: _Cluster) -> None:
    own = {"tokens": {"existingSecret": "own", "fileKey": "tokens-toml"}}
    cluster.holds("own", node_token="1", tokens_toml="one")
    before = _digest(cluster.render(values=own))
    cluster.holds("own", node_token="1", tokens_toml="two")
    assert _digest(cluster.render(values=own)) == before
    cluster.holds("own", node_token="2", tokens_toml="two")
    assert _digest(cluster.render(values=own)) != before
