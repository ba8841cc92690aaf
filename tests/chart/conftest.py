"""The chart as Helm renders it; every test in this folder needs Helm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.service.chart import Chart
from tests.tools.cache import ToolMissingError
from tests.tools.helm import kubernetes_tools

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.helm)


@pytest.fixture(scope="session")
def chart() -> Chart:
    try:
        return Chart(kubernetes_tools().helm)
    except ToolMissingError as error:
        pytest.skip(f"no Helm: {error}")
