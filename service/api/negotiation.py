"""Which of the forms that an answer can have a client wants."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request


def wanted_form(request: Request, offered: Sequence[str]) -> str:
    """The media type of ``offered`` that the request's ``Accept`` names, the first of them if it names none."""
    accept = request.headers.get("accept", "")
    return next((form for form in offered if form in accept), offered[0])
