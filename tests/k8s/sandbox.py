"""A network, mounts and processes of their own for a cluster, all of which end with the sandbox.

Nothing of it is named anywhere outside: there is no file in ``/run/netns``, and every mount belongs to the processes
within. Only control groups are the machine's, so they lie below one folder that is removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.tools.cache import ToolMissingError

#: The node's address, on the loopback device: the sandbox has no other device until pods bring theirs.
ADDRESS = "10.99.0.1"
SERVICES = "10.96.0.0/16"
_NEEDED = ("unshare", "nsenter", "mount", "ip", "iptables", "etcd", "runc")
_FIRST = Path(__file__).with_name("first_process.py")
_CGROUPS = Path("/sys/fs/cgroup")
_STOP_LIMIT_S = 20.0

# What programs write below fixed paths stays inside: run files, network leases, the log links of pods. Settings of the
# kernel that are not the network's own would outlive the sandbox, so they cannot be written; those that the kubelet
# insists on are copies.
_SET_UP = f"""
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /etc/cni
mkdir -p "$1/var-log"
mount --bind "$1/var-log" /var/log
mkdir "$1/sysctl"
for own in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
           kernel/keys/root_maxbytes; do
  cat /proc/sys/$own > "$1/sysctl/${{own##*/}}"
done
for kept in vm kernel fs; do
  mount --bind /proc/sys/$kept /proc/sys/$kept
  mount -o remount,bind,ro /proc/sys/$kept
done
for own in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
           kernel/keys/root_maxbytes; do
  mount --bind "$1/sysctl/${{own##*/}}" /proc/sys/$own
done
ip link set lo up
ip address add {ADDRESS}/32 dev lo
ip route add {SERVICES} dev lo src {ADDRESS}
echo 1 > /proc/sys/net/ipv4/ip_forward
exec "$2" -I "$3"
"""


class Sandbox:
    """Commands run inside of it by :meth:`command`; daemons are started by name and end with it."""

    def __init__(self, folder: Path, logs: Path) -> None:
        missing = [name for name in _NEEDED if shutil.which(name) is None]
        if missing:
            raise ToolMissingError(f"not installed: {', '.join(missing)}; see tests/tools/kubernetes_packages.sh")
        if os.geteuid() != 0:
            raise ToolMissingError("a cluster with real pods wants root")
        self.folder, self.logs = folder, logs
        self.cgroup = f"tierlog-k8s-{os.getpid()}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)
        self._first = self._start()
        self._target = self._child_of(self._first.pid)

    def _start(self) -> subprocess.Popen[bytes]:
        _sweep_cgroups()
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        log = (self.logs / "sandbox.log").open("wb")
        with log:
            first = subprocess.Popen(
                [*command, "sh", "-c", _SET_UP, "sh", str(self.folder), sys.executable, str(_FIRST)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,  # Ctrl-C is for who waits, who then ends this in order
            )  # fmt: skip
        assert first.stdout is not None
        if first.stdout.readline() != b"ready\n":
            first.wait(_STOP_LIMIT_S)
            raise RuntimeError(f"the sandbox did not begin:\n{(self.logs / 'sandbox.log').read_text()}")
        for controller in _controllers():
            (controller / self.cgroup).mkdir(exist_ok=True)
        return first

    @staticmethod
    def _child_of(pid: int) -> int:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def command(self, *command: str) -> list[str]:
        """The same command, run inside."""
        inside = ["nsenter", f"--target={self._target}", "--net", "--mount", "--pid"]
        return [*inside, f"--wd={self.folder}", "--", *command]

    def run(self, *command: str, limit_s: float = 60, check: bool = True, given: str | None = None) -> str:
        """Its output; RuntimeError with all that it said if it fails and that matters."""
        try:
            done = subprocess.run(
                self.command(*command), input=given or "", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{' '.join(command)} took longer than {limit_s} s: {error.output!r}") from error
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-8000:]}")
        return done.stdout

    def start(self, name: str, *command: str, variables: Mapping[str, str] | None = None) -> None:
        """A daemon, whose output is ``NAME.log`` among the logs."""
        environment = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": str(self.folder), **(variables or {})}
        with (self.logs / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                self.command(*command),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> list[str]:
        """The names of daemons that ended by themselves."""
        return [name for name, daemon in self._daemons.items() if daemon.poll() is not None]

    def tail(self, name: str, characters: int = 3000) -> str:
        """The end of a daemon's log."""
        return (self.logs / f"{name}.log").read_text(errors="replace")[-characters:]

    def close(self) -> None:
        """End everything inside and remove what is left outside."""
        for pipe in (self._first.stdin, self._first.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._first.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._first.kill()
            self._first.wait(_STOP_LIMIT_S)
        for daemon in self._daemons.values():
            daemon.wait(_STOP_LIMIT_S)
        _remove_cgroup(self.cgroup)


@contextlib.contextmanager
def sandbox(folder: Path, logs: Path) -> Iterator[Sandbox]:
    """A sandbox that ends with the block, however the block ends."""
    made = Sandbox(folder, logs)
    try:
        yield made
    finally:
        made.close()


def _controllers() -> Sequence[Path]:
    """The folders that hold one hierarchy of control groups each; one folder where there is only version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _sweep_cgroups() -> None:
    """Remove what a run that was killed left: groups whose process is gone."""
    for controller in _controllers():
        for left in controller.glob("tierlog-k8s-*"):
            if not Path(f"/proc/{left.name.rpartition('-')[2]}").exists():
                _remove_cgroup(left.name)


def _remove_cgroup(name: str) -> None:
    deadline = time.monotonic() + _STOP_LIMIT_S
    for controller in _controllers():
        top = controller / name
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):  # a process of it has not quite ended
                    os.rmdir(folder)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{top} is still in use")
            if top.exists():
                time.sleep(0.05)
