"""Files are read as the text they hold, compressed or not, and what is no text is named and refused."""

from __future__ import annotations

import gzip
import io
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import zstandard

from tierlog.service.cli.line_sources import PIECE_BYTES, STDIN, blocks_of, check_files, whole_lines
from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError

TEXT = b"".join(b"%d a line of a log\r\n" % number for number in range(120_000))
LINES = TEXT.replace(b"\r\n", b"\n")
HALF = len(TEXT) // 2
GZIP = partial(gzip.compress, mtime=0)
ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress


def text_of(file: Path, *, is_text: bool = False) -> bytes:
    return b"".join(blocks_of(str(file), max_line_bytes=100, is_text=is_text))


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        GZIP(TEXT),
        GZIP(TEXT[:HALF]) + GZIP(TEXT[HALF:]),
        GZIP(TEXT) + bytes(512),
        ZSTD(TEXT),
        ZSTD(TEXT[:HALF]) + ZSTD(TEXT[HALF:]),
        b"\x50\x2a\x4d\x18\x04\0\0\0skip" + ZSTD(TEXT),
    ],
    ids=["plain", "gzip", "gzip members", "padded gzip", "zstd", "zstd frames", "zstd behind a skipped frame"],
)
def test_compressed_text_is_read_as_text(tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log"
    file.write_bytes(data)
    assert text_of(file) == LINES
    assert check_files([str(file)]) == len(data)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert b"".join(blocks_of(STDIN, max_line_bytes=100)) == LINES


@pytest.mark.parametrize("compress", [GZIP, ZSTD], ids=["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "cut at once", "flipped", "junk behind"])
def test_damaged_or_truncated_data_is_named_with_its_file(
    tmp_path: Path, compress: Callable[[bytes], bytes], damage: str
) -> None:
    data, file = bytearray(compress(TEXT)), tmp_path / "bad.log"
    if damage == "cut":
        del data[-20:]
    elif damage == "cut at once":
        del data[200:]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data += b"junk"
    file.write_bytes(data)
    with pytest.raises(InvalidRequestError, match=re.escape(str(file)) + ": the (gzip|zstd) data is damaged or cut"):
        text_of(file)


@pytest.mark.parametrize("compress", [GZIP, ZSTD], ids=["gzip", "zstd"])
def test_a_file_that_grows_a_thousand_times_is_read_a_piece_at_a_time(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "large.log"
    file.write_bytes(compress((b"x" * 99 + b"\n") * 600_000))
    tracemalloc.start()
    try:
        assert sum(len(block) for block in blocks_of(str(file), max_line_bytes=100)) == 60_000_000
        assert tracemalloc.get_traced_memory()[1] < 8 * PIECE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "said", "hint"),
    [
        (b"\xfd7zXZ\0" + b"x" * 50, "xz data", "xz -dc"),
        (b"BZh91AY&SYabc", "bzip2 data", "bzip2 -dc"),
        (b"PK\x03\x04abc", "a zip archive", "unzip -p"),
        ("häuser\n".encode("utf-16"), "UTF-16 text", "iconv"),
        (b"PAR1\x15\x04", "a Parquet file", "pipeline"),
        (b"name".ljust(257, b"\0") + b"ustar\0", "a tar archive", "tar -xOf"),
        (b"fine\nnot \0 fine\n", "byte 9 is NUL", "--text"),
        (GZIP(GZIP(b"a\n")), "gzip data of gzip data", "decompress"),
        (ZSTD(b"fine\n\0"), "zstd data of no text", "--text"),
    ],
    ids=["xz", "bzip2", "zip", "utf-16", "parquet", "tar", "nul", "gzip in gzip", "nul in zstd"],
)
def test_what_is_no_text_is_refused_by_what_it_is(tmp_path: Path, data: bytes, said: str, hint: str) -> None:
    file = tmp_path / "app.log"
    file.write_bytes(data)
    for look in (lambda: check_files([str(file)]), lambda: text_of(file)):
        with pytest.raises(InvalidRequestError, match=re.escape(said)) as refused:
            look()
        assert str(file) in refused.value.message
        assert hint in str(refused.value.hint)


@pytest.mark.parametrize("data", [b"BZh is no magic\n", b"PAR1 is a word\n", b"\xff\xe4 latin\n", b"\x1b[31mred\n"])
def test_text_that_begins_like_another_kind_is_text(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    assert text_of(tmp_path / "log") == data


def test_nul_bytes_are_taken_where_text_was_promised_and_far_behind_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a\0b\n")
    assert text_of(tmp_path / "log", is_text=True) == b"a\0b\n"
    assert check_files([str(tmp_path / "log")], is_text=True) == 4
    (tmp_path / "hole").write_bytes(b"x\n" * (32 << 10) + bytes(50) + b"\n")
    assert text_of(tmp_path / "hole").endswith(bytes(50) + b"\n")


def test_a_pipe_is_not_read_by_the_look_at_all_files(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom tierlog.service.cli.line_sources import blocks_of, check_files\n"
        "assert check_files(['/dev/stdin']) is None\n"
        "sys.stdout.buffer.write(b''.join(blocks_of('/dev/stdin', max_line_bytes=100)))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=GZIP(TEXT), capture_output=True, check=True)
    assert done.stdout == LINES


def test_lines_are_the_same_however_they_come_in_pieces(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        text = b"".join(chance.choice([b"\r", b"\n", b"\r\n", b"a", b"bc"]) for _ in range(chance.randrange(40)))
        pieces, at = [], 0
        while at < len(text):
            end = at + chance.randrange(1, 8)
            pieces.append(text[at:end])
            at = end
        ended = text if text.endswith(b"\n") or not text else text + b"\n"
        assert b"".join(whole_lines("t", iter(pieces), 100)) == ended.replace(b"\r\n", b"\n")


def test_lines_before_one_that_is_too_long_are_given_out() -> None:
    blocks = whole_lines("t", iter([b"1\n2\n3", b"3" * 20]), 10)
    assert next(blocks) == b"1\n2\n"
    with pytest.raises(MessageTooLargeError, match="t, line 3: "):
        next(blocks)
