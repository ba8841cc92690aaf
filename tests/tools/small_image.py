"""Writes a container image of one program and the libraries that it is linked with, in the form of ``docker save``."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path


def write_small_image(target: Path, tag: str, program: Path) -> None:
    """An image whose entry point is the program, which lies in ``/``; its user is 10001."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, name in [(program, program.name), *((library, str(library)) for library in _libraries(program))]:
            entry = tarfile.TarInfo(name.strip("/"))
            entry.size, entry.mode = path.stat().st_size, 0o755
            with path.open("rb") as file:
                tar.addfile(entry, file)
    content = layer.getvalue()
    config = {
        "architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "10001"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as tar:
        for name, data in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", content),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _libraries(program: Path) -> list[Path]:
    """What the loader maps for it, the loader too; nothing for a static program."""
    asked = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    if asked.returncode:
        return []
    words = (word for line in asked.stdout.splitlines() for word in line.split())
    return [Path(word) for word in words if word.startswith("/")]
