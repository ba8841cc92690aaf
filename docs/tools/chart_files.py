"""Writes what is generated in ``helm/tierlog``: ``python -m docs.tools.chart_files``.

* ``README.md`` out of ``values.yaml``: every value with its default and the comment above it. A comment of a value
  begins with ``# --`` and stands directly above it; ``## `` begins a section. A default stands on its value's line.
* The settings in ``values.schema.json`` out of :class:`tierlog.service.config.settings.Settings`; the rest of that file
  is written by hand. What the chart itself sets (where pods listen, the files of secrets, the bucket's endpoint,
  addresses) is left out, so that a value that would be overruled is refused instead.
* Copies of ``monitoring/``, because a chart can hold only files of its own folder.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierlog.service.config.settings import Settings

_PROJECT = Path(__file__).resolve().parents[2]
CHART = _PROJECT / "helm" / "tierlog"
#: Settings that the chart derives from other values, or that would be wrong for all pods alike.
CHARTS_OWN = frozenset(
    {
        "advertise",
        "access.tokens",
        "access.tokens_file",
        "cluster.address",
        "cold.cache_dir",
        "cold.s3_endpoint",
        "serve.host",
        "serve.port",
        "serve.tls_certificate",
        "serve.tls_client_ca",
        "serve.tls_key",
    }
)

Schema = dict[str, Any]
_LINE = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z]+):(?: (?P<default>.+))?$")
_HEAD = """# The chart `tierlog`

<!-- Made by `python -m docs.tools.chart_files` from values.yaml. Change it there. -->

Stores, queriers and the jobs on their archive, on Kubernetes {kube}. How to install, upgrade, scale and restore:
[docs/kubernetes.md](../../docs/kubernetes.md). Values that are wrong together are refused in a sentence before anything
is made; those that do not exist, by `values.schema.json`.
"""


def made_files() -> dict[Path, str]:
    """Returns each generated file with what it should hold."""
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


@dataclass(frozen=True, slots=True)
class Value:
    """One value that can be set."""

    section: str
    name: str
    default: str
    description: str


def values_of(text: str) -> Iterator[Value]:
    """Yields every value with a default; :class:`ValueError` for one that nothing describes."""
    section, path, comment = "", [""], ""
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        found = _LINE.match(line)
        if bare.startswith("## "):
            section = bare[3:]
        elif bare.startswith("# -- "):
            comment = bare[5:]
        elif bare.startswith("#"):
            comment += f" {bare[1:].strip()}" if comment else ""
        elif found is not None:
            depth = len(found["indent"]) // 2
            path = [*path[:depth], found["name"]]
            if found["default"] is not None:
                if not comment:
                    raise ValueError(f"line {number}: nothing says what {'.'.join(path)} is")
                yield Value(section, ".".join(path), found["default"], comment)
            comment = ""
        elif bare:
            raise ValueError(f"line {number} is no value on a line: {bare}")


def readme(text: str, kube_version: str) -> str:
    """Returns the page of a ``values.yaml``."""
    page, section = _HEAD.format(kube=kube_version), None
    for value in values_of(text):
        if value.section != section:
            section = value.section
            page += f"\n## {section}\n\n| value | default | |\n|---|---|---|\n"
        default = value.default.replace("|", "\\|")
        page += f"| `{value.name}` | `{default}` | {value.description} |\n"
    return page


def settings_schema() -> Schema:
    """Returns the schema of ``settings``, ``stores.settings`` and ``queriers.settings``; each may be left out."""
    whole = Settings.model_json_schema()
    return _without_refs(whole, whole.get("$defs", {}), "")


def _without_refs(node: Schema, defs: Schema, name: str) -> Schema:
    """Returns the schema with its groups in place, no titles, and none of the chart's own settings."""
    if "$ref" in node:
        node = {**defs[node["$ref"].rpartition("/")[2]], **{key: node[key] for key in node if key != "$ref"}}
    if "properties" not in node:
        return {key: value for key, value in node.items() if key != "title"}
    prefix = f"{name}." if name else ""
    return {
        "type": "object",
        "description": str(node.get("description", "")).split("\n")[0],
        "additionalProperties": False,
        "properties": {
            field: _without_refs(value, defs, prefix + field)
            for field, value in node["properties"].items()
            if prefix + field not in CHARTS_OWN
        },
    }


def main() -> int:
    """Writes them."""
    for path, text in made_files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
