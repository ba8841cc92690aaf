"""Does a service that is killed again and again, while everything goes on at once, ever answer wrongly, or grow?

``python -m tests.soak [--minutes 30] [--seed N] [--dir FOLDER] [--no-save]``: see :mod:`tests.soak.soak`. Ends with 1
if an answer was wrong or memory grew. Rates and resident memory over time are kept in benchmarks/results/soak.json.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Report, Row
from tests.soak.growth import MOST_RATIO
from tests.soak.soak import Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TIERLOG_SEED") or random.randrange(2**32)))
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where its store and archive are meanwhile")
    parser.add_argument("--no-save", action="store_true", help="leave benchmarks/results as it is")
    given = parser.parse_args()
    print(f"soak: seed {given.seed} (again with: make soak SEED={given.seed})", flush=True)
    given.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.dir.resolve(), prefix="soak-") as folder:
        report = Report("soak", " ".join((__doc__ or "").split("\n\n", 1)[0].split()))
        soak = Soak(Path(folder), given.minutes * 60, given.seed)
        soak.run()
        for line in soak.ledger.wrong:
            print(f"wrong: {line}")
        if soak.ledger.wrong:
            print(soak.said())
    is_well = _told(report, soak)
    if not given.no_save:
        report.save()
    return 0 if is_well else 1


def _told(report: Report, soak: Soak) -> bool:
    ledger, keeper, course = soak.ledger, soak.keeper, soak.course.columns
    for what, name in (("acknowledged", "messages"), ("consumed", "messages"), ("look_ups", "look-ups")):
        report.add(Row(what.replace("_", "-"), f"{name}/s", {"tierlog": course[f"{what}_per_s"]}))
    report.add(Row("wrong answers", "", {"tierlog": [len(ledger.wrong)]}, target=0, smaller_is_better=True))
    report.add(Row("kills", "", {"tierlog": [soak.kills]}))
    report.add(Row("archive rounds, beside the service's own", "", {"tierlog": [keeper.rounds]}))
    report.add(Row("index objects merged", "", {"tierlog": [keeper.merged]}))
    report.add(Row("messages that expired before they were consumed", "", {"tierlog": [ledger.expired]}))
    report.add(Row("archive at the end", "MiB", {"tierlog": [course["archive_mib"][-1]]}))
    report.add(Row("resident memory", "MiB", {"tierlog": [statistics.median(course["resident_mib"])]}))
    growth = soak.growth
    if growth is not None:
        report.add(
            Row(
                "resident memory without kills",
                "MiB",
                {"last third": [growth.last], "middle third": [growth.middle]},
                target=MOST_RATIO,
                smaller_is_better=True,
                note="the first third, in which caches fill, does not count",
            )
        )
    report.series["course"] = course
    print(
        f"soak: {ledger.acknowledged:,} acknowledged, {ledger.consumed:,} consumed ({ledger.again:,} again), "
        f"{ledger.looked_up:,} look-ups found {ledger.found:,}; {soak.kills} kills, {len(ledger.wrong)} wrong answers"
    )
    return not ledger.wrong and (growth is None or growth.is_within)


if __name__ == "__main__":
    sys.exit(main())
