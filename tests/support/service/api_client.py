"""Requests to an application in this process, without a socket."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import FastAPI


class ApiClient:
    """Asks one application; each request runs on an event loop of its own."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def request(self, method: str, path: str, body: object = None) -> httpx.Response:
        """The answer to one request, with ``body`` as JSON."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.request(method, path, json=body)

        return asyncio.run(ask())
