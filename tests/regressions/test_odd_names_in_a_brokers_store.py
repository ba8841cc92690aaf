"""Names and numbers that no broker writes: reading a directory that has them ended in a traceback, or never."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.rocketmq.golden import unpack
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.main import main


def no_utf8(root: Path) -> None:
    folder = os.fsencode(root / "consumequeue") + b"/\xff\xfe/0"
    os.makedirs(folder)
    Path(os.fsdecode(folder), "0" * 20).write_bytes(bytes(20))


def beyond_64_bits(root: Path) -> None:
    (root / "commitlog" / ("9" * 20)).write_bytes(b"\1" * 4_096)


def many_queues(root: Path) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Odd":{"readQueueNums":999999999}}}')


@pytest.mark.parametrize(
    ("make_odd", "finding"),
    [
        (no_utf8, r"'\udcff\udcfe' is no topic's name"),
        (beyond_64_bits, ""),
        pytest.param(many_queues, "", marks=pytest.mark.slow),
    ],
)
def test_a_brokers_store_with_an_odd_name_is_read_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make_odd: Callable[[Path], None], finding: str
) -> None:
    root = str(unpack("clean", tmp_path / "store"))
    make_odd(Path(root))
    assert main(["check", "--root", root, "--read-only"]) == (NOTHING if finding else DONE)
    assert finding in capsys.readouterr().out
    assert main(["topics", "--root", root, "--read-only", "--format", "ndjson"]) == DONE
    assert '"topic":"TopicTest"' in capsys.readouterr().out
