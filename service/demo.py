"""``make run``: a service on a store of its own in ``./.tierlog``, with a sample in both tiers to look at."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tierlog.service.api.application.process import serve
from tierlog.service.cli.errors import say
from tierlog.service.cli.line_loader import LineRules, LoadReport, TimestampParser, batches_of_text, load
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, FAILED, exit_code
from tierlog.service.sample import BORN_FORMAT, BORN_PATTERN, DEFAULT_LINES, KEY_PATTERNS, TAG_PATTERN, sample_log
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.paths import StorePaths

TOPIC = "shop"
_HOME = Path(".tierlog")
_COLD_URL = f"file://./{_HOME}/cold"
_QUEUES = 4
#: Sizes for a laptop; a store of its own keeps the defaults of docs/configuration.md.
_SIZES: dict[str, object] = {"hot.segment_bytes": 16 << 20, "hot.queue_file_units": 20_000}
_INDEX: dict[str, object] = {"index.slots": 50_000, "index.items": 200_000}
#: So small that the sample fills several segments and index objects, which is what Spark's jobs are for.
_MANY: dict[str, object] = {
    "hot.segment_bytes": 256 << 10, "hot.queue_file_units": 20_000, "index.slots": 1_000, "index.items": 4_000,
}  # fmt: skip


def main() -> int:
    """Serves until stopped."""
    parser = argparse.ArgumentParser(prog="make run RUN_ARGS=…", description=__doc__)
    parser.add_argument("--host", metavar="H")
    parser.add_argument("--port", type=int, metavar="N")
    parser.add_argument("--only-archive", type=Path, metavar="DIR", help="make the sample's archive DIR/cold, and end")
    arguments = parser.parse_args()
    root = _HOME / "store"
    try:
        if arguments.only_archive is not None:
            sample_archive(arguments.only_archive)
            return DONE
        sizes = {} if StorePaths(root).store_json.exists() else _SIZES
        settings = Settings.load(None, {**sizes, **_INDEX, "serve.host": arguments.host, "serve.port": arguments.port})
        serve(root, settings, cold_url=_COLD_URL, prepare=load_sample, ready=_announce)
    except StoreError as error:
        say(str(error))
        return exit_code(error)
    except KeyboardInterrupt:
        say("stopped")
        return FAILED
    return DONE


def load_sample(engine: Store, lines: int = DEFAULT_LINES) -> None:
    """Loads the sample at the first start: the older half into the archive alone, the newer half into the hot tier."""
    if any(topic.name == TOPIC for topic in engine.topics()):
        return
    say(f"first start: loading a sample of {lines} lines into topic {TOPIC}")
    clock = SystemClock()
    rules = LineRules(
        TOPIC,
        [re.compile(pattern) for pattern in KEY_PATTERNS],
        re.compile(TAG_PATTERN),
        TimestampParser(re.compile(BORN_PATTERN), BORN_FORMAT, year=None, now_ms=clock.now_ms()),
    )
    report = LoadReport()
    all_lines = _lines(lines)
    engine.create_topic(TOPIC, _QUEUES)
    load(batches_of_text("sample", [b"".join(islice(all_lines, lines // 2))], rules), engine.append, report=report)
    archived = engine.archive(everything=True, drop_hot=True)
    load(batches_of_text("sample", [b"".join(all_lines)], rules), engine.append, report=report)
    say(
        f"{report.messages} messages; the older half is in the archive only: "
        f"{archived.bytes_raw} bytes became {archived.bytes_stored}"
    )


def sample_archive(folder: Path) -> None:
    """Makes an archive of several segments of the whole sample in ``folder``, unless it is there."""
    settings = Settings.load(None, _MANY)
    engine = Store.open(folder / "store", settings=settings, cold_url=f"file://{(folder / 'cold').absolute()}")
    try:
        load_sample(engine)
        engine.archive(everything=True, drop_hot=True)
    finally:
        engine.close()


def _lines(lines: int) -> Iterator[bytes]:
    """Returns whole lines of the sample, with their ends."""
    return iter(b"".join(sample_log(lines)).splitlines(keepends=True))


def _key_in_both_halves(lines: int = DEFAULT_LINES) -> str:
    """Finds the order that is mentioned most often on both sides of the border."""
    halves = (Counter[str](), Counter[str]())
    for number, piece in enumerate(sample_log(lines)):
        halves[number >= lines // 2].update(re.findall(KEY_PATTERNS[0], piece.decode()))
    older, newer = halves
    return max(older, key=lambda key: (min(older[key], newer[key]), key))


def _announce(url: str) -> None:
    command = Path(sys.executable).parent / "tierlog"
    tierlog = os.path.relpath(command) if command.exists() else f"{sys.executable} -m tierlog.service.main"
    key = shlex.quote(_key_in_both_halves())
    print(
        f"\nThe page: {url}/   (Ctrl-C stops)\n\n"
        "Three commands to try in another shell:\n"
        f"  {tierlog} query {TOPIC} --key {key} --order oldest --url {url}\n"
        f"  {tierlog} query {TOPIC} --time born --from 2026-03-01T06:00:00Z --to 2026-03-01T06:00:03Z --url {url}\n"
        f"  {tierlog} files --url {url}\n",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
