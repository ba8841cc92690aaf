"""``tierlog stats``: sizes and lags."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping

from service.cli.arguments import add_format, add_target
from service.cli.errors import DONE
from service.cli.output import chosen_format, rows_out
from service.cli.stopping import interruptible
from service.cli.targets import open_reader

HELP = "show sizes in bytes, lags and times in ms"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to look and how to show it."""
    add_format(parser)
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """One row; a line for each number in a table."""
    with interruptible(), open_reader(arguments) as target:
        stats = target.stats()
    match chosen_format(arguments.format):
        case "json":
            print(json.dumps(stats, indent=1))
        case "table":
            out = rows_out("table", "stats", ("name", "value"))
            out.write([{"name": name, "value": value} for name, value in _flat(stats)])
            out.end()
        case _:
            out = rows_out(arguments.format, "stats", tuple(stats))
            out.write([stats])
            out.end()
    return DONE


def _flat(numbers: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Numbers of numbers by their whole names, ``cache.filters.hits``."""
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
