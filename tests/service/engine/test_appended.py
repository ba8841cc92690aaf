"""Where the messages of an append went, as columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tierlog.service.api.append_answers import PIECE_ROWS, appended_pieces, appended_rows, results_json
from tierlog.service.engine.append_results import Appended, AppendedColumns
from tierlog.service.wire.documents import ARROW_STREAM, JSON
from tierlog.tiering.hot.batch_writer import AppendResult

IPV4, IPV6 = bytes([10, 0, 0, 255]) + (10911).to_bytes(4), bytes(range(16)) + (10911).to_bytes(4)


def columns(count: int, host: bytes = IPV4) -> AppendedColumns:
    offsets = np.arange(count, dtype=np.int64) * 1_000_003 + (1 << 40)
    queues = (np.arange(count) % 4).astype(np.int32)
    return AppendedColumns.of(AppendResult(offsets, queues, np.arange(count, dtype=np.int64) + 7, 1234), host)


def whole_json(appended: AppendedColumns) -> bytes:
    return b"".join(appended_pieces(appended, JSON))


def test_one_message_is_the_same_by_its_place_in_a_slice_and_in_a_loop() -> None:
    appended = columns(5)
    expected = Appended((IPV4 + appended.physical_offset[3].tobytes()[::-1]).hex().upper(), 3, 10, 1234)
    assert appended[3] == appended[-2] == appended[2:][1] == list(appended)[3] == expected
    assert len(appended[1:3]) == 2
    with pytest.raises(IndexError):
        appended[5]


@pytest.mark.parametrize("host", [IPV4, IPV6])
@pytest.mark.parametrize("count", [1, 1000])
def test_the_column_of_message_ids_says_what_each_message_says(host: bytes, count: int) -> None:
    appended = columns(count, host)
    ids = appended.message_ids()
    ids.validate(full=True)
    assert ids.to_pylist() == [one.message_id for one in appended]


def test_messages_of_two_openings_keep_the_host_of_each() -> None:
    rows = [*columns(2).rows(), *columns(1, IPV6).rows()]
    appended = AppendedColumns.of_rows(rows)
    assert list(appended.rows()) == rows
    assert list(appended) == [*columns(2), *columns(1, IPV6)]
    assert appended.message_ids().to_pylist() == [one.message_id for one in appended]


def test_nothing_appended_is_an_empty_answer() -> None:
    assert list(columns(0)) == []
    assert columns(0).message_ids().to_pylist() == []


def test_answers_are_equal_if_all_messages_went_to_the_same_places() -> None:
    assert columns(3) == columns(3) == list(columns(3))
    assert columns(3) != columns(4)
    assert columns(3) != columns(3, IPV6)


@pytest.mark.parametrize("host", [IPV4, IPV6])
@pytest.mark.parametrize("count", [0, 1, 100, 1000])
def test_an_answer_is_the_same_json_whichever_way_it_is_written(host: bytes, count: int) -> None:
    for appended in (columns(count, host), columns(2 * count, host)[::2]):
        assert whole_json(appended) == results_json(appended_rows(appended))


def test_an_answer_has_every_digit_of_the_least_and_greatest_numbers() -> None:
    numbers = np.array([0, 9, 10, 99, 10**9, 10**18, 2**63 - 1] * 3, np.int64)
    appended = AppendedColumns(numbers, (numbers % 2**31).astype(np.int32), numbers, numbers, [IPV6] * len(numbers))
    assert whole_json(appended) == results_json(appended_rows(appended))


def test_an_answer_about_messages_of_two_openings_has_the_host_of_each() -> None:
    appended = AppendedColumns.of_rows([*columns(20).rows(), *columns(20, IPV6).rows()])
    assert whole_json(appended) == results_json(appended_rows(appended))


@pytest.mark.parametrize("count", [1, PIECE_ROWS, PIECE_ROWS + 1, 3 * PIECE_ROWS])
@pytest.mark.parametrize("form", [JSON, ARROW_STREAM])
def test_an_answer_about_many_messages_is_made_in_pieces(count: int, form: str) -> None:
    appended = columns(count)
    pieces = list(appended_pieces(appended, form))
    assert len(pieces) == -(-count // PIECE_ROWS)
    assert max(map(len, pieces)) <= 150 * PIECE_ROWS
    if form == JSON:
        assert b"".join(pieces) == results_json(appended_rows(appended))
    else:
        assert pa.ipc.open_stream(b"".join(pieces)).read_all().to_pylist() == appended_rows(appended)
