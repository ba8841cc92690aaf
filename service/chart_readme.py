"""``helm/tierlog/README.md`` out of ``values.yaml``: every value with its default and the comment above it.

A comment of a value begins with ``# --`` and stands directly above it; ``## `` begins a section. A default stands on
the line of its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z]+):(?: (?P<default>.+))?$")
_HEAD = """# The chart `tierlog`

<!-- Made by `python -m service.chart_files` from values.yaml. Change it there. -->

Stores, queriers and the jobs on their archive, on Kubernetes {kube}. How to install, upgrade, scale and restore:
[docs/kubernetes.md](../../docs/kubernetes.md). Values that are wrong together are refused in a sentence before anything
is made; those that do not exist, by `values.schema.json`.
"""


@dataclass(frozen=True, slots=True)
class Value:
    """One value that can be set."""

    section: str
    name: str
    default: str
    description: str


def values_of(text: str) -> Iterator[Value]:
    """Every value with a default; :class:`ValueError` for one that nothing describes."""
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
    """The whole page."""
    page, section = _HEAD.format(kube=kube_version), None
    for value in values_of(text):
        if value.section != section:
            section = value.section
            page += f"\n## {section}\n\n| value | default | |\n|---|---|---|\n"
        default = value.default.replace("|", "\\|")
        page += f"| `{value.name}` | `{default}` | {value.description} |\n"
    return page
