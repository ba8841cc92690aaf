"""docs/performance.md says what benchmarks/results say, and a row's figures are made into ratios turn by turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.harness import Report, Row, in_turns, interval


def _row(ours: list[float], theirs: list[float] | None = None, **more: Any) -> Row:
    sides = {"tierlog": ours} if theirs is None else {"tierlog": ours, "other": theirs}
    return Row("something", "messages/s", sides, **more)


def test_the_page_is_what_the_results_say() -> None:
    there = report.PAGE.read_text(encoding="utf-8")
    assert there == report.page(report.results()), "run python -m benchmarks.report"


def test_ratios_are_those_of_each_turn() -> None:
    row = _row([10, 30, 100], [10, 10, 50])
    assert row.ratios == [1, 3, 2]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (5, "5 turns are too few for an interval"),
        (6, "the median lies within 1.000 and 6.000 with 97%"),
        (9, "the median lies within 2.000 and 8.000 with 96%"),
    ],
)
def test_where_the_median_of_ratios_lies_is_told_by_their_order(count: int, said: str) -> None:
    assert interval([float(number) for number in range(count, 0, -1)]) == said


def test_a_row_with_one_side_has_no_ratios() -> None:
    assert _row([10, 30, 100]).ratios == []


def test_sides_with_different_numbers_of_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = _row([1, 2], [1]).ratios


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "smaller_is_better", "met"),
    [
        # The median of the turns' ratios (3), not the ratio of the medians (1).
        ([30, 10, 90], [10, 100, 30], 3.0, False, True),
        ([30, 10, 90], [10, 100, 30], 3.1, False, False),
        ([1, 9, 2], [4, 3, 4], 0.5, True, True),
        ([1, 9, 2], [4, 3, 4], 0.4, True, False),
        # Without another side it is the figure itself.
        ([5, 7, 6], None, 6.0, False, True),
        ([5, 7, 6], None, 5.5, True, False),
        ([5, 7, 6], None, None, False, None),
    ],
)
def test_it_is_the_median_that_has_to_reach_the_target(
    ours: list[float], theirs: list[float] | None, target: float | None, smaller_is_better: bool, met: bool | None
) -> None:
    assert _row(ours, theirs, target=target, smaller_is_better=smaller_is_better).is_met is met


@pytest.mark.parametrize(
    ("limit", "smaller_is_better", "verdict"),
    [
        ([55, 11, 110], False, "at the limit"),  # 0.91 of it in each turn
        ([60, 12, 110], False, "MISSED"),
        ([46, 9.5, 95], True, "at the limit"),
        ([40, 8, 95], True, "MISSED"),
        ([30, 6, 60], False, "MISSED"),  # what is passed so far was no limit
        ([90, 18, 180], True, "MISSED"),
    ],
)
def test_a_missed_target_is_at_the_limit_only_if_nobody_could_come_much_nearer(
    limit: list[float], smaller_is_better: bool, verdict: str
) -> None:
    target = 1.0 if smaller_is_better else 1000.0
    row = _row([50, 10, 100], target=target, limit={"memcpy": limit}, smaller_is_better=smaller_is_better)
    assert (row.verdict, row.is_at_limit, row.is_met) == (verdict, verdict == "at the limit", False)
    assert _row([50, 10, 100], target=10, limit={"memcpy": limit}).verdict == "met"
    assert _row([50, 10, 100], target=target, smaller_is_better=smaller_is_better).verdict == "MISSED"


def test_the_page_shows_a_limit_with_its_proof(tmp_path: Path) -> None:
    at_it = _row([90.0], [50.0], target=10, limit={"one pass": [99.0]}, proof="Each byte is hashed once.", held_by="x")
    Report("pull", "?", [at_it]).save(tmp_path)
    page = report.page(report.results(tmp_path))
    assert "0 of 1 are met, 1 are at the limit, 0 are missed." in page
    assert " | 1.8 / 1.8 / 1.8 | at least 10 | at the limit |" in page
    proof = "0.909 / 0.909 / 0.909 of one pass, 99 messages/s. Each byte is hashed once."
    assert f"- **something** (pull): {proof}\n" in page
    assert "|  | *limit:* one pass | 99 | 99 | 99 | messages/s |" in page
    assert "### Missed" not in page


def test_sides_take_turns_and_who_begins_changes() -> None:
    ran: list[str] = []

    def side(name: str) -> float:
        ran.append(name)
        return len(ran)

    figures = in_turns({"a": lambda: side("a"), "b": lambda: side("b")}, runs=3)
    assert ran == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert figures == {"a": [3, 6, 7], "b": [4, 5, 8]}  # without the first turn, which warmed up


def test_what_was_saved_is_on_the_page_with_what_was_missed(tmp_path: Path) -> None:
    found = Report("index_put", "How fast | is a put?")
    found.add(_row([1_234_567, 2_000_000, 3_000_000], [100_000, 100_000, 100_000], target=8, note="bound by memory"))
    found.add(_row([0.5, 0.25, 0.75], [1, 1, 1], target=0.4, smaller_is_better=True, held_by="Java starts\nslowly"))
    found.add(_row([7.0], target=8))
    found.add(_row([7.0], note="a limit"))
    found.series["rates of a soak"] = {"minutes": [0, 1], "messages/s": [2, 3]}
    found.save(tmp_path)
    page = report.page(report.results(tmp_path))
    assert "1 of 3 are met, 0 are at the limit, 2 are missed." in page
    assert "| [index_put](#index-put) | something | 2,000,000 : 100,000 messages/s (other) |" in page
    assert " | 12.3 / 20 / 30 | at least 8 | yes |" in page
    assert "| 0.5 : 1 messages/s (other) | 0.25 / 0.5 / 0.75 | at most 0.4 | **no** |" in page
    assert "- **something, by other** (index_put): Java starts slowly\n" in page
    assert "- **something** (index_put): not explained yet.\n" in page
    assert "- something: a limit\n" in page
    assert "images/performance-index-put-rates-of-a-soak.svg" in page
    assert "## Index put" in page


def test_results_come_in_the_page_s_order_and_others_last(tmp_path: Path) -> None:
    for name in ("zebra", "append", "pull", "aardvark"):
        Report(name, "?", [_row([1])]).save(tmp_path)
    assert [result.name for result in report.results(tmp_path)] == ["append", "pull", "aardvark", "zebra"]


def test_a_page_is_the_same_from_the_same_results(tmp_path: Path) -> None:
    path = Report("append", "?", [_row([1, 2, 3], [1, 2, 3], target=1)]).save(tmp_path)
    first = report.page(report.results(tmp_path))
    path.write_text(json.dumps(json.loads(path.read_text())), encoding="utf-8")
    assert report.page(report.results(tmp_path)) == first
