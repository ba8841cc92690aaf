"""Text made of columns is, byte by byte, the text made of single messages."""

from __future__ import annotations

import random

import pytest

from tests.support.stores.hot_stores import record
from tierlog.service.cli.output import messages_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.wire.documents import message_json, ndjson_line
from tierlog.service.wire.message_text import csv, ndjson
from tierlog.tiering.base.types import Tier
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import SysFlag
from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA, message_batch
from tierlog.tiering.message.stored_message import StoredMessage

_LETTERS = "ab,\"\\\n\r\t\b\f\x00\x03\x1f\x7f\x85\u2028äß€😀=+-@'/ {}[]:"


def some_text(chance: random.Random, most: int) -> str:
    return "".join(chance.choice(_LETTERS) for _ in range(chance.randrange(most)))


def some_message(chance: random.Random, number: int, *, is_plain: bool) -> StoredMessage:
    """A message with anything in it that text may have; a body that is no text, and one that cannot be inflated."""
    properties = {
        f"p{each}{some_text(chance, 3)}".replace("\x01", "").replace("\x02", ""): some_text(chance, 6) or "x"
        for each in range(chance.randrange(4))
    }
    properties["KEYS"] = " ".join(some_text(chance, 4).replace(" ", "") for _ in range(chance.randrange(4)))
    properties["TAGS"] = some_text(chance, 5)
    body = some_text(chance, 30).encode()
    flags = 0
    if not is_plain:
        body = chance.choice((body, b"\xff" + body, chance.randbytes(20)))
        flags = chance.choice((0, 0, SysFlag.COMPRESSED))
    made = record(
        topic="t", physical_offset=number * 1000, queue_offset=number, body=body, sys_flag=flags,
        properties_text=encode_properties({name: value for name, value in properties.items() if value}),
    )  # fmt: skip
    return StoredMessage(made, "store", chance.choice((Tier.HOT, Tier.COLD)))


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_text_of_columns_is_that_of_messages(
    seed: int, is_plain: bool, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    chance = random.Random(seed)
    messages = [some_message(chance, number, is_plain=is_plain) for number in range(chance.choice((0, 1, 40)))]
    rows = message_batch(messages, FOUND_SCHEMA)
    shown = [message_json(message) for message in messages]
    assert ndjson(rows) == "".join(ndjson_line(one) for one in shown).encode()
    out = messages_out(OutputStyle("csv"))
    capfdbinary.readouterr()
    out.write(shown)
    out.end()
    assert csv(rows) == capfdbinary.readouterr().out


def test_rows_that_are_a_part_of_others_are_written_alone() -> None:
    chance = random.Random(1)
    messages = [some_message(chance, number, is_plain=True) for number in range(9)]
    rows = message_batch(messages, FOUND_SCHEMA).slice(3, 4)
    assert ndjson(rows) == "".join(ndjson_line(message_json(one)) for one in messages[3:7]).encode()
