"""How fast is a whole topic a Parquet file, an Arrow stream or NDJSON, out of both tiers?

A topic holds ``--messages`` of about 120 bytes of text with a key, a tag and every other one a property, appended 500
at a time to 4 queues; the older half is in an archive on the local disk alone, and everything is in the page cache.
tierlog follows a query over all of them to its end, as the service and ``query --all`` do: index, log and archive are
read in pages of 4 MiB in the order of their times, every checksum is compared, and what a form makes of the pages is
thrown away. DuckDB and pyarrow read the same rows, in their order already, from a Parquet file, and write them to
another; all compress with zstd. The figures are of processor time, of all threads: rows a second of one processor.

``python benchmarks/download.py [--messages 1000000] [--runs 5] [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Report, Row, drained, in_turns
from tierlog.index.search.query import Answer, Query
from tierlog.service.api.answer_forms import form_of
from tierlog.service.engine.store import Store
from tierlog.service.wire.documents import ARROW_STREAM, NDJSON, PARQUET
from tierlog.service.wire.paged_query import PagedQuery
from tierlog.tiering.base.types import Durability, Order
from tierlog.tiering.message.arrow_schema import MESSAGE_SCHEMA
from tierlog.tiering.message.batch import Message

TOPIC = "shop"
QUEUES = 4
_BATCH = 500
_PAGE_BYTES = 4 << 20
_GROUP_ROWS = 50_000
_WORDS = [
    "order",
    "cart",
    "item",
    "stock",
    "payment",
    "mail",
    "warehouse",
    "created",
    "shipped",
    "received",
    "sent",
    "cancelled",
]
_HELD_BY = (
    "of about 1.8 us a row 0.55 are the writer of Parquet. The rest is reading: decompressing, taking records apart, "
    "putting rows in order, and searching where in each queue a page begins, which take about a quarter each."
)


def fill(engine: Store, count: int) -> None:
    """Append the messages; the older half goes to the archive alone."""
    chance = random.Random(1)

    def message(number: int) -> Message:
        words, order = " ".join(chance.choices(_WORDS, k=9)), f"id={chance.getrandbits(40):x}"
        body = f"2026-03-01 07:{number % 60:02d}:06,406 INFO [http-{number % 7}] shop: {words} {order}"
        return Message(
            TOPIC, body.encode(), [f"ord-{chance.randrange(200_000)}"], f"Tag{number % 5}",
            properties={"host": f"h{number % 9}"} if number % 2 else {}, queue_id=number % QUEUES,
        )  # fmt: skip

    engine.create_topic(TOPIC, QUEUES)
    for start in range(0, count, _BATCH):
        if start == count // 2 // _BATCH * _BATCH:
            engine.flush()
            engine.archive(everything=True, drop_hot=True)
        engine.append([message(number) for number in range(start, min(start + _BATCH, count))], Durability.ASYNC)
    engine.flush()


def followed(engine: Store, order: Order) -> PagedQuery:
    """The query for all messages."""

    def ask(query: Query, page_bytes: int) -> Answer:
        return engine.query(query, page_bytes=page_bytes)

    return PagedQuery(ask, Query(TOPIC, order=order), _PAGE_BYTES)


def download(engine: Store, media_type: str, order: Order) -> float:
    """Rows a processor second."""
    form, query, rows = form_of(media_type), followed(engine, order), 0
    begin = time.process_time()
    for page in query.pages():
        rows += page.num_rows
        form.page(page)
    form.end(query.metadata())
    return rows / (time.process_time() - begin)


def written_by_pyarrow(file: pa.Buffer) -> float:
    """Rows a processor second of pyarrow alone."""
    begin = time.process_time()
    table = pq.read_table(pa.BufferReader(file))
    write(table)
    return int(table.num_rows) / (time.process_time() - begin)


def written_by_duckdb(source: Path, rows: int) -> float:
    """Rows a processor second of DuckDB alone."""
    begin = time.process_time()
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (FROM read_parquet('{source}')) TO '{source}.duckdb' "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_GROUP_ROWS})"
        )
    return rows / (time.process_time() - begin)


def write(table: pa.Table) -> pa.Buffer:
    """Write as whoever sets nothing else does."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=_GROUP_ROWS)
    return sink.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    report = Report.of(__file__, __doc__)
    given.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        engine = Store.open(Path(folder, "store"), cold_url=f"file://{Path(folder).absolute()}/cold")
        with closing(engine):
            fill(engine, given.messages)
            drained()
            table = pa.Table.from_batches(followed(engine, Order.OLDEST).pages()).select(MESSAGE_SCHEMA.names)
            assert table.num_rows == given.messages
            file = write(table)
            source = Path(folder).absolute() / "rows.parquet"
            source.write_bytes(file)
            written = {
                "tierlog": partial(download, engine, PARQUET, Order.OLDEST),
                "DuckDB, from Parquet": partial(written_by_duckdb, source, given.messages),
                "pyarrow, from Parquet": partial(written_by_pyarrow, file),
            }
            report.add(Row("Parquet, oldest first", "rows/s", in_turns(written, given.runs), 0.5, held_by=_HELD_BY))
            for what, media_type, order, target in (
                ("Arrow stream, oldest first", ARROW_STREAM, Order.OLDEST, 500_000),
                ("Arrow stream, newest first", ARROW_STREAM, Order.NEWEST, 500_000),
                ("NDJSON, oldest first", NDJSON, Order.OLDEST, None),
            ):
                alone = {"tierlog": partial(download, engine, media_type, order)}
                report.add(Row(what, "rows/s", in_turns(alone, given.runs), target, held_by=_HELD_BY))
    report.save()


if __name__ == "__main__":
    main()
