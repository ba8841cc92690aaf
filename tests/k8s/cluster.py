"""A Kubernetes cluster of one node, with the real programs and real pods, inside a :class:`Sandbox`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.k8s.sandbox import ADDRESS, SERVICES, Sandbox, sandbox
from tests.k8s.settings import API_PORT, NODE, PAUSE_IMAGE, Files, write_all
from tests.tools.cache import ToolMissingError
from tests.tools.kubernetes import OF_CONTAINERD, program
from tests.tools.small_image import write_small_image

_READY_LIMIT_S = 90.0
_ETCD = f"http://{ADDRESS}:2379"
_ETCD_PEER = f"http://{ADDRESS}:2380"
_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
#: One processor for each program: they share the machine with the pods.
_FRUGAL = {"GOMAXPROCS": "1"}


class Cluster:
    """A started cluster; :meth:`kubectl` is its administrator."""

    def __init__(self, inside: Sandbox, files: Files) -> None:
        self.inside, self.files = inside, files

    def kubectl(self, *arguments: str, given: str | None = None, limit_s: float = 60, check: bool = True) -> str:
        """What kubectl says; RuntimeError if it fails and that matters."""
        config = f"--kubeconfig={self.files.kubeconfig('admin')}"
        return self.inside.run(str(program("kubectl")), config, *arguments, given=given, limit_s=limit_s, check=check)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make or change objects."""
        self.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, *arguments: str) -> Any:
        """An object, or a list, as the API server knows it."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def wait(self, what: str, true: Callable[[], bool], limit_s: float = _READY_LIMIT_S) -> None:
        """Until it is true; RuntimeError that names it once the time is over or a program has ended."""
        deadline = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(RuntimeError, json.JSONDecodeError):
                if true():
                    return
            ended = self.inside.ended()
            if ended:
                raise RuntimeError(f"{', '.join(ended)} ended:\n{self.inside.tail(ended[0])}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {limit_s} s: {what}")
            time.sleep(0.2)

    def load_image(self, archive: Path) -> None:
        """Give the node an image from a file of ``docker save``'s form."""
        socket = str(self.files.containerd_socket)
        self.inside.run(
            str(program("ctr")), "-a", socket, "-n", "k8s.io", "images", "import", str(archive), limit_s=180
        )

    def load_program(self, tag: str, path: Path) -> None:
        """Give the node an image that holds one program of this machine."""
        archive = self.files.folder / f"{path.name}.tar"
        write_small_image(archive, tag, path)
        self.load_image(archive)
        archive.unlink()


@contextlib.contextmanager
def running_cluster(folder: Path, logs: Path) -> Iterator[Cluster]:
    """A cluster whose node is ready; everything ends with the block."""
    plugins = next((path for path in _PLUGINS if (path / "ptp").exists()), None)
    if plugins is None:
        raise ToolMissingError("no network plugins: see tests/tools/kubernetes_packages.sh")
    files = Files(folder)
    with sandbox(folder, logs) as inside:
        write_all(files, inside.cgroup, plugins)
        cluster = Cluster(inside, files)
        _start_control(cluster)
        _start_node(cluster)
        yield cluster


def _start_control(cluster: Cluster) -> None:
    inside, files = cluster.inside, cluster.files
    inside.start(
        "etcd", "etcd", f"--data-dir={files.folder}/etcd", f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}", f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=default={_ETCD_PEER}", "--unsafe-no-fsync", variables=_FRUGAL,
    )  # fmt: skip
    key = files.folder / "service-accounts.key"
    public = files.folder / "service-accounts.pub"
    inside.run("openssl", "genrsa", "-out", str(key), "2048")
    inside.run("openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public))
    inside.start(
        "apiserver", str(program("kube-apiserver")), f"--etcd-servers={_ETCD}", f"--bind-address={ADDRESS}",
        f"--advertise-address={ADDRESS}", f"--secure-port={API_PORT}",
        f"--cert-dir={files.certificates}",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={key}", f"--token-auth-file={files.folder}/tokens.csv",
        "--authorization-mode=Node,RBAC", f"--service-cluster-ip-range={SERVICES}", "--allow-privileged=true",
        "--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP",
        variables=_FRUGAL,
    )  # fmt: skip
    cluster.wait("the API server", lambda: cluster.kubectl("get", "--raw=/readyz", limit_s=5) == "ok")
    inside.start(
        "controller-manager", str(program("kube-controller-manager")),
        f"--kubeconfig={files.kubeconfig('controller-manager')}",
        "--leader-elect=false", f"--bind-address={ADDRESS}", f"--service-account-private-key-file={key}",
        f"--root-ca-file={files.authority}", "--use-service-account-credentials=true", variables=_FRUGAL,
    )  # fmt: skip
    inside.start(
        "scheduler", str(program("kube-scheduler")), f"--kubeconfig={files.kubeconfig('scheduler')}",
        "--leader-elect=false", f"--bind-address={ADDRESS}", variables=_FRUGAL,
    )  # fmt: skip


def _start_node(cluster: Cluster) -> None:
    inside, files = cluster.inside, cluster.files
    path = f"{OF_CONTAINERD.folder}:{os.environ['PATH']}:/usr/sbin:/sbin"
    inside.start(
        "containerd", str(program("containerd")), "--config", f"{files.folder}/containerd.toml",
        variables={**_FRUGAL, "PATH": path},
    )  # fmt: skip
    socket = str(files.containerd_socket)
    cluster.wait("containerd", lambda: "Version" in inside.run(str(program("ctr")), "-a", socket, "version", limit_s=5))
    cluster.load_program(PAUSE_IMAGE, program("pause"))
    inside.start(
        "kubelet", str(program("kubelet")), f"--kubeconfig={files.kubeconfig('kubelet')}",
        f"--config={files.folder}/kubelet.json", f"--root-dir={files.folder}/kubelet",
        f"--cert-dir={files.folder}/kubelet-tls", f"--node-ip={ADDRESS}",
        f"--hostname-override={NODE}", variables=_FRUGAL,
    )  # fmt: skip
    inside.start("proxy", str(program("kube-proxy")), f"--config={files.folder}/proxy.json", variables=_FRUGAL)
    view = {"apiGroups": ["", "discovery.k8s.io"], "resources": ["services", "namespaces", "pods", "endpointslices"]}
    role = {"rules": [{**view, "verbs": ["list", "watch"]}]}
    subject = {"kind": "User", "name": "dns", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": "dns", "apiGroup": "rbac.authorization.k8s.io"}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "dns"}}
    cluster.apply(
        {**rbac, "kind": "ClusterRole", **role},
        {**rbac, "kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": reference},
    )
    inside.start("dns", str(program("coredns")), "-conf", f"{files.folder}/Corefile", variables=_FRUGAL)
    ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    cluster.wait("the node", lambda: cluster.kubectl("get", "node", NODE, "-o", ready) == "True")
    account = ("get", "serviceaccount", "default", "-o", "name")
    cluster.wait("the default account", lambda: "default" in cluster.kubectl(*account))
