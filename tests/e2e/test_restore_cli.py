"""``tierlog restore``: segments come back out of the archive byte for byte, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, FAILED, NOTHING, WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.message.batch import Message

SEGMENT = 65_536
COUNT = 700


@pytest.fixture
def segments(tmp_path: Path) -> dict[int, bytes]:
    """The bytes of a store's rolled segments before they were archived and removed."""
    engine = Store.open(
        tmp_path / "store", settings=tiny_settings(), cold_url=f"file://{tmp_path}/cold", store_id="one"
    )
    for number in range(COUNT):
        engine.append([Message(("orders", "noise")[number % 2], b"%d" % number * 60, [f"k{number}"])])
    engine._hot.roll()
    found = {each.base_offset: bytes(each.data) for each in engine._hot.log.segments()[:-1]}
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    assert len(found) > 2
    return found


def restored(capsys: pytest.CaptureFixture[str], *argv: str, code: int = DONE) -> tuple[dict[str, object], str]:
    assert main(["restore", *argv]) == code
    out, error = capsys.readouterr()
    return json.loads(out) if out else {}, error


@pytest.mark.parametrize("where", ["root", "cold", "both"])
def test_every_segment_comes_back_byte_for_byte(
    tmp_path: Path, segments: dict[int, bytes], capsys: pytest.CaptureFixture[str], where: str
) -> None:
    target = ["--root", str(tmp_path / "store")] if where != "cold" else []
    target += ["--cold", f"file://{tmp_path}/cold"] if where != "root" else []
    for base, data in segments.items():
        out = tmp_path / f"{where}-{base}"
        said, error = restored(capsys, "--segment", str(base + 77), "--out", str(out), "--store", "one", *target)
        assert out.read_bytes() == data
        assert (said["segment"], said["fillers"], said["size_bytes"], error) == (base, 0, SEGMENT, "")
    assert {path.name for path in tmp_path.iterdir()} == {
        "store", "cold", *(f"{where}-{base}" for base in segments)
    }, "nothing is left beside them"  # fmt: skip


def test_a_file_that_is_there_is_replaced_only_if_told(
    tmp_path: Path, segments: dict[int, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"mine")
    argv = ["--segment", "0", "--out", str(out), "--cold", f"file://{tmp_path}/cold"]
    assert "there already" in restored(capsys, *argv, code=WRONG_USE)[1]
    assert out.read_bytes() == b"mine"
    restored(capsys, *argv, "--overwrite")
    assert out.read_bytes() == segments[0]


def test_a_damaged_object_gives_no_file(
    tmp_path: Path, segments: dict[int, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (tmp_path / "cold" / "one" / "log").glob(f"{SEGMENT:020d}-*")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    out = tmp_path / "out"
    argv = ["--segment", str(SEGMENT), "--out", str(out), "--cold", f"file://{tmp_path}/cold"]
    assert path.name in restored(capsys, *argv, code=FAILED)[1]
    assert {each.name for each in tmp_path.iterdir()} == {"store", "cold"}


def test_what_is_not_there(tmp_path: Path, segments: dict[int, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    cold, out = ["--cold", f"file://{tmp_path}/cold"], ["--out", str(tmp_path / "out")]
    restored(capsys, "--segment", str(1 << 50), *out, *cold, code=NOTHING)
    restored(capsys, "--segment", "0", *out, *cold, "--store", "two", code=NOTHING)
    restored(capsys, "--segment", "0", *out, code=WRONG_USE)
    restored(capsys, "--segment", "0", *out, "--root", str(tmp_path / "nowhere"), code=WRONG_USE)
    restored(capsys, "--segment", "0", "--out", str(tmp_path / "no" / "out"), *cold, code=WRONG_USE)


def test_fillers_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Store.open(tmp_path / "store", settings=tiny_settings(), cold_url=f"file://{tmp_path}/cold")
    for number in range(50):
        engine.append([Message(("orders", "noise")[number % 2], b"secret" * 9)])
    topics = engine._hot.topics
    topics.set_options(topics.get("noise"), archive=False, cold_retention_ms=None, hold=False)
    engine.archive(everything=True, drop_hot=True)
    engine.close()
    out = tmp_path / "out"
    said, error = restored(capsys, "--segment", "0", "--out", str(out), "--root", str(tmp_path / "store"))
    assert (said["records"], said["fillers"]) == (50, 25)
    assert "25 records were erased or are not archived" in error
    assert out.read_bytes().count(b"secret" * 9) == 25
