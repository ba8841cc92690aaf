"""Writes ``docs/metrics.md`` out of ``tierlog.service.observing.metric_families``: ``python -m docs.tools.metrics``."""

from __future__ import annotations

import sys
from pathlib import Path

from tierlog.service.observing.metric_families import PROCESS, SECTIONS, Family

_PAGE = Path(__file__).resolve().parents[1] / "metrics.md"
_HEAD = """# Metrics

<!-- Made by `python -m docs.tools.metrics` from service/observing/metric_families.py. Change it there. -->

`GET /metrics` answers in Prometheus' text format. A scrape asks nothing of the archive, however large it is. Labels are
what the code knows (routes, states, operations), never topics or keys; the one exception, consumer groups, is bounded
by `metrics.max_groups`. Counters begin at 0 when the store is opened. What has nothing to say, such as the lag
of the archive of a store without one, is left out.

Alerts on these are in [monitoring/alerts.yaml](../monitoring/alerts.yaml), a dashboard in
[monitoring/dashboard.json](../monitoring/dashboard.json); [observability.md](observability.md) says how to use them.
"""


def page() -> str:
    """Returns the whole page."""
    process = ", ".join(f"`{name}`" for name in PROCESS)
    tail = f"\nOf the process, where the system tells: {process}.\n"
    return _HEAD + "".join(_section(title, families) for title, families in SECTIONS.items()) + tail


def _section(title: str, families: tuple[Family, ...]) -> str:
    rows = "".join(
        f"| `{family.sample}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} "
        f"| {family.advice} |\n"
        for family in families
    )
    return f"\n## {title}\n\n| metric | type | labels | meaning | when it is high |\n|---|---|---|---|---|\n{rows}"


def main() -> int:
    """Writes the page."""
    _PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
