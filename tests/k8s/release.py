"""tierlog installed by its chart on the cluster, with an S3 server in a pod, and load through its front door."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.k8s.cluster import Cluster
from tests.k8s.settings import NODE
from tests.tools.s3_servers import VERSITYGW, build_s3_server

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tierlog"
NAME = "tierlog"
_S3_IMAGE = "localhost/s3:1"
_S3_PORT = 9000
_KEYS = {"access-key-id": "testkey", "secret-access-key": "testsecret123"}
_VOLUMES = 6
_HELM_LIMIT_S = 400
_PODS_LIMIT_S = 300.0
#: How full this machine's disk is must not make stores remove anything.
_OWN = ("--set", "stores.settings.hot.disk_max_used_percent=100,stores.settings.hot.disk_full_percent=100")


@dataclass
class Release:
    """The chart on a cluster: installed, upgraded, written to and asked."""

    cluster: Cluster
    helm_program: Path
    image_tag: str
    journals: list[Path] = field(default_factory=list)

    def helm(self, *arguments: str, limit_s: float = _HELM_LIMIT_S) -> str:
        config = f"--kubeconfig={self.cluster.files.kubeconfig('admin')}"
        return self.cluster.inside.run(str(self.helm_program), config, *arguments, limit_s=limit_s)

    def install(self, *values: str) -> None:
        """``helm install --wait`` with the chart's own set of values for this test."""
        self.helm("install", NAME, str(CHART), *self._values(values))

    def upgrade(self, *values: str) -> None:
        """``helm upgrade --wait``; ``values`` are arguments of helm."""
        self.helm("upgrade", NAME, str(CHART), *self._values(values))

    def _values(self, values: tuple[str, ...]) -> list[str]:
        own = ["-f", str(CHART / "ci" / "k8s-values.yaml"), *_OWN, "--set", f"image.tag={self.image_tag}"]
        return [*own, *values, "--wait", f"--timeout={_HELM_LIMIT_S - 10}s"]

    @property
    def url(self) -> str:
        """The front door by its Service's address, which the node itself can reach too."""
        service = self.cluster.get("service", NAME)["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"

    @property
    def token(self) -> str:
        data = self.cluster.get("secret", f"{NAME}-tokens")["data"]
        return b64decode(data["admin-token"]).decode()

    def pods(self, component: str) -> list[dict[str, Any]]:
        """The pods of ``store`` or ``querier`` that are not on their way out, by name."""
        selector = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component={component}"
        listed = self.cluster.get("pods", "-l", selector)["items"]
        return sorted(
            (pod for pod in listed if "deletionTimestamp" not in pod["metadata"]),
            key=lambda pod: pod["metadata"]["name"],
        )

    def wait_ready(self, component: str, count: int) -> None:
        """Until so many pods of it are ready."""

        def ready() -> bool:
            pods = self.pods(component)
            conditions = [{c["type"]: c["status"] for c in pod["status"].get("conditions", [])} for pod in pods]
            return len(pods) == count and all(each.get("Ready") == "True" for each in conditions)

        try:
            self.cluster.wait(f"{count} pods of {component}", ready, _PODS_LIMIT_S)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self.told()}") from error

    def told(self) -> str:
        """What the cluster says of the pods, for a failed test."""
        kubectl = self.cluster.kubectl
        logs = [
            kubectl("logs", pod["metadata"]["name"], "--tail=30", check=False)
            for component in ("store", "querier")
            for pod in self.pods(component)
        ]
        events = kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)
        return "\n".join([kubectl("get", "pods,pvc", "-o", "wide", check=False), events[-4000:], *logs])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request through the front door; RuntimeError unless it says 2xx."""
        command = [
            "curl",
            "-sS",
            "--fail-with-body",
            "-m",
            "60",
            "-X",
            method,
            "-H",
            f"Authorization: Bearer {self.token}",
        ]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return json.loads(self.cluster.inside.run(*command, self.url + path, limit_s=70) or "null")

    def _load_command(self, *arguments: str) -> list[str]:
        return self.cluster.inside.command(sys.executable, "-m", "tests.k8s.load", *arguments)

    def _load_environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "TIERLOG_TOKEN": self.token}

    @contextlib.contextmanager
    def load(self, name: str) -> Iterator[Path]:
        """Appends go on beside the block; the journal of what was acknowledged is kept for :meth:`look_up`."""
        journal = self.cluster.inside.folder / f"{name}.journal"
        self.journals.append(journal)
        log = (self.cluster.inside.logs / f"load-{name}.log").open("wb")
        with log:
            writer = subprocess.Popen(
                self._load_command("write", str(journal), f"--url={self.url}", f"--name={name}"),
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._load_environment(),
            )  # fmt: skip
        assert writer.stdin is not None
        try:
            self.wait_acknowledged(journal, 10)
            yield journal
            self.wait_acknowledged(journal, acknowledged(journal) + 10)
        finally:
            writer.stdin.close()
            writer.wait(30)

    def wait_acknowledged(self, journal: Path, least: int) -> None:
        """Until so many requests of the journal were acknowledged."""
        what = f"{least} acknowledged requests in {journal.name}"
        self.cluster.wait(what, lambda: acknowledged(journal) >= least, _PODS_LIMIT_S)

    def look_up(self, *journals: Path) -> dict[str, Any]:
        """Ask for every key that was sent, through the front door."""
        done = subprocess.run(
            self._load_command("look-up", *map(str, journals), f"--url={self.url}"),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_HELM_LIMIT_S, check=False,
            env=self._load_environment(),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"looking up failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def acknowledged(journal: Path) -> int:
    """Requests of a journal that were acknowledged."""
    return journal.read_text().count('"status": 200') if journal.exists() else 0


def prepare(cluster: Cluster) -> None:
    """What the chart expects of a cluster: a storage class, volumes, a bucket and its keys."""
    cluster.load_program(_S3_IMAGE, build_s3_server(VERSITYGW))
    volumes = cluster.files.volumes
    for number in range(_VOLUMES):
        (volumes / f"volume-{number}").mkdir(parents=True)
    (volumes / "bucket" / "tierlog").mkdir(parents=True)
    os.chmod(volumes / "bucket", 0o777)
    os.chmod(volumes / "bucket" / "tierlog", 0o777)
    storage = {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "hostpath"},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
    }  # fmt: skip
    cluster.apply(storage, *(_volume(volumes / f"volume-{number}") for number in range(_VOLUMES)))
    cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bucket-keys"}, "stringData": _KEYS},
        _s3_pod(volumes / "bucket"),
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s3"},
            "spec": {"selector": {"app": "s3"}, "ports": [{"port": _S3_PORT}]},
        },
    )  # fmt: skip
    cluster.kubectl("wait", "--for=condition=Ready", "pod/s3", "--timeout=60s", limit_s=70)


def _volume(path: Path) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": path.name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "hostpath",
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }  # fmt: skip


def _s3_pod(folder: Path) -> dict[str, Any]:
    variables = {"ROOT_ACCESS_KEY": _KEYS["access-key-id"], "ROOT_SECRET_KEY": _KEYS["secret-access-key"]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s3", "labels": {"app": "s3"}},
        "spec": {
            "containers": [
                {
                    "name": "s3", "image": _S3_IMAGE, "imagePullPolicy": "Never",
                    "args": ["--port", f":{_S3_PORT}", "--health", "/health", "posix", "/data"],
                    "env": [{"name": name, "value": value} for name, value in variables.items()],
                    "readinessProbe": {"httpGet": {"path": "/health", "port": _S3_PORT}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "hostPath": {"path": str(folder)}}],
        },
    }  # fmt: skip
