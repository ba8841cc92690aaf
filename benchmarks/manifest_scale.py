"""What does a manifest of 100, 10,000 and 100,000 published segments cost? Requests and bytes, counted, not timed.

``python benchmarks/manifest_scale.py [COUNT ...]``. Archives are made through real commits, 400 entries at a time.
"""

from __future__ import annotations

import sys

from tabulate import tabulate

from tests.support.stores.big_archive import COMMITS, Asked, BigArchive, Costs


def _told(asked: Asked, per: int = 1) -> str:
    return f"{asked.requests / per:.4g} / {asked.bytes_read / per:,.0f} / {asked.bytes_written / per:,.0f}"


def main() -> None:
    """Print the table."""
    counts = [int(text) for text in sys.argv[1:]] or [100, 10_000, 100_000]
    rows = []
    for count in counts:
        costs = Costs(BigArchive(count))
        rows.append(
            [
                f"{count:,}",
                f"{costs.largest_head:,}",
                _told(costs.commits, 2 * COMMITS),
                _told(costs.refresh_without_change),
                _told(costs.first_refresh),
                _told(costs.look_up),
                _told(costs.pull),
                f"{costs.kept_bytes:,}",
            ]
        )
    headers = [
        "segments",
        "largest head",
        "commit",
        "refresh",
        "first refresh",
        "look-up",
        "pull plan",
        "kept in memory",
    ]
    sys.stdout.write(tabulate(rows, headers) + "\n\nrequests / bytes read / bytes written; sizes in bytes\n")


if __name__ == "__main__":
    main()
