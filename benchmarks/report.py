"""Writes docs/performance.md and its plots from the results that benchmarks left: ``python -m benchmarks.report``.

``--check`` only says, by its exit status and a line a file, what is not as it would be written.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, Row

_DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = _DOCS / "performance.md"
IMAGES = _DOCS / "images"
_RATIOS = "performance-ratios.svg"
#: What the page consists of, in its order; ``make bench`` runs those that exist. Others come after them.
BENCHMARKS = (
    "limits", "append", "append_single", "group_commit", "dispatch", "index_put", "compaction", "index_object",
    "hot_lookup", "query_pages", "compacted_lookup", "pull", "pull_records", "download", "http_load", "rocketmq_door",
    "follow", "archive_segment", "cold_read", "cores",
    "recovery", "start", "memory", "mechanisms", "soak", "follow_soak",
)  # fmt: skip
#: Take half an hour and ten minutes, and are asked for with ``make soak`` and ``make follow-soak``.
ONLY_BY_NAME = frozenset({"soak", "follow_soak"})
#: What a table's last column says of a row.
_VERDICTS = {"met": "yes", "MISSED": "**no**"}
#: Their other sides are models of what tierlog could do itself, so their ratios are no part of the plot.
_OF_MODELS = frozenset({"mechanisms"})

_HEAD = """\
# How fast

<!-- Made by `python -m benchmarks.report` from benchmarks/results/*.json. Change it there. -->

Everything here was measured side by side on one machine: tierlog and what it is compared with did the same work on the
same data and the same filesystem, in turns, in one run. `make bench` measures it again and writes this page; it needs
Maven and a JDK for Apache RocketMQ's own classes.

- A **turn** runs each side once; every other turn begins with the last side. Before them a turn that does not count
  warms kernels and Java up.
- Figures are **lowest / median / highest** of all turns. A **ratio** is tierlog's figure by the other's *of the same
  turn*, so that a machine which slows down for a while slows both; its median is what has to reach the target.
- Keys are 16 random hex digits and bodies random bytes unless a row says otherwise: sequential keys flatter an index.
- Files are in the page cache, as what was written a moment ago is. Cold disks and networks were not measured.

Why so, and what these figures do not say: [record 0027](decisions/0027-how-speed-is-measured.md).
"""


@dataclass(frozen=True)
class Series:
    """Columns of equal length by name; the first is the x axis of a plot of the others."""

    name: str
    columns: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Result:
    """What one benchmark left."""

    name: str
    question: str
    command: str
    commit: str
    seconds: float
    load: float
    #: Processor, memory and versions in one line; equal for all that were measured in one place.
    setting: str
    rows: Sequence[Row]
    series: Sequence[Series]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Result:
        """From the JSON of ``harness.Report.save``."""
        machine, versions = found["machine"], found["versions"]
        return cls(
            found["name"], found["question"], found["command"], found["commit"], found["seconds"], machine["load"][0],
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, Linux {machine['kernel']}; "
            + ", ".join(f"{name} {version}" for name, version in versions.items()),
            [Row(**{name: value for name, value in row.items() if name not in ("ratios", "is_met")})
             for row in found["rows"]],
            [Series(name, columns) for name, columns in found["series"].items()],
        )  # fmt: skip

    def image_of(self, series: Series) -> str:
        """The file name of a series' plot."""
        return f"performance-{self.name}-{series.name}.svg".replace(" ", "-").replace("_", "-").lower()


def results(folder: Path = RESULTS) -> list[Result]:
    """All there are, in the page's order."""
    found = [Result.of(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    place = {name: number for number, name in enumerate(BENCHMARKS)}
    return sorted(found, key=lambda result: (place.get(result.name, len(place)), result.name))


def page(all_of_them: Sequence[Result]) -> str:
    """The text of docs/performance.md."""
    parts = [_HEAD, *_targets(all_of_them), *_settings(all_of_them)]
    for result in all_of_them:
        parts += _section(result)
    return "\n".join(parts)


def ratio_rows(all_of_them: Sequence[Result]) -> list[Row]:
    """Every row that compares with somebody else's program or another way of tierlog's own."""
    return [row for result in all_of_them if result.name not in _OF_MODELS for row in result.rows if row.ratios]


def _targets(all_of_them: Sequence[Result]) -> Iterator[str]:
    rows = [(result, row) for result in all_of_them for row in result.rows if row.target is not None]
    limited = [(result, row) for result, row in rows if row.is_at_limit]
    missed = [(result, row) for result, row in rows if not row.is_met and not row.is_at_limit]
    if not rows:
        return
    yield "## Targets\n"
    yield (
        f"{len(rows) - len(limited) - len(missed)} of {len(rows)} are met, {len(limited)} are at the limit, "
        f"{len(missed)} are missed.\n"
    )
    if ratio_rows(all_of_them):
        yield f"![Ratios with their spread, and targets](images/{_RATIOS})\n"
    table = [
        (
            f"[{result.name}](#{_anchor(result)})", row.what, _medians(row),
            _spread(row.ratios or next(iter(row.sides.values()))) + ("" if row.ratios else f" {row.unit}"),
            f"at {'most' if row.smaller_is_better else 'least'} {_figure(row.target or 0)}",
            _VERDICTS.get(row.verdict, row.verdict),
        )
        for result, row in rows
    ]  # fmt: skip
    yield _table(("benchmark", "what", "tierlog : other side, medians", "ratio", "target", "met"), table)
    if limited:
        yield "### At the limit\n"
        yield (
            "A program that does only what cannot be left out ran in the same turns. The row has 0.9 of it or more; "
            "its target is out of reach here.\n"
        )
        for result, row in limited:
            name = next(iter(row.limit))
            yield (
                f"- **{_plain(row.what)}** ({result.name}): {_spread(row.of_limit)} of {_plain(name)}, "
                f"{_figure(statistics.median(row.limit[name]))} {row.unit}. {_plain(row.proof)}"
            )
        yield ""
    if missed:
        yield "### Missed\n"
        for result, row in missed:
            beside = f", by {list(row.sides)[1]}" if row.ratios else ""
            yield f"- **{_plain(row.what + beside)}** ({result.name}): {_plain(row.held_by) or 'not explained yet.'}"
        yield ""


def _settings(all_of_them: Sequence[Result]) -> Iterator[str]:
    of: dict[str, list[str]] = {}
    for result in all_of_them:
        of.setdefault(result.setting, []).append(result.name)
    if of:
        yield "## Machine and versions\n"
    for setting, names in of.items():
        yield f"- {'' if len(of) == 1 else ', '.join(names) + ': '}{_plain(setting)}"
    if of:
        yield ""


def _section(result: Result) -> Iterator[str]:
    yield f"## {_heading(result)}\n"
    yield f"{result.question}\n"
    yield _table(
        ("what", "side", "lowest", "median", "highest", "unit"), (line for row in result.rows for line in _lines(row))
    )
    notes = [f"- {_plain(row.what)}: {_plain(row.note)}" for row in result.rows if row.note]
    if notes:
        yield "\n".join(notes) + "\n"
    for series in result.series:
        yield f"![{_plain(series.name)}](images/{result.image_of(series)})\n"
    turns = statistics.mode(len(figures) for row in result.rows for figures in row.sides.values())
    took = f"{f'{turns} turns, ' if turns > 1 else ''}{result.seconds:.0f} s, load at its end {result.load:g}"
    yield f"`{result.command}`, commit `{result.commit}`, {took}.\n"


def _lines(row: Row) -> Iterator[tuple[str, ...]]:
    what = row.what
    for name, figures in row.sides.items():
        yield (what, name, *_three(figures), row.unit)
        what = ""
    if row.ratios:
        yield ("", "*ratio*", *_three(row.ratios), "smaller is better" if row.smaller_is_better else "")
    for name, figures in row.limit.items():
        yield ("", f"*limit:* {name}", *_three(figures), row.unit)


def _medians(row: Row) -> str:
    ours = _figure(statistics.median(next(iter(row.sides.values()))))
    if not row.ratios:
        return f"{ours} {row.unit}"
    other, theirs = list(row.sides.items())[1]
    return f"{ours} : {_figure(statistics.median(theirs))} {row.unit} ({other})"


def _heading(result: Result) -> str:
    return result.name.replace("_", " ").capitalize()


def _anchor(result: Result) -> str:
    return _heading(result).lower().replace(" ", "-")


def _three(figures: Sequence[float]) -> tuple[str, str, str]:
    return _figure(min(figures)), _figure(statistics.median(figures)), _figure(max(figures))


def _spread(figures: Sequence[float]) -> str:
    return " / ".join(_three(figures))


def _figure(figure: float) -> str:
    """Three digits that mean something."""
    short = float(f"{figure:.3g}")
    return f"{short:,.0f}" if abs(short) >= 100 else f"{short:g}"


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in line] for line in body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _plain(text: str) -> str:
    """On one line, and no column of its own."""
    return " ".join(text.split()).replace("|", "\\|")


def _files(all_of_them: Sequence[Result]) -> dict[Path, str]:
    from benchmarks.plots import plot_of_ratios, plot_of_series  # the page alone needs no matplotlib

    files = {PAGE: page(all_of_them)}
    if rows := ratio_rows(all_of_them):
        files[IMAGES / _RATIOS] = plot_of_ratios(rows)
    for result in all_of_them:
        for series in result.series:
            files[IMAGES / result.image_of(series)] = plot_of_series(series.columns)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    only_check = parser.parse_args().check
    files = _files(results())
    old = set(IMAGES.glob("performance-*.svg")) - set(files)
    differing = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in sorted([*differing, *old]):
        print(
            f"{'differs' if only_check else 'removed' if path in old else 'written'}: {path.relative_to(_DOCS.parent)}"
        )
    if only_check:
        return 1 if differing or old else 0
    for path in differing:
        path.write_text(files[path], encoding="utf-8")
    for path in old:
        path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
