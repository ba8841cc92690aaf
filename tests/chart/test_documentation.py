"""Values that the documentation shows are taken by the chart, and what its commands name is there."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.docs.pages import Block, all_pages
from tests.support.service.chart import CHART, Chart, Json, nested

_PAGE = next(page for page in all_pages() if page.name == "docs/kubernetes.md")
_BUCKET: Json = {"cold": {"url": "s3://logs/prod", "ambient": True}}


def _of(language: str) -> list[Block]:
    return [block for block in _PAGE.blocks if block.language == language]


@pytest.mark.parametrize("block", _of("yaml"), ids=str)
def test_values_of_the_page_are_rendered(chart: Chart, block: Block) -> None:
    assert chart.render(yaml.safe_load(block.text)).documents


def test_what_commands_set_is_rendered(chart: Chart) -> None:
    lines = [line for block in _of("sh") for line in block.text.split("\n") if line.startswith("helm ")]
    given = [found for line in lines for found in re.findall(r"--set (\S+?)=(\S+)", line)]
    assert len(given) == 3
    for name, value in given:
        assert chart.render({**_BUCKET, **nested(name, yaml.safe_load(value) if value != "0.2.0" else value)}).documents


def test_what_commands_name_is_what_the_chart_makes(chart: Chart) -> None:
    rendered = chart.render(release="logs")
    stores = rendered.one("StatefulSet")["metadata"]["name"]
    claim = rendered.one("StatefulSet")["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
    assert f"delete pvc {claim}-{stores}-1 " in _PAGE.text
    assert f"delete pod {stores}-1\n" in _PAGE.text


def test_notes_name_what_there_is(chart: Chart) -> None:
    """Helm shows the notes of a rendering only when it installs, which it does here without a cluster."""
    done = chart.run("install", "logs", str(CHART), "--dry-run=client", "-n", "logs", "-f", "-", values={"stores": {}})
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:\n")[2]
    assert "http://logs-tierlog.logs.svc:8080" in notes
    assert "helm test logs -n logs" in notes
    assert "no archive" in notes
    assert "{{" not in re.sub(r"'\{\{.*?\}\}'", "", notes)
