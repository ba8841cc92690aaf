"""The forms in which many messages are sent, page by page: NDJSON, Arrow stream, Parquet.

What stands beside the messages (`next_cursor`, `coverage`) is known at the end only: it is the last line of NDJSON, the
custom metadata of an Arrow stream's last record batch, which has no rows, and key-value metadata in Parquet's footer.
What breaks off in the middle has no such end.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

import pyarrow as pa

from tierlog.service.wire.arrow import messages_stream, taken
from tierlog.service.wire.documents import ARROW_STREAM, NDJSON, PARQUET, Json, message_json, ndjson_line
from tierlog.service.wire.message_text import ndjson
from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA, MESSAGE_SCHEMA, message_batch
from tierlog.tiering.message.stored_message import StoredMessage

#: A Parquet row group: of fewer rows, what is said of each group outweighs them; of more, they fill the memory.
_GROUP_ROWS, _GROUP_BYTES = 50_000, 8 << 20
#: Columns of which few values are different: of others a dictionary is made for nothing, and takes more room.
_REPEATED = ["store_id", "topic", "queue_id", "tag", "properties.key_value.key", "tier"]
#: Characters of text that are made at a time, or one message.
_PIECE_LENGTH = 256 << 10


class Form(Protocol):
    """Writes one answer; bytes come out in their order, and none of them twice."""

    def page(self, rows: pa.RecordBatch) -> bytes:
        """Returns what there is to send after some more messages, in the columns of ``FOUND_SCHEMA``; may be empty."""
        ...

    def end(self, beside: Json) -> bytes:
        """Returns the rest, with what stands beside the messages."""
        ...

    def failed(self, problem: Json) -> bytes | None:
        """Returns how the form says that it breaks off; None if it can only break off."""
        ...


def form_of(media_type: str) -> Form:
    """Makes the form of a media type; KeyError for others."""
    kinds: dict[str, Callable[[], Form]] = {NDJSON: _NdjsonForm, ARROW_STREAM: _ArrowForm, PARQUET: _ParquetForm}
    return kinds[media_type]()


def whole(messages: Sequence[StoredMessage], beside: Json, media_type: str) -> bytes:
    """Encodes a page as Arrow or Parquet; Arrow has what stands beside the messages in its schema's metadata."""
    if media_type == ARROW_STREAM:
        return messages_stream(messages, beside)
    form = form_of(media_type)
    return form.page(message_batch(messages, FOUND_SCHEMA)) + form.end(beside)


def lines(messages: Sequence[StoredMessage], beside: Json) -> Iterator[bytes]:
    """Yields a page as NDJSON, in pieces: a message as text may be six times what it is in memory."""
    return _pieces(chain((ndjson_line(message_json(message)) for message in messages), (ndjson_line(beside),)))


def document(before: Json, messages: Sequence[StoredMessage], after: Json) -> Iterator[bytes]:
    """Yields a page as a JSON document, in pieces; ``messages`` stand between the members of the others."""
    return shown_document(before, map(message_json, messages), after)


def shown_document(before: Json, messages: Iterable[Json], after: Json) -> Iterator[bytes]:
    """Yields a page of messages that are shown already, or when they are taken."""
    opening, closing = _dumped(before)[:-1], _dumped(after)[1:]
    texts = (("," if number else "") + _dumped(message) for number, message in enumerate(messages))
    comma = "," if before else ""
    return _pieces(chain((f'{opening}{comma}"messages":[',), texts, (f"]{',' if after else ''}{closing}",)))


def _dumped(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _pieces(texts: Iterator[str]) -> Iterator[bytes]:
    found: list[str] = []
    length = 0
    for text in texts:
        found.append(text)
        length += len(text)
        if length >= _PIECE_LENGTH:
            yield "".join(found).encode()
            found, length = [], 0
    if found:
        yield "".join(found).encode()


class _NdjsonForm:
    """NDJSON, a message a line."""

    def page(self, rows: pa.RecordBatch) -> bytes:
        return ndjson(rows)

    def end(self, beside: Json) -> bytes:
        return ndjson_line(beside).encode()

    def failed(self, problem: Json) -> bytes | None:
        return ndjson_line({"problem": problem}).encode()


class _ArrowForm:
    """An Arrow stream, a record batch for each page."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, MESSAGE_SCHEMA)

    def page(self, rows: pa.RecordBatch) -> bytes:
        if rows.num_rows:
            self._writer.write_batch(rows.select(MESSAGE_SCHEMA.names))
        return taken(self._sink)

    def end(self, beside: Json) -> bytes:
        metadata = {name: json.dumps(value) for name, value in beside.items()}
        self._writer.write_batch(message_batch(()), custom_metadata=metadata)
        self._writer.close()
        return taken(self._sink)

    def failed(self, problem: Json) -> bytes | None:
        return None


class _ParquetForm:
    """Parquet, row groups of some pages each; zstd inside."""

    def __init__(self) -> None:
        import pyarrow.parquet as pq  # 9 MB of memory, which a service that is never asked for Parquet does not take

        self._sink = _Outlet()
        self._writer = pq.ParquetWriter(self._sink, MESSAGE_SCHEMA, compression="zstd", use_dictionary=_REPEATED)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def page(self, rows: pa.RecordBatch) -> bytes:
        if rows.num_rows:
            batch = rows.select(MESSAGE_SCHEMA.names)
            self._waiting.append(batch)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
                self._write_group()
        return self._sink.taken()

    def end(self, beside: Json) -> bytes:
        if self._waiting:
            self._write_group()
        self._writer.add_key_value_metadata({name: json.dumps(value) for name, value in beside.items()})
        self._writer.close()
        return self._sink.taken()

    def failed(self, problem: Json) -> bytes | None:
        return None

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=max(1, self._rows))
        self._waiting, self._rows, self._bytes = [], 0, 0


class _Outlet(io.RawIOBase):
    """A file from which what was written is taken away, while positions count on."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(memoryview(data))  # type: ignore[arg-type]  # any buffer
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def taken(self) -> bytes:
        found = b"".join(self._pieces)
        self._pieces.clear()
        return found
