"""How long from `podman run` to a ready service in a container, and how large is the image?

Seconds until ``/readyz`` answers 200, on a new volume without an archive, and from there to the end of a first append
and a first query: lowest, median and highest of ``--runs``. Builds the image if it is not there. Needs root.

``python benchmarks/image_start.py [--runs 5] [--image NAME]``
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import socket
import statistics
import tempfile
import time
from pathlib import Path

from tests.support.processes.containers import Caller, running, volume, wait_until_ready
from tests.tools.containers import run_tool
from tests.tools.image import build_image

_TOKEN = "tierlog_" + "5" * 64


def start_once(image: str, folder: Path) -> tuple[float, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "TIERLOG_ACCESS_TOKENS": f"b:{hashlib.sha256(_TOKEN.encode()).hexdigest()}:produce,read:*",
        "TIERLOG_SERVE_PORT": str(port),
    }
    url = f"http://127.0.0.1:{port}"
    begun = time.perf_counter()
    with running(image, options=("--volume", f"{volume(folder)}:/data"), variables=variables) as container:
        wait_until_ready(container, url)
        ready = time.perf_counter()
        caller = Caller(url, _TOKEN)
        caller.call("POST", "/v1/topics/t/messages", {"messages": [{"body": "b", "keys": ["k"]}]})
        caller.call("GET", "/v1/topics/t/messages?key=k")
        return ready - begun, time.perf_counter() - ready


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--image")
    arguments = parser.parse_args()
    image = arguments.image or build_image()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        found = []
        for run in range(arguments.runs):
            found.append(start_once(image, Path(folder) / str(run)))
            shutil.rmtree(Path(folder) / str(run))  # a volume begins with two segments of 1 GiB
    for name, column in (("ready", 0), ("first append and query", 1)):
        times = [pair[column] for pair in found]
        print(f"{name:24}{min(times):.2f} / {statistics.median(times):.2f} / {max(times):.2f} s")
    print(run_tool("podman", "images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}", image).strip())


if __name__ == "__main__":
    main()
