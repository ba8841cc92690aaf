"""What is made in the chart's folder is up to date, and the chart is of this version; no Helm is needed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from docs.tools.chart_files import CHART, made_files, values_of
from tierlog.service.config.settings import Settings

_PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", made_files(), ids=lambda path: path.name)
def test_a_made_file_is_as_its_source_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == made_files()[path], "run `python -m docs.tools.chart_files`"


def test_the_chart_is_of_the_projects_version() -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((_PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert described["appVersion"] == project["version"]


def test_the_schema_has_every_value_and_the_page_describes_it() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(text), schema)
    described = {value.name for value in values_of(text)}
    assert described == set(_leaves(yaml.safe_load(text), described))
    for name in described:
        node = schema
        for part in name.split("."):
            node = node["properties"][part]


def test_values_of_settings_are_checked_like_settings() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    defaults = Settings().model_dump(mode="json")
    own = {**schema, **schema["$defs"]["settings"]}
    allowed = {
        group: {name: value for name, value in fields.items() if name in own["properties"][group]["properties"]}
        for group, fields in defaults.items()
        if isinstance(fields, dict)
    }
    jsonschema.validate(allowed, schema["$defs"]["settings"])
    for text in (
        '{"hot": {"retentoin_ms": 1}}',
        '{"hot": {"retention_ms": -1}}',
        '{"serve": {"port": 1}}',
        '{"hat": {}}',
    ):
        wrong = json.loads(text)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema["$defs"]["settings"])


def _leaves(node: object, stop: set[str], name: str = "") -> list[str]:
    if isinstance(node, dict) and name not in stop:
        return [leaf for key, value in node.items() for leaf in _leaves(value, stop, f"{name}.{key}".strip("."))]
    return [name]
