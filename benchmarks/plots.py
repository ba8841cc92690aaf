"""The plots of docs/performance.md as SVG, the same text for the same figures."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.harness import Row

_OURS, _MISSED, _AIM = "#2b6cb0", "#c05621", "#1a202c"
_LONGEST = 64
_STYLE = {
    "svg.hashsalt": "tierlog",  # or every run draws its ids anew
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot_of_ratios(rows: Sequence[Row]) -> str:
    """A bar a row: how many times as good as the other side, with lowest and highest turn, and a mark at the target."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 0.8 + 0.26 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            ratios = sorted(_as_better(row, ratio) for ratio in row.ratios)
            middle = statistics.median(ratios)
            color = _MISSED if row.is_met is False else _OURS
            axes.barh(place, middle - 1, left=1, height=0.6, color=color)
            axes.plot([ratios[0], ratios[-1]], [place, place], color=_AIM, linewidth=1)
            if row.target is not None:
                axes.plot(_as_better(row, row.target), place, marker="|", markersize=11, markeredgewidth=2, color=_AIM)
        axes.set_yticks(range(len(rows)), labels=[_label(row) for row in rows], fontsize=8)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.axvline(1, color=_AIM, linewidth=0.8)
        axes.grid(visible=True, axis="x", color="#e2e8f0")
        axes.set_axisbelow(True)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        figure.supxlabel("times as good as the other side, log; | target; line: all turns; orange: missed", size=9)
        return _svg(figure)


def plot_of_series(columns: Mapping[str, Sequence[float]]) -> str:
    """Lines over the first column, each in axes of its own, as their units differ."""
    (x_name, x), *lines = columns.items()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 0.6 + 1.4 * len(lines)), layout="constrained")
        all_axes = figure.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, y) in zip(all_axes, lines, strict=True):
            axes.plot(x, y, color=_OURS, linewidth=1.2)
            axes.set_title(name, loc="left", fontsize=9)
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, color="#e2e8f0")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        all_axes[-1].set_xlabel(x_name)
        return _svg(figure)


def _label(row: Row) -> str:
    what = row.what if len(row.what) <= _LONGEST else f"{row.what[: _LONGEST - 1]}…"
    return f"{what} / {list(row.sides)[1]}"


def _as_better(row: Row, ratio: float) -> float:
    return 1 / ratio if row.smaller_is_better else ratio


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
