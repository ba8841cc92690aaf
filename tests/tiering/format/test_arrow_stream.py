"""Arrow streams from strangers: bounded before they are decoded, and never more than an error."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pytest

from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.format.arrow_stream import read_stream
from tierlog.tiering.message.arrow_input import check_produce_schema

SCHEMA = pa.schema([("body", pa.binary()), ("keys", pa.list_(pa.string())), ("tag", pa.string())])


def stream_of(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch_of(count: int, body: bytes = b"body") -> pa.RecordBatch:
    columns = [[body] * count, [["a", "b"]] * count, ["t", None] * (count // 2) + ["t"] * (count % 2)]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def read(stream: bytes, max_bytes: int = 1 << 20, max_rows: int = 10_000) -> pa.Table:
    return read_stream(stream, check_produce_schema, max_bytes=max_bytes, max_rows=max_rows)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_stream_is_read_whole(compression: str | None) -> None:
    batches = [batch_of(3), batch_of(0), batch_of(1000)]
    assert read(stream_of(*batches, compression=compression)).equals(pa.Table.from_batches(batches))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_bomb_is_refused_before_it_is_decoded(compression: str) -> None:
    bomb = stream_of(batch_of(4, bytes(8 << 20)), compression=compression)
    assert len(bomb) < 1 << 18
    before = pa.total_allocated_bytes()
    with pytest.raises(MessageTooLargeError, match="over the limit of 1048576 bytes when it is decoded"):
        read(bomb)
    assert pa.total_allocated_bytes() == before
    assert read(bomb, max_bytes=40 << 20).num_rows == 4


def test_batches_count_together() -> None:
    stream = stream_of(*[batch_of(100)] * 5)
    with pytest.raises(MessageTooLargeError, match="more than 450 messages"):
        read(stream, max_rows=450)
    with pytest.raises(MessageTooLargeError):
        read(stream, max_bytes=3000)


def test_the_schema_is_refused_before_any_batch_is_looked_at() -> None:
    schema = pa.schema([("body", pa.dictionary(pa.int32(), pa.string()))])
    stream = stream_of(pa.record_batch([pa.array(["x"]).dictionary_encode()], schema=schema))
    with pytest.raises(InvalidRequestError, match="column 'body' is dictionary"):
        read(stream)


def test_invalid_utf_8_is_refused() -> None:
    tags = pa.array([b"\xff\xfe"], pa.binary())
    wrong = pa.Array.from_buffers(pa.string(), 1, tags.buffers())
    batch = pa.record_batch([pa.array([b"x"]), wrong], names=["body", "tag"])
    with pytest.raises(InvalidRequestError, match=r"not an Arrow stream: .*UTF8"):
        read(stream_of(batch))


@pytest.mark.parametrize("stream", [b"", b"\0", b"ARROW1\0\0", b"\xff\xff\xff\xff" + bytes(60), b"{}" * 100])
def test_what_is_no_stream_is_one_error(stream: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="not an Arrow stream"):
        read(stream)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_damage_anywhere_is_an_error_or_other_rows_but_never_more(compression: str | None, seed: int) -> None:
    chance = random.Random(seed)
    stream = stream_of(batch_of(20), batch_of(7), compression=compression)
    for _ in range(2000):
        damaged = bytearray(stream)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 255, 128, chance.randrange(256)])
        cut = chance.choice([len(damaged), chance.randrange(len(damaged))])
        try:
            table = read(bytes(damaged[:cut]), max_bytes=1 << 16, max_rows=100)
        except InvalidRequestError:
            continue
        assert table.num_rows <= 100
        assert table.nbytes <= 1 << 17
