"""docs/glossary.md and the code have the same names, and one name has one meaning."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache

import tierlog
import tierlog.client
from tests.conftest import ROOT
from tests.rules.product import modules

_ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \|(?P<names>[^|]*)\|$")


def rows() -> dict[str, list[str]]:
    """The names in the code of each term."""
    found = [_ROW.match(line) for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()]
    return {
        row["term"]: re.findall(r"`(\w+)`", row["names"]) for row in found if row and row["term"] not in ("term", "---")
    }


@cache
def classes() -> dict[str, list[str]]:
    """The modules of each public class of the product."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return found


def test_every_term_and_every_name_is_there_once() -> None:
    terms = [term.strip() for named in rows() for term in named.split(",")]
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    names = Counter(name for named in rows().values() for name in named)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_name_of_the_glossary_is_in_the_code() -> None:
    known = {*tierlog.__all__, *tierlog.client.__all__, *classes()}
    assert [name for named in rows().values() for name in named if name not in known] == []


def test_every_public_name_is_in_the_glossary() -> None:
    told = {name for named in rows().values() for name in named}
    assert sorted({*tierlog.__all__, *tierlog.client.__all__} - told - {"errors"}) == []


def test_a_class_has_a_name_of_its_own() -> None:
    """The client has its own classes for what it reads over HTTP, by the names that the library has."""
    within = {
        name: [module for module in found if not module.startswith("tierlog.client")]
        for name, found in classes().items()
    }
    assert {name: found for name, found in within.items() if len(found) > 1} == {}
