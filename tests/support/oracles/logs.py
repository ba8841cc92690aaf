"""Log files and a plain scan of them: what loading must have made of a file, found without any code of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tierlog.service.sample import sample_log


@dataclass(frozen=True)
class LogRules:
    """How to load one kind of log: patterns as on the command line."""

    keys: tuple[str, ...]
    born: str | None = None
    born_format: str | None = None
    year: int | None = None


_ISO_COMMA = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})"
_RULES = {
    "Apache": LogRules(
        (r"child (\d+)", r"/etc/\S+"), r"^\[(\w{3} \w{3} \d\d [\d:]{8} \d{4})\]", "%a %b %d %H:%M:%S %Y"
    ),
    "HDFS": LogRules((r"blk_-?\d+",), r"^(\d{6} \d{6})", "%y%m%d %H%M%S"),
    "Hadoop": LogRules((r"attempt_[\d_mr]+\d", r"task_[\d_mr]+\d"), _ISO_COMMA, "%Y-%m-%d %H:%M:%S,%f"),
    "HealthApp": LogRules((r"^[^|]*\|([^|]+)\|", r"\d{4,}$"), r"^([\d-]+:\d+:\d+:\d+)\|", "%Y%m%d-%H:%M:%S:%f"),
    "OpenSSH": LogRules((r"\d{1,3}(?:\.\d{1,3}){3}",), r"^(\w{3} +\d+ [\d:]{8})", "%b %d %H:%M:%S", 2017),
    "OpenStack": LogRules(
        (r"req-[0-9a-f-]{36}", r"instance: ([0-9a-f-]{36})"),
        r" (\d{4}-\d\d-\d\d [\d:]{8}\.\d{3})",
        "%Y-%m-%d %H:%M:%S.%f",
    ),
    "Spark": LogRules((r"rdd_\d+_\d+", r"TID (\d+)"), r"^(\d\d/\d\d/\d\d [\d:]{8})", "%y/%m/%d %H:%M:%S"),
    "Zookeeper": LogRules((r"0x[0-9a-f]+", r"\d+(?:\.\d+){3}"), _ISO_COMMA, "%Y-%m-%d %H:%M:%S,%f"),
    "sample": LogRules((r"ord-\d+", r"pay-[0-9a-f]+", r"\d+(?:\.\d+){3}"), _ISO_COMMA, "%Y-%m-%d %H:%M:%S,%f"),
}
_ANY_LOG = LogRules((r"\w{8,}",))


@dataclass(frozen=True)
class PlainLine:
    """One line as a plain scan sees it; ``born_ms`` None where no line so far had a time."""

    body: bytes
    keys: tuple[str, ...]
    born_ms: int | None


@dataclass
class PlainScan:
    """Every line of a file in order, and for each key the numbers of its lines."""

    lines: list[PlainLine]
    by_key: dict[str, list[int]] = field(default_factory=dict)


def rules_for(path: Path) -> LogRules:
    """The rules of a known log, or ones that fit any text."""
    return _RULES.get(path.name.split("_")[0], _ANY_LOG)


def scan_plainly(path: Path, rules: LogRules) -> PlainScan:
    """Read the file as a person with grep would."""
    scan = PlainScan([])
    born_ms: int | None = None
    for raw in path.read_bytes().split(b"\n"):
        body = raw[:-1] if raw.endswith(b"\r") else raw
        if not body:
            continue
        text = body.decode("utf-8", "surrogateescape")
        found = [
            match.group(1) if match.groups() else match.group() for p in rules.keys for match in re.finditer(p, text)
        ]
        keys = tuple(dict.fromkeys(found))
        match = re.search(rules.born, text) if rules.born else None
        if match is not None and rules.born_format:
            year = "" if rules.year is None else f"{rules.year} "
            when = datetime.strptime(year + match.group(1), ("%Y " if year else "") + rules.born_format)
            born_ms = round(when.replace(tzinfo=UTC).timestamp() * 1000)
        for key in keys:
            scan.by_key.setdefault(key, []).append(len(scan.lines))
        scan.lines.append(PlainLine(body, keys, born_ms))
    return scan


def real_log_names(shared_data: Path) -> list[str]:
    """Names of whatever logs lie in the shared folder; one made-up name where it is absent, for a test to skip on."""
    return sorted(path.name for path in (shared_data / "loghub").glob("*.log")) or ["no-log"]


def real_log(shared_data: Path, name: str) -> Path:
    """One of them."""
    return shared_data / "loghub" / name


def write_sample(folder: Path, lines: int = 1_500) -> Path:
    """A generated log of the same kind, for machines without the real ones."""
    path = folder / "sample_log.txt"
    path.write_bytes(b"".join(sample_log(lines, seed=3)))
    return path
