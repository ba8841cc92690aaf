"""``query --all`` in formats for programs: written by columns, with the rows that pages have, wherever it is asked."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.processes.shell import TINY, served
from tierlog.service.cli.output import messages_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.exit_codes import DONE, FAILED, INCOMPLETE, NOTHING
from tierlog.service.main import main
from tierlog.service.wire.arrow import answered_batch
from tierlog.service.wire.documents import ndjson_line
from tierlog.tiering.message.arrow_schema import MESSAGE_SCHEMA

_ALL = ["query", "t", "--all", "--order", "oldest"]


def said(capfd: pytest.CaptureFixture[bytes], *argv: str, code: int = DONE) -> bytes:
    ended = main(argv)
    out, err = capfd.readouterr()
    assert ended == code, err
    return out


@pytest.fixture
def store(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Path:
    """500 lines of which the older half is in the archive alone."""
    where = ["--root", str(tmp_path / "store"), "--cold", f"file://{tmp_path}/cold"]
    for begin in (0, 250):
        lines = tmp_path / "lines.txt"
        lines.write_text("".join(f'k{number % 7} =1,"wide ü"\\ {number}\n' for number in range(begin, begin + 250)))
        said(capfdbinary, "load", str(lines), "--topic", "t", "--key", r"k\d", *where, *(TINY if not begin else []))
        if not begin:
            said(capfdbinary, "archive", "--all", "--drop-hot", *where)
    return tmp_path / "store"


def compare(capfd: pytest.CaptureFixture[bytes], *target: str) -> None:
    pages = json.loads(said(capfd, *_ALL, "--format", "json", *target))  # page by page, message by message
    rows = pages["messages"]
    assert len(rows) == 500
    assert said(capfd, *_ALL, "--format", "ndjson", *target).decode() == "".join(map(ndjson_line, rows))
    out = messages_out(OutputStyle("csv"))
    out.write(rows)
    out.end()
    expected = capfd.readouterr().out
    assert said(capfd, *_ALL, "--format", "csv", *target) == expected
    table = pa.Table.from_batches([answered_batch(rows)])
    assert pa.ipc.open_stream(said(capfd, *_ALL, "--format", "arrow", *target)).read_all().equals(table)
    file = pq.ParquetFile(io.BytesIO(said(capfd, *_ALL, "--format", "parquet", *target)))
    assert file.read().cast(MESSAGE_SCHEMA).equals(table)
    assert json.loads((file.metadata.metadata or {})[b"coverage"])["complete"] is True
    one = said(capfd, "query", "t", "--limit", "3", "--format", "parquet", *target)
    assert pq.read_table(io.BytesIO(one)).num_rows == 3
    by_key = said(capfd, *_ALL, "--key", "k3", "--format", "ndjson", *target)
    assert by_key.decode() == "".join(ndjson_line(row) for row in rows if "k3" in row["keys"])
    beside = said(capfd, *_ALL, "--coverage", "--format", "ndjson", *target).splitlines()[-1]
    assert json.loads(beside)["coverage"]["complete"] is True
    assert said(capfd, *_ALL, "--from", "1", "--to", "2", "--format", "ndjson", *target, code=NOTHING) == b""


def test_every_format_has_the_rows_of_pages(store: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    target = ["--root", str(store), "--read-only"]
    compare(capfdbinary, *target)
    said(capfdbinary, *_ALL, "--max-requests", "0", "--format", "csv", *target, code=INCOMPLETE)


def test_every_format_of_a_service_has_the_rows_of_pages(
    store: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with served("--root", str(store)) as url:
        compare(capfdbinary, "--url", url)


_CUT_OFF = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
while True:
    connection, _ = listening.accept()
    connection.recv(65536)
    connection.sendall(bytes.fromhex(sys.argv[1]))
    connection.close()
"""


def asked_of(body: bytes, form: str) -> int:
    """The exit code of a command whose service answers this, and ends."""
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"  # nothing says how long the answer is
    command = [sys.executable, "-c", _CUT_OFF, (head + body).hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            return main([*_ALL, "--format", form, "--url", f"http://127.0.0.1:{service.stdout.readline().strip()}"])
        finally:
            service.kill()


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("ndjson", b'{"message_id":"1"}\n{"message_id":"2"}\n'),
        ("ndjson", b'{"message_id":"1"}\n{"mess'),
        ("csv", b"\xff\xff\xff\xff\x10"),
        ("arrow", b""),
    ],
)
def test_a_download_that_breaks_off_is_an_error_and_never_a_short_answer(
    form: str, body: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert asked_of(body, form) == FAILED
    assert b"broke off" in capfdbinary.readouterr().err


def test_a_problem_in_the_last_line_is_the_error_of_the_command(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    problem = {"type": "about:blank", "title": "x", "status": 503, "detail": "the archive is away"}
    body = b'{"message_id":"1"}\n' + json.dumps({"problem": problem}).encode() + b"\n"
    assert asked_of(body, "ndjson") == FAILED
    assert b"the archive is away" in capfdbinary.readouterr().err
