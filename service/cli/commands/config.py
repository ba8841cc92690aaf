"""``tierlog config``: the settings that a command with the same flags and environment would have."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from tierlog.service.cli.arguments import add_format, add_settings, overrides
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.exit_codes import DONE
from tierlog.service.wire.documents import Json

HELP = "show every setting with its value and where that comes from; checks a settings file"
EXAMPLES = (
    ("is this file right, and what does it change?", "tierlog config --config tierlog.toml --changed"),
    ("all of them for a script", "tierlog config --format json"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which settings."""
    parser.add_argument("--changed", action="store_true", help="only those that something was said about")
    add_format(parser)
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each setting; exit code 2 names what is wrong in the file, the environment or the flags."""
    from tierlog.service.cli.table import Column
    from tierlog.service.config.settings import settings_in_force, unknown_variables

    found = settings_in_force(arguments.config, overrides(arguments))
    rows = [asdict(one) for one in found if not arguments.changed or one.source != "default"]
    shown = [Column("setting", style="name"), Column("value"), Column("source"), Column("default", is_text=True)]
    out = rows_out(
        OutputStyle.of(arguments), "settings", columns=("name", "value", "default", "source"), shown=shown,
        cells=_cells, types=dict.fromkeys(("name", "value", "default", "source"), "text") | {"value": "json", "default":
        "json"},
    )  # fmt: skip
    out.write(rows)
    out.end()
    for name in unknown_variables():
        say(f"{name} is in the environment, and nothing reads it")
    return DONE


def _cells(row: Json) -> Json:
    return {
        "setting": row["name"],
        "value": _text(row["value"]),
        "source": row["source"] if row["source"] != "default" else None,
        "default": _text(row["default"]) if row["value"] != row["default"] else None,
    }


def _text(value: object) -> str:
    return "unset" if value is None else value if isinstance(value, str) else json.dumps(value)
