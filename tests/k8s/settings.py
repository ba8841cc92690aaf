"""Configuration files of the cluster's programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.sandbox import ADDRESS

API_PORT = 6443
API_URL = f"https://{ADDRESS}:{API_PORT}"
NODE = "node0"
PODS = "10.244.0.0/24"
DOMAIN = "cluster.local"
PAUSE_IMAGE = "localhost/pause:1"

#: Who calls the API server, and in which groups: each program has the rights that Kubernetes itself gives it.
CALLERS = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "controller-manager": ("system:kube-controller-manager", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("dns", ""),
}


@dataclass(frozen=True)
class Files:
    """Where each file of the cluster lies, below one folder."""

    folder: Path

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def authority(self) -> Path:
        return self.certificates / "apiserver.crt"

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def volumes(self) -> Path:
        return self.folder / "volumes"

    def kubeconfig(self, caller: str) -> Path:
        return self.folder / f"{caller}.kubeconfig"


def token_of(caller: str) -> str:
    """A token that is known to everybody: nobody outside can reach the server."""
    return f"token-of-{caller}"


def write_all(files: Files, cgroup: str, plugins: Path) -> None:
    """Everything that does not need a running server."""
    files.folder.mkdir(parents=True, exist_ok=True)
    tokens = [f'{token_of(name)},{user},{name},"{groups}"' for name, (user, groups) in CALLERS.items()]
    (files.folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
    for name in CALLERS:
        files.kubeconfig(name).write_text(_kubeconfig(files, name))
    (files.folder / "containerd.toml").write_text(_containerd(files, plugins))
    (files.folder / "cni").mkdir(exist_ok=True)
    (files.folder / "cni" / "10-pods.conflist").write_text(_network(files))
    (files.folder / "kubelet.json").write_text(_kubelet(files, cgroup))
    (files.folder / "proxy.json").write_text(_proxy(files))
    (files.folder / "Corefile").write_text(_dns(files))


def _kubeconfig(files: Files, caller: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": API_URL, "certificate-authority": str(files.authority)}}],
            "users": [{"name": caller, "user": {"token": token_of(caller)}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": caller}}],
            "current-context": "it",
        }
    )


def _containerd(files: Files, plugins: Path) -> str:
    # Without restrict_oom_score_adj every sandbox fails where root has no CAP_SYS_RESOURCE.
    return f"""
version = 3
root = "{files.folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{files.containerd_socket}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{files.folder}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def _network(files: Files) -> str:
    # Point to point, not a bridge: all that pods say to each other passes the node's tables, as Service addresses need
    # where the kernel does not show bridged packets to them.
    addresses = {"type": "host-local", "dataDir": "/run/addresses", "ranges": [[{"subnet": PODS}]]}
    plugin = {"type": "ptp", "ipMasq": False, "ipam": {**addresses, "routes": [{"dst": "0.0.0.0/0"}]}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin, {"type": "portmap"}]})


def _kubelet(files: Files, cgroup: str) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "clusterDNS": [ADDRESS],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": f"unix://{files.containerd_socket}",
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "healthzBindAddress": ADDRESS,
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": "/var/log/pods",
            "registerNode": True,
            "resolvConf": "",
            "syncFrequency": "10s",
        }
    )


def _proxy(files: Files) -> str:
    unlimited = {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"}
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(files.kubeconfig("proxy"))},
            "clusterCIDR": PODS,
            "conntrack": unlimited,
            "hostnameOverride": NODE,
            "mode": "iptables",
        }
    )


def _dns(files: Files) -> str:
    return f"""
.:53 {{
    bind {ADDRESS}
    errors
    ready {ADDRESS}:8181
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {files.kubeconfig("dns")} it
        pods insecure
        ttl 1
    }}
}}
"""
