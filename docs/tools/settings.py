"""Writes ``docs/configuration.md`` out of the settings: ``python -m docs.tools.settings``.

They are fields of :class:`tierlog.service.config.settings.Settings`. The chart's schema has them too, so its files are
written with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.tools import chart_files
from tierlog.service.config.settings import ENV_ALIASES, Settings

_PAGE = Path(__file__).resolve().parents[1] / "configuration.md"
_HEAD = """# Settings

<!-- Made by `python -m docs.tools.settings` from service/config. Change it there. -->

A TOML file (`--config FILE`), the environment and flags, in rising order. `hot.retention_ms` is
`retention_ms` in the file's table `[hot]` and `TIERLOG_HOT_RETENTION_MS` in the environment. An unknown name
in the file, or below a group in the environment, is an error, and so is a variable whose name is like that of
a setting. Of any other variable below `TIERLOG_` that nothing reads, `tierlog serve` and `tierlog config` warn.
What Kubernetes puts into pods for a Service of a name like `tierlog` (`TIERLOG_SERVICE_HOST`, `TIERLOG_PORT=tcp://…`)
is passed over.

A number is in the unit that the name says. A setting whose name ends with `_ms` or `_s` also takes a text with a
unit, such as `72h`: a whole number with `ms`, `s`, `m`, `h`, `d` (24 hours) or `w`. One whose name ends with `_bytes`
takes `512MiB` or `10GB`: `B`, `kB`, `MB`, `GB` and `TB` count in thousands, `KiB`, `MiB`, `GiB` and `TiB` in 1,024s.
So it is in the file, the environment, flags, and the values of the Helm chart. `tierlog config` shows what each
value becomes.

```toml
advertise = "10.0.0.7:8080"

[hot]
retention_ms = "72h"
max_bytes = "500GB"
```
"""
_FLAGS = {
    "hot.segment_bytes": "--segment-bytes",
    "hot.queue_file_units": "--queue-file-units",
    "index.slots": "--index-slots",
    "index.items": "--index-items",
    "serve.host": "--host",
    "serve.port": "--port",
}


def page() -> str:
    """Returns the whole page."""
    groups = [("", "Top level", "Keys outside any table.", _fields(Settings))]
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            groups.append((f"{name}.", f"`[{name}]`", str(kind.__doc__), _fields(kind)))
    return _HEAD + "".join(_section(*group) for group in groups)


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(name, field) for name, field in model.model_fields.items() if field.description]


def _section(prefix: str, title: str, text: str, fields: list[tuple[str, FieldInfo]]) -> str:
    rows = "".join(
        f"| `{prefix}{name}` | {_default(field)} | {field.description}{_elsewhere(prefix + name)} |\n"
        for name, field in fields
    )
    return f"\n## {title}\n\n{text}\n\n| setting | default | unit, meaning, cost |\n|---|---|---|\n{rows}"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _elsewhere(name: str) -> str:
    variable = ENV_ALIASES.get(name)
    texts = [f"flag `{_FLAGS[name]}`"] if name in _FLAGS else []
    if variable:
        texts.append(f"also `{variable}`")
    return f" ({', '.join(texts)})" if texts else ""


def main() -> int:
    """Writes the page, and the chart's files."""
    _PAGE.write_text(page(), encoding="utf-8")
    return chart_files.main()


if __name__ == "__main__":
    sys.exit(main())
