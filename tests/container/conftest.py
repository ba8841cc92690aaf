"""The image, built once for all tests here."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from tests.tools.containers import missing_program
from tests.tools.image import build_image

_HERE = Path(__file__).parent
_BUILD_LIMIT_S = 1500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.container)
            if item.get_closest_marker("timeout") is None:  # the first of them builds the image
                item.add_marker(pytest.mark.timeout(_BUILD_LIMIT_S))


@pytest.fixture(scope="session")
def image() -> str:
    """The name of the image of this checkout."""
    missing = missing_program()
    if missing is not None:
        pytest.skip(f"{missing} is not installed")
    return build_image()


@pytest.fixture
def port() -> int:
    """A free port; containers share the machine's network here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


TOKEN = "tierlog_" + "5" * 64


@pytest.fixture
def access(port: int) -> dict[str, str]:
    """Variables with which the service takes :data:`TOKEN` for everything."""
    entry = f"test:{hashlib.sha256(TOKEN.encode()).hexdigest()}:produce,read,admin:*"
    return {"TIERLOG_ACCESS_TOKENS": entry, "TIERLOG_SERVE_PORT": str(port)}
