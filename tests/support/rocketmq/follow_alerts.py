"""Alerts on followers, evaluated by promtool over what was really scraped from one."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

_RULES = Path(__file__).parents[3] / "monitoring" / "alerts.yaml"
_PLACE = 'instance="follower", job="tierlog"'
_STAMP = "_timestamp_seconds"


@dataclass(frozen=True)
class Scrape:
    """The samples about followers at a moment, by name and labels."""

    samples: dict[str, float]
    at_s: float = field(default_factory=time.time)

    @classmethod
    def of(cls, url: str) -> Scrape:
        """Scrapes a process."""
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = [line.rpartition(" ") for line in lines if line.startswith("tierlog_follow_")]
        return cls({name: float(value) for name, _, value in found})


@dataclass(frozen=True)
class Stretch:
    """So many minutes in which every scrape said the same, or none was answered, and the alerts that fire then."""

    minutes: int
    scrape: Scrape | None
    firing: frozenset[str] = frozenset()


def check_alerts(history: Sequence[Stretch], folder: Path) -> None:
    """The alerts that fire at the end of each stretch are those that it names, and no others."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    named = {name: name for stretch in history if stretch.scrape for name in stretch.scrape.samples}
    values: dict[str, list[str]] = {name: [] for name in (*named, "up")}
    expected, minute = [], 0
    clocks: dict[float, float] = {}
    for stretch in history:
        scrape = stretch.scrape
        # rules are tried from 1970 on: times in samples move with them
        moved_s = 0.0 if scrape is None else clocks.setdefault(scrape.at_s, scrape.at_s - minute * 60)
        for name in named:
            value = None if scrape is None else scrape.samples.get(name)
            if value is not None and _STAMP in name:
                value -= moved_s
            values[name] += [repr(value) if value is not None else "_"] * stretch.minutes
        values["up"] += ["0" if scrape is None else "1"] * stretch.minutes
        minute += stretch.minutes
        expected.append(
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute - 1}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(stretch.firing)],
            }
        )
    series = [{"series": _placed(name), "values": " ".join(found)} for name, found in values.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    file = folder / "alerts_over_scrapes.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _placed(name: str) -> str:
    """The name with the labels that a scrape adds."""
    metric, _, labels = name.partition("{")
    return f"{metric}{{{_PLACE}, {labels}" if labels else f"{metric}{{{_PLACE}}}"
