"""Every page can be reached, every link and path leads somewhere, every alert to its section."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.docs.pages import ROOT, all_pages

_OTHERS = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
_NOTES = sorted((ROOT / "benchmarks" / "notes").glob("*.md"))
_RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
_FILES = [*(ROOT / page.name for page in all_pages()), *_OTHERS, *_NOTES]
_FOLDERS = ("benchmarks", "docker", "docs", "helm", "index", "monitoring", "pipeline", "service", "tests", "tiering")
_FILES_OF_A_STORE = re.compile(r"index/(writing|sealed|compacted|uploaded)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def _prose(text: str) -> str:
    """Without blocks and inline code."""
    return re.sub(r"^( *)(`{3,}).*?^\1\2$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def _code_spans(text: str) -> list[str]:
    """Inline code outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^( *)(`{3,}).*?^\1\2$", "", text, flags=re.DOTALL | re.MULTILINE))


def _is_there(path: str, names: frozenset[str]) -> bool:
    """Whether a span that looks like a path of the repository leads somewhere; a bare name may be in any folder."""
    if "/" not in path:
        return not path.endswith(".py") or path in names
    if not (path.endswith(".py") or path.split("/")[0] in _FOLDERS) or _FILES_OF_A_STORE.match(path):
        return True
    return (ROOT / path).exists()


def _anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    found: set[str] = set()
    blocks_out = re.sub(r"^( *)(`{3,}).*?^\1\2$", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ +(.*?)\s*$", blocks_out, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(anchor if anchor not in found else f"{anchor}-1")
    return found


def _links(file: Path) -> list[str]:
    text = _prose(file.read_text(encoding="utf-8"))
    targets = [first or second for first, second in _LINK.findall(text)]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("file", _FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(file: Path) -> None:
    broken = []
    for target in _links(file):
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        if not there.exists() or (anchor and anchor not in _anchors(there.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


@pytest.fixture(scope="module")
def module_names() -> frozenset[str]:
    return frozenset(file.name for folder in _FOLDERS for file in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("file", _FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_paths_in_code_spans_are_there(file: Path, module_names: frozenset[str]) -> None:
    spans = [span.split("::")[0] for span in _code_spans(file.read_text(encoding="utf-8"))]
    paths = [span for span in spans if re.fullmatch(r"[\w.\-]+(/[\w.\-]+)*/?", span)]
    assert [path for path in paths if not _is_there(path, module_names)] == []


@pytest.mark.parametrize("file", _RECORDS, ids=lambda file: file.stem)
def test_a_record_names_what_it_touches_once(file: Path) -> None:
    touched = re.search(r"Touches: (.*?)(?:On-disk|Format:|\n\n)", file.read_text(encoding="utf-8"), re.DOTALL)
    paths = [path.rstrip("/") for path in re.findall(r"`([^`]+)`", touched[1])] if touched else []
    assert [path for path, count in Counter(paths).items() if count > 1] == []


@pytest.mark.parametrize("file", _FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_list_names_a_path_twice_in_a_row(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert re.findall(r"`([^`\n]+\.py)`[^`|]{0,40}`\1`", text) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    following = [ROOT / "README.md"]
    while following:
        file = following.pop()
        reached.add(file)
        targets = [(file.parent / target.partition("#")[0]).resolve() for target in _links(file)]
        found = {page for target in targets for page in (target.glob("*.md") if target.is_dir() else [target])}
        following += [page for page in found if page.suffix == ".md" and page not in reached and page.exists()]
    assert [page.name for page in all_pages() if ROOT / page.name not in reached] == []


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    rules = yaml.safe_load((ROOT / "monitoring" / "alerts.yaml").read_text(encoding="utf-8"))
    named = {
        rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule
    }
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    sections = {f"docs/operations.md#{anchor}" for anchor in _anchors(page) if anchor.startswith("alert-")}
    assert named == sections
