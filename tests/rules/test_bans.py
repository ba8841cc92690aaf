"""What must not be in the project's files, checked where no linter looks."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.rules.product import modules

REQUIREMENTS = ("runtime", "dev", "spark", "image", "bench")

# A path of one machine: somebody's home, or a folder at the top that only one workplace has.
_MACHINE_PATH = re.compile(r"(?<![\w.)}*$-])/(?:root|work|home/[\w-]+|Users/[\w-]+)/")
_PIN = re.compile(r"[a-z0-9][a-z0-9._-]*==[^\s;\\]+")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def project_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    if listed.returncode == 0:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]


def _uses_of_builtin_hash(tree: ast.AST) -> list[int]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "hash"]
    bound = any(not isinstance(name.ctx, ast.Load) for name in names) or any(
        isinstance(node, ast.arg) and node.arg == "hash" for node in ast.walk(tree)
    )
    if not bound:
        return [name.lineno for name in names]
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "hash"]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("slot = hash(key) % 7", [1]),
        ("slots = map(\n    hash,\n    keys)", [2]),
        ("hash = 3\nslot = hash % 7", []),
        ("slot = stable.hash(key)", []),
        ("def __hash__(self) -> int: ...", []),
    ],
)
def test_the_search_for_builtin_hash_finds_it(source: str, lines: list[int]) -> None:
    assert _uses_of_builtin_hash(ast.parse(source)) == lines


def test_builtin_hash_is_used_nowhere() -> None:
    """The hash of a string differs from process to process; one that reached a file would lose the key."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules().values()
        for line in _uses_of_builtin_hash(ast.parse(path.read_bytes(), filename=str(path)))
    ]
    assert found == []


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_pin_has_a_hash_and_no_index_is_named(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert "://" not in text
    entries = [entry.split() for entry in code.replace("\\\n", " ").splitlines() if entry.strip()]
    assert entries
    for first, *rest in entries:
        assert _PIN.fullmatch(first), first
        hashes = [word for word in rest if word.startswith("--")]
        assert hashes, f"{first} has no hash"
        assert all(_HASH.fullmatch(word) for word in hashes), first


def test_developers_run_the_versions_that_users_run() -> None:
    pins = {
        name: dict(line.split("==") for line in _pinned_lines(ROOT / "requirements" / f"{name}.txt"))
        for name in REQUIREMENTS
    }
    for name in ("dev", "spark", "image"):
        assert pins["runtime"].items() <= pins[name].items()
    assert pins["image"].items() <= pins["dev"].items()


def _pinned_lines(path: Path) -> list[str]:
    return [match.group() for line in path.read_text(encoding="utf-8").splitlines() if (match := _PIN.match(line))]


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in project_files()
        if path.stat().st_size < 1 << 20
        for match in _MACHINE_PATH.finditer(path.read_bytes().decode("utf-8", errors="ignore"))
    ]
    assert found == []
