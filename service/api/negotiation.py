"""The choice among the forms that an answer can have, by what a client accepts (RFC 9110, section 12.5)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi import Request
from starlette.exceptions import HTTPException

#: A weight; anything else counts as 1, like an unknown parameter.
_WEIGHT = re.compile(r"\s*q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*", re.IGNORECASE)
#: Ranges that are read; the rest of a longer header is ignored.
_MOST_RANGES = 64


def wanted_form(request: Request, offered: Sequence[str]) -> str:
    """Returns the media type of ``offered`` that the request's ``Accept`` likes best, the first if it names none.

    Each form has the weight of the range that fits it most closely; of equal weights the form that is named wins over
    one that a wildcard lets in, then the earlier of ``offered``. Raises 406 if every form is ruled out: whoever asks
    for what there is not would not understand what there is.
    """
    accepted = ",".join(request.headers.getlist("accept"))
    weights = _weights(accepted)
    if not weights:
        return offered[0]
    ranked = [(_liking(form, weights), -place, form) for place, form in enumerate(offered)]
    (weight, _), _, form = max(ranked)
    if weight <= 0:
        raise HTTPException(406, f"none of {', '.join(offered)} is accepted by {accepted[:200]!r}")
    return form


def weight_of(name: str, header: str) -> float | None:
    """Returns the weight that a header like ``Accept-Encoding`` gives a name, by itself or by ``*``; else None."""
    weights = _weights(header)
    return weights.get(name, weights.get("*"))


def _liking(form: str, weights: dict[str, float]) -> tuple[float, int]:
    """Returns (weight, closeness) of the range that fits most closely."""
    for closeness, fitting in ((2, form), (1, form.partition("/")[0] + "/*"), (0, "*/*"), (0, "*")):
        if fitting in weights:
            return weights[fitting], closeness
    return 0.0, 0


def _weights(header: str) -> dict[str, float]:
    """Returns the names in a header, in lower case, with their weights; 64 at most."""
    found: dict[str, float] = {}
    for one in header.split(",", _MOST_RANGES)[:_MOST_RANGES]:
        name, *parameters = one.lower().split(";")
        name = name.strip()
        if not name:
            continue
        weight = next((float(match[1]) for each in parameters if (match := _WEIGHT.fullmatch(each))), 1.0)
        found[name] = weight
    return found
