"""Writes and looks up through a Service, from inside the cluster's network: a process beside the pods.

``python -m tests.k8s.load write --url URL --journal FILE`` appends until its standard input ends; the token is in
``TIERLOG_TOKEN``. Each message has a key of its own, and each is sent once: one that was not acknowledged may be there
or not, so it is noted as such and never sent again. ``… look-up`` asks for each key of the journal and prints a JSON
summary.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import urllib3

TOPICS = tuple(f"load-{number}" for number in range(8))
_BATCH = 5
_PAUSE_S = 0.2
_LIMIT_S = 20.0
_ASKERS = 4
_TRIES = 10


class Front:
    """The front door; a connection is kept unless told otherwise."""

    def __init__(self, url: str, *, is_kept: bool = True) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {os.environ['TIERLOG_TOKEN']}"}
        if not is_kept:  # each request may go to another pod
            self._headers["Connection"] = "close"
        self._pool = urllib3.PoolManager(maxsize=1, retries=False, timeout=urllib3.Timeout(_LIMIT_S))

    def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and body; status 0 and what went wrong if there was no answer."""
        try:
            answer = self._pool.request(method, self._url + path, headers=self._headers, **more)
        except urllib3.exceptions.HTTPError as error:
            return 0, str(error)
        try:
            return answer.status, json.loads(answer.data)
        except ValueError:
            return answer.status, answer.data.decode(errors="replace")


def write(url: str, journal: Path, name: str, durability: str) -> None:
    """Append until standard input ends; a line of the journal for each request."""
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    front = Front(url, is_kept=False)
    with journal.open("a", buffering=1) as lines:
        number = 0
        while not ended.wait(_PAUSE_S):
            topic = TOPICS[number % len(TOPICS)]
            keys = [f"{name}-{number}-{place}" for place in range(_BATCH)]
            messages = [{"body": f"message {key}", "keys": [key]} for key in keys]
            begun = time.monotonic()
            status, said = front.ask(
                "POST", f"/v1/topics/{topic}/messages?durability={durability}", json={"messages": messages}
            )
            took_ms = round((time.monotonic() - begun) * 1000)
            line = {"topic": topic, "keys": keys, "status": status, "took_ms": took_ms}
            lines.write(json.dumps(line if status == 200 else {**line, "said": said}) + "\n")
            number += 1


def look_up(url: str, journals: Iterable[Path]) -> dict[str, Any]:
    """How often each key of the journals is found, in counts."""
    entries = [json.loads(line) for journal in journals for line in journal.read_text().splitlines()]
    asked = [(entry["topic"], key, entry["status"] == 200) for entry in entries for key in entry["keys"]]
    local = threading.local()

    def times(one: tuple[str, str, bool]) -> int | str:
        if not hasattr(local, "front"):
            local.front = Front(url)
        said: Any = None
        for _ in range(_TRIES):
            status, said = local.front.ask("GET", f"/v1/topics/{one[0]}/messages?key={one[1]}&limit=10")
            if status == 404:
                return 0
            if status == 200 and said["coverage"]["complete"]:
                bodies = [message["body"] for message in said["messages"]]
                return len(bodies) if set(bodies) <= {f"message {one[1]}"} else f"other content: {bodies}"
            time.sleep(0.5)
        return f"no complete answer: {json.dumps(said)[:2000]}"

    with ThreadPoolExecutor(_ASKERS) as pool:
        found = list(pool.map(times, asked))
    pairs = [(key, count, promised) for (_, key, promised), count in zip(asked, found, strict=True)]
    statuses = Counter(str(entry["status"]) for entry in entries)
    return {
        "requests": dict(statuses),
        "slowest_ms": max((entry["took_ms"] for entry in entries), default=0),
        "refusals": sorted({json.dumps(entry["said"])[:300] for entry in entries if entry["status"] != 200})[:5],
        "acknowledged": sum(promised for _, _, promised in pairs),
        "found_once": sum(count == 1 for _, count, promised in pairs if promised),
        "wrong": [(key, count) for key, count, promised in pairs if promised and count != 1][:20],
        "not_acknowledged": sum(not promised for _, _, promised in pairs),
        "of_those_found": sum(count == 1 for _, count, promised in pairs if not promised),
        "of_those_wrong": [(key, count) for key, count, promised in pairs if not promised and count not in (0, 1)][:20],
    }


def main(argv: list[str]) -> int:
    """Write, or look up."""
    parser = argparse.ArgumentParser(prog="python -m tests.k8s.load")
    parser.add_argument("what", choices=("write", "look-up"))
    parser.add_argument("journals", type=Path, nargs="+")
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", default="m")
    parser.add_argument("--durability", default="flushed")
    arguments = parser.parse_args(argv)
    if arguments.what == "write":
        write(arguments.url, arguments.journals[0], arguments.name, arguments.durability)
    else:
        print(json.dumps(look_up(arguments.url, arguments.journals)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
