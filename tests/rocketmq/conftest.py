"""One Java process with Apache RocketMQ's classes for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rocketmq.java_rocketmq import JavaRocketMQ, java_rocketmq
from tests.tools.cache import ToolMissingError
from tests.tools.java_programs import build_java_verifier


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaRocketMQ]:
    try:
        class_path = build_java_verifier()
    except ToolMissingError as error:
        pytest.skip(f"Apache RocketMQ cannot be asked: {error}")
    with java_rocketmq(class_path, tmp_path_factory.mktemp("java")) as process:
        yield process
