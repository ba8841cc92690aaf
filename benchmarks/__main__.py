"""Runs benchmarks one after another and writes docs/performance.md from what they found: ``python -m benchmarks``.

Without arguments those that the page consists of, otherwise the named ones (``append`` or ``benchmarks/append.py``).
One that fails does not keep the others from running; the exit status is 1 then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.report import BENCHMARKS, ONLY_BY_NAME

_FOLDER = Path(__file__).resolve().parent
_CHECKOUT = _FOLDER.parent


def main() -> int:
    named = [Path(name).stem for name in sys.argv[1:]]
    of_the_page = [name for name in BENCHMARKS if name not in ONLY_BY_NAME and (_FOLDER / f"{name}.py").exists()]
    failed = [name for name in named or of_the_page if not _runs(name, f"benchmarks/{name}.py")]
    if not _runs("the report", "-m", "benchmarks.report"):
        failed.append("the report")
    if failed:
        print(f"bench: failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def _runs(name: str, *arguments: str) -> bool:
    print(f"bench: {name}", flush=True)
    paths = [str(_CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, *arguments], cwd=_CHECKOUT, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
