"""The JSON that a broker writes: integers as keys without quotes, and nothing else that is no JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog.tiering.base.errors import CorruptionError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.rocketmq.broker_files import read_consumer_offsets, read_topics
from tierlog.tiering.rocketmq.fastjson import parse_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:12,1:7}", {"0": 12, "1": 7}),
        ('{"0":12,1:7}', {"0": 12, "1": 7}),
        ("{ 0 : 12 ,\n\t-1\t:\t7\n}", {"0": 12, "-1": 7}),
        ('{"a@b":{0:1,10:{2:[3,{4:5}]}}}', {"a@b": {"0": 1, "10": {"2": [3, {"4": 5}]}}}),
        ('{"{0:1,2:3}":"{4:5, 6:7}"}', {"{0:1,2:3}": "{4:5, 6:7}"}),
        (r'{"a\"{1:":"\\",2:3}', {'a"{1:': "\\", "2": 3}),
        ("[1,2,-3]", [1, 2, -3]),
        ('{"a":1,"b":true,"c":null,"d":1.5}', {"a": 1, "b": True, "c": None, "d": 1.5}),
        ("{}", {}),
        ('"中文"', "中文"),
    ],
)
def test_read(text: str, value: object) -> None:
    assert parse_json(text.encode(), path="x") == value


@pytest.mark.parametrize(
    "text",
    [
        "", "{a:1}", "{'a':1}", "{1.5:2}", "{01:2}", "{1L:2}", "{0:1,}", "[1,]", "{0:NaN}", "{0:Infinity}", "{0:1",
        '{"a:1}', "{0:1}}", "{0 1}", "/*x*/{}", "[0:1]", "[" * 100_000, "{0:" * 100_000, '"\ud800',
    ],
)  # fmt: skip
def test_refuse(text: str) -> None:
    with pytest.raises(CorruptionError, match="config"):
        parse_json(text.encode("utf-8", "surrogatepass"), path="config")


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(CorruptionError):
        parse_json(b'{"\xff":1}', path="x")


TOPICS = """{
\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
\t"topicConfigTable":{
\t\t"TopicTest":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":8},
\t\t"%RETRY%g":{"perm":6,"readQueueNums":1,"topicName":"%RETRY%g","writeQueueNums":1}
\t}
}"""
OFFSETS = '{"dataVersion":{"counter":9},"offsetTable":{"TopicTest@g":{0:12,1:7,2:0},"a@b@c":{0:1}}}'


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    (tmp_path / "config").mkdir()
    return StorePaths(tmp_path)


def test_topics_and_consumer_offsets(paths: StorePaths) -> None:
    (paths.config / "topics.json").write_text(TOPICS)
    (paths.config / "consumerOffset.json").write_text(OFFSETS)
    assert read_topics(LocalFileSystem(), paths) == {"TopicTest": 8, "%RETRY%g": 1}
    assert read_consumer_offsets(LocalFileSystem(), paths) == {
        ("TopicTest", "g"): {0: 12, 1: 7, 2: 0},
        ("a@b", "c"): {0: 1},
    }


@pytest.mark.parametrize("text", [None, "", " \n", "{0:", "[]", '{"offsetTable":[]}'])
def test_the_copy_stands_in_for_a_file_that_is_missing_or_broken(paths: StorePaths, text: str | None) -> None:
    if text is not None:
        (paths.config / "consumerOffset.json").write_text(text)
    (paths.config / "consumerOffset.json.bak").write_text(OFFSETS)
    assert read_consumer_offsets(LocalFileSystem(), paths)["TopicTest", "g"][0] == 12


def test_broken_with_its_copy_is_an_error_and_missing_is_none(paths: StorePaths) -> None:
    assert read_topics(LocalFileSystem(), paths) == {}
    for name in ("topics.json", "topics.json.bak"):
        (paths.config / name).write_text("{")
    with pytest.raises(CorruptionError, match=r"topics\.json"):
        read_topics(LocalFileSystem(), paths)
