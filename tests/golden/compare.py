"""Prints what was compared with RocketMQ's own answers: ``python -m tests.golden.compare``."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.support.rocketmq.golden import STORES
from tests.support.rocketmq.golden_compare import compare


def main() -> int:
    """A row for each fixture and one for each difference; always exit code 0, the tests judge."""
    total: Counter[str] = Counter()
    for name in STORES:
        with tempfile.TemporaryDirectory() as folder:
            found = compare(name, Path(folder))
        total += found.compared
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.compared.items())
        print(f"{name}: {kinds}; {len(found.differences)} differences; left out: {dict(found.left_out)}")
        for kind, what, theirs, ours in found.differences:
            print(f"  {kind} {what}: RocketMQ {str(theirs)[:200]}, tierlog {str(ours)[:200]}")
    print("all:", ", ".join(f"{count} {kind}" for kind, count in total.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
