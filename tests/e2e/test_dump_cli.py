"""``tierlog dump`` as people run it: formats, exit codes, help, and the file for RocketMQ."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.objects.s3_server import S3Server
from tests.support.stores.dumps import dumped, kind_of, samples
from tierlog.index.format.layout import ROCKETMQ
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.service.dump.kinds import KINDS
from tierlog.service.exit_codes import DONE, NOTHING, WRONG_USE
from tierlog.service.main import build_parser, main
from tierlog.tiering.base.fs import LocalFileSystem

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return samples(tmp_path_factory.mktemp("samples"))


def test_every_kind_in_every_format(found: dict[str, Path], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for name, path in found.items():
        wanted = dumped(path)
        assert main(["dump", str(path), "--format", "json"]) == DONE, name
        document = json.loads(capsysbinary.readouterr().out)
        assert document["head"]["kind"] == kind_of(name)
        assert document["findings"] == []
        columns = list(wanted.dump.columns)
        if columns:
            assert document[wanted.dump.name] == wanted.rows
        count = len(wanted.rows) if columns else 1
        assert main(["dump", str(path), "--format", "ndjson"]) == DONE
        lines = [json.loads(line) for line in capsysbinary.readouterr().out.decode().splitlines()]
        assert len(lines) == count
        assert main(["dump", str(path), "--format", "csv"]) == DONE
        csv.field_size_limit(1 << 30)
        rows = list(csv.reader(io.StringIO(capsysbinary.readouterr().out.decode(), newline="")))
        assert len(rows) == 1 + count
        assert not columns or rows[0] == columns
        assert main(["dump", str(path), "--format", "arrow"]) == DONE
        table = pa.ipc.open_stream(capsysbinary.readouterr().out).read_all()
        assert len(table) == count
        assert main(["dump", str(path), "--format", "table", "--limit", "3"]) == DONE
        text = capsysbinary.readouterr().out.decode()
        assert kind_of(name) in text.splitlines()[0]
        assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_findings_are_lines_on_standard_error_and_exit_code_1(
    found: dict[str, Path], tmp_path: Path, capsys: Captured
) -> None:
    cut = tmp_path / "cut.idx"
    cut.write_bytes(found["index-object"].read_bytes()[:-1])
    assert main(["dump", str(cut), "--format", "ndjson", "--limit", "2"]) == NOTHING
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert [line.partition(": ")[0] for line in err.splitlines()] == ["tierlog"]
    assert str(cut) in err


@pytest.mark.parametrize("content", [b"", b"neither text nor a file of ours"])
def test_something_unknown_is_exit_code_2_with_what_was_looked_for(
    tmp_path: Path, capsys: Captured, content: bytes
) -> None:
    (tmp_path / "thing").write_bytes(content)
    assert main(["dump", str(tmp_path / "thing")]) == WRONG_USE
    err = capsys.readouterr().err
    assert all(kind in err for kind in KINDS)
    assert main(["dump", str(tmp_path / "thing"), "--as", "checkpoint"]) == NOTHING


@pytest.mark.parametrize(
    "argv",
    [
        ["/"],
        ["/nothing/there"],
        ["s3://bucket"],
        ["ftp://host/x"],
        ["--part", "frames"],
        ["--records", "--part", "map"],
        ["--as", "index-classic", "--slots", "3"],
    ],
)
def test_wrong_use_is_exit_code_2(found: dict[str, Path], capsys: Captured, argv: list[str]) -> None:
    target = [] if "/" in argv[0] else [str(found["checkpoint"])]
    assert main(["dump", *target, *argv]) == WRONG_USE
    assert capsys.readouterr().err.startswith("tierlog: ")


@pytest.mark.parametrize("number", ["x", "-1", "1_0", "\u0663", "9" * 5_000])
def test_what_is_no_number_is_named(found: dict[str, Path], capsys: Captured, number: str) -> None:
    with pytest.raises(SystemExit):
        main(["dump", str(found["checkpoint"]), f"--from={number}"])
    assert "is no number from 0 to 2^62" in capsys.readouterr().err


def test_rows_can_be_chosen(found: dict[str, Path], capsys: Captured) -> None:
    path = str(found["sorted-segment"])
    for argv, column in (
        (["--records"], "body_crc"), (["--part", "frames"], "checksum"), (["--part", "map"], "cold_offset"),
        ([], "first_queue_offset"),
    ):  # fmt: skip
        assert main(["dump", path, *argv, "--format", "ndjson", "--limit", "1"]) == DONE
        assert column in json.loads(capsys.readouterr().out)


def test_index_object_is_written_for_rocketmq(found: dict[str, Path], tmp_path: Path, capsys: Captured) -> None:
    argv = ["dump", str(found["index-object"]), "--rocketmq", str(tmp_path / "out"), "--format", "json"]
    assert main(argv) == DONE
    head = json.loads(capsys.readouterr().out)["head"]
    file = CompactedIndexFile.open_bare(LocalFileSystem(), tmp_path / "out", ROCKETMQ, head["slots"])
    assert file.item_count == head["items"] == len(dumped(found["index-object"]).rows)
    before = (tmp_path / "out").read_bytes()
    assert main(argv) == WRONG_USE
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "out").read_bytes() == before


def test_help_says_how_each_kind_is_recognised(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["dump", "--help"])
    out = capsys.readouterr().out
    assert all(kind in out and how in out for kind, how in KINDS.items())


def test_objects_in_s3_are_dumped_and_exported(
    found: dict[str, Path], tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", s3_server.endpoint_url)
    bucket = s3_server.new_bucket()
    for kind in ("sorted-segment", "index-object", "manifest-head", "queue-rows"):
        path = found[kind]
        key = f"prefix/{path.name}"
        s3_server.client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
        assert main(["dump", f"s3://{bucket}/{key}", "--format", "json"]) == DONE
        document = json.loads(capsys.readouterr().out)
        assert document[dumped(path).dump.name] == dumped(path).rows
    key = f"prefix/{found['index-object'].name}"
    assert main(["dump", f"s3://{bucket}/{key}", "--rocketmq", str(tmp_path / "there"), "--format", "json"]) == DONE
    assert main(["dump", str(found["index-object"]), "--rocketmq", str(tmp_path / "here"), "--format", "json"]) == DONE
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    capsys.readouterr()
    assert main(["dump", f"s3://{bucket}/prefix/nothing"]) == WRONG_USE
    assert "no such object" in capsys.readouterr().err
