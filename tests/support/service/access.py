"""Tokens for tests, and a service that asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
from fastapi import FastAPI

from tests.support.stores.engines import tiny_settings
from tierlog.service.access.audit import AuditLog
from tierlog.service.access.control import AccessControl
from tierlog.service.access.tokens import digest
from tierlog.service.api.application.app import create_app
from tierlog.service.config.serve import AccessSettings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock, ManualClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness


def line(name: str, scopes: str, topics: str, expires: str = "") -> str:
    """The entry of the token ``t-NAME``."""
    return f"{name}:{digest(token(name)).hex()}:{scopes}:{topics}" + (f":{expires}" if expires else "")


def token(name: str) -> str:
    """The token of a name."""
    return f"t-{name}"


class GuardedService:
    """An engine's API that asks for tokens; its audit log lies in ``folder / "audit"``."""

    def __init__(
        self, folder: Path, entries: Sequence[str], *, cors_origins: str = "", clock: Clock | None = None
    ) -> None:
        self.clock = clock or ManualClock()
        access = AccessSettings(tokens="\n".join(entries), cors_origins=cors_origins)
        self.settings: Settings = tiny_settings().model_copy(update={"access": access})
        self.engine = Store.open(
            folder / "store", settings=self.settings, clock=self.clock, cold_url=(folder / "cold").as_uri()
        )
        self.audit_folder = folder / "audit"
        self.audit = AuditLog(LocalFileSystem(), self.audit_folder, self.clock, SystemRandomness(), 1 << 20)
        self.app: FastAPI = create_app(
            self.engine, self.settings, control=AccessControl(access, self.clock), audit=self.audit
        )

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        by: str | None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """The answer to one request with a JSON ``body`` or other ``content``, sent with the token of ``by`` if any."""
        sent = {"X-Request-Id": "r1", **(headers or {})}  # else no two problems are alike
        if by is not None:
            sent["Authorization"] = f"Bearer {token(by)}"

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://logs.example.com") as http:
                return await http.request(method, path, json=body, content=content, headers=sent)

        return asyncio.run(send())

    def close(self) -> None:
        """End."""
        self.audit.close()
        self.engine.close()
