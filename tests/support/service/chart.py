"""The chart rendered by Helm itself, and questions that tests ask about the result."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
CHART = Path(__file__).resolve().parents[3] / "helm" / "tierlog"
#: Sets of values by name, as ``ci/<name>-values.yaml`` has them.
SETS = tuple(sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
NAMESPACE = "logs"
_LIMIT_S = 60
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Rendered:
    """What Helm would send to the cluster."""

    documents: tuple[Json, ...]

    def all(self, kind: str) -> list[Json]:
        return [each for each in self.documents if each["kind"] == kind]

    def one(self, kind: str, suffix: str = "") -> Json:
        """The only one of its kind whose name ends so."""
        found = [each for each in self.all(kind) if each["metadata"]["name"].endswith(suffix)]
        assert len(found) == 1, f"{kind} …{suffix}: {[each['metadata']['name'] for each in found]}"
        return found[0]

    def pods(self) -> Iterator[tuple[str, Json, Json]]:
        """Everything that becomes a pod: a name, its metadata and its spec."""
        for each in self.documents:
            name = f"{each['kind']}/{each['metadata']['name']}"
            if each["kind"] == "Pod":
                yield name, each["metadata"], each["spec"]
            elif each["kind"] in ("StatefulSet", "Deployment"):
                yield name, each["spec"]["template"]["metadata"], each["spec"]["template"]["spec"]
            elif each["kind"] == "CronJob":
                template = each["spec"]["jobTemplate"]["spec"]["template"]
                yield name, template["metadata"], template["spec"]

    def container(self, kind: str, suffix: str = "") -> Json:
        """The only container of the pods of that object."""
        name = self.one(kind, suffix)["metadata"]["name"]
        found: list[Json] = next(spec for who, _, spec in self.pods() if who == f"{kind}/{name}")["containers"]
        assert len(found) == 1
        return found[0]

    def settings(self, who: str) -> str:
        """The settings file of ``stores`` or ``queriers``."""
        files = next(each["data"] for each in self.all("ConfigMap") if "stores.toml" in each["data"])
        text: str = files[f"{who}.toml"]
        return text

    def tokens(self) -> dict[str, str]:
        """The secret with tokens, decoded."""
        data: dict[str, str] = self.one("Secret", "-tokens")["data"]
        return {name: base64.b64decode(value).decode() for name, value in data.items()}

    def flat(self) -> dict[str, object]:
        """Every scalar by where it is, for comparing two renderings."""
        flat: dict[str, object] = {}
        for each in self.documents:
            flat.update(_leaves(each, f"{each['kind']}/{each['metadata']['name']}"))
        return flat


class Chart:
    """Renders once for each set of values."""

    def __init__(self, helm: Path) -> None:
        self.helm = helm
        self._render = cache(self._fresh)

    def run(self, *arguments: str, values: Mapping[str, object] | None = None) -> subprocess.CompletedProcess[str]:
        """Helm, which asks no cluster and no network."""
        return subprocess.run(
            [str(self.helm), *arguments], input=json.dumps(values or {}), capture_output=True, text=True,
            timeout=_LIMIT_S, check=False, env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip

    def render(
        self, values: Mapping[str, object] | None = None, *, base: str = "single", release: str = "tl"
    ) -> Rendered:
        """With ``ci/<base>-values.yaml``, and ``values`` before them."""
        return self._render(json.dumps(values or {}, sort_keys=True), base, release)

    def refusal(self, values: Mapping[str, object], *, base: str = "single", release: str = "tl") -> str:
        """What Helm says instead of rendering."""
        done = self.run(*_template(base, release), values=values)
        assert done.returncode, f"{values} was rendered"
        return done.stderr

    def _fresh(self, values: str, base: str, release: str) -> Rendered:
        done = self.run(*_template(base, release), values=json.loads(values))
        assert done.returncode == 0, done.stderr
        return Rendered(tuple(each for each in yaml.load_all(done.stdout, _Loader) if each))


def path_of(base: str) -> Path:
    return CHART / "ci" / f"{base}-values.yaml"


def nested(name: str, value: object) -> Json:
    """``a.b`` and 1 as ``{"a": {"b": 1}}``."""
    first, _, rest = name.partition(".")
    return {first: nested(rest, value) if rest else value}


def changed(before: Rendered, after: Rendered) -> set[str]:
    """Where two renderings differ."""
    old, new = before.flat(), after.flat()
    return {where for where in old.keys() | new.keys() if old.get(where, "absent") != new.get(where, "absent")}


def sentences() -> list[str]:
    """The format of every refusal in the templates."""
    text = (CHART / "templates" / "_refusals.tpl").read_text(encoding="utf-8")
    return re.findall(r'append \$refusals (?:\(printf )?"((?:[^"\\]|\\.)*)"', text)


def _template(base: str, release: str) -> list[str]:
    return ["template", release, str(CHART), "-n", NAMESPACE, "-f", str(path_of(base)), "-f", "-"]


def _leaves(node: object, where: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _leaves(value, f"{where}.{name}")
    elif isinstance(node, list) and node:
        for number, value in enumerate(node):
            mark = value.get("name", number) if isinstance(value, dict) else number
            yield from _leaves(value, f"{where}[{mark}]")
    else:
        yield where, node
