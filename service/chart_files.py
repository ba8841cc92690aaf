"""Writes what is made in ``helm/tierlog``: ``python -m service.chart_files``.

The settings in ``values.schema.json``, ``README.md``, and copies of ``monitoring/``, because a chart can hold only
files of its own folder.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from service.chart_readme import readme
from service.chart_schema import settings_schema

_PROJECT = Path(__file__).resolve().parents[1]
CHART = _PROJECT / "helm" / "tierlog"


def made_files() -> dict[Path, str]:
    """Each file with what it should hold."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    schema["$defs"]["settings"] = settings_schema()
    described = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    kube = re.search(r'^kubeVersion: ">=(\d+\.\d+)', described, re.MULTILINE)
    if kube is None:
        raise ValueError("Chart.yaml has no kubeVersion")
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    monitoring = _PROJECT / "monitoring"
    return {
        CHART / "values.schema.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n",
        CHART / "README.md": readme(values, f"{kube[1]} or newer"),
        CHART / "files/alerts.yaml": (monitoring / "alerts.yaml").read_text(encoding="utf-8"),
        CHART / "files/dashboard.json": (monitoring / "dashboard.json").read_text(encoding="utf-8"),
    }


def main() -> int:
    """Write them."""
    for path, text in made_files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
