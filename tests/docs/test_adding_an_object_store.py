"""The store that docs/adding_an_object_store.md writes passes the contract suite, as the page says."""

from __future__ import annotations

from typing import Any

from tests.support.docs.pages import ROOT, parse

_PAGE = "docs/adding_an_object_store.md"


def _classes() -> dict[str, Any]:
    blocks = parse(_PAGE, (ROOT / _PAGE).read_text(encoding="utf-8")).blocks
    names: dict[str, Any] = {"__name__": __name__}
    for block in blocks:
        if block.language == "python" and "class " in block.text:
            exec(compile("\n" * block.line + block.text, str(ROOT / _PAGE), "exec"), names)
    return names


TestDictStore = _classes()["TestDictStore"]
