"""Calls that are passed on to another door, as their client has signed them: that door decides what the caller may.

A gateway passes on what only a store can do, and a store what concerns a message of another one. Both are rare beside
sends. A call is passed on by a store once only, so that a wrong address in the cluster table leads nowhere for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any

import grpc

from tierlog.service.config.settings import Settings
from tierlog.service.rocketmq.access import AUTHORIZATION, DATE_TIME
from tierlog.service.rocketmq.grpc.calls import CLIENT_ID, GrpcCall
from tierlog.service.rocketmq.grpc.protocol import CALLS, SERVICE
from tierlog.tiering.base.errors import UnavailableError
from tierlog.tiering.remote.endpoint import ServiceAccess

_LOG = logging.getLogger("tierlog")
_KINDS = {kind.name: kind for kind in CALLS}
#: Says that a store has passed the call on.
_PASSED = "tierlog-passed-on"
_TIMEOUT_S = 10.0
#: How long after a stream broke it is opened again.
_AGAIN_S = 2.0


def is_passed_on(call: GrpcCall) -> bool:
    """Whether another store has passed the call on, so that it is answered here or refused."""
    return _PASSED in call.metadata


class PassedCalls:
    """Passes calls on. Used on the loop."""

    def __init__(self, settings: Settings) -> None:
        """A process that has a certificate takes it that other doors have one too, and checks it as the environment
        says."""
        self._is_tls = settings.serve.tls_certificate is not None
        self._channels: dict[str, Any] = {}

    async def close(self) -> None:
        """Breaks off what is under way."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def ask(self, address: str, name: str, request: Any, call: GrpcCall, *, by_store: bool = False) -> Any:
        """Returns what the door at ``address`` answers; :class:`UnavailableError` if it does not.

        ``by_store``: that door is not to pass it on again.
        """
        kind, left_s = _KINDS[name], call.time_left()
        run = self._channel(address).unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.response.FromString,
        )
        more = ((_PASSED, "1"),) if by_store else ()
        try:
            return await run(request, timeout=min(left_s or _TIMEOUT_S, _TIMEOUT_S), metadata=_signed(call) + more)
        except grpc.RpcError as error:
            raise UnavailableError(
                f"no answer from the door at {address}: {error.code().name}", hint="it may or may not have been done"
            ) from error

    async def commands(self, address: str, settings: Any, call: GrpcCall) -> AsyncIterator[Any]:
        """Yields what the door at ``address`` tells a client with these settings, until the stream breaks."""
        kind = _KINDS["Telemetry"]
        run = self._channel(address).stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.response.FromString,
        )
        stream = run(metadata=_signed(call))
        try:
            await stream.write(kind.request(settings=settings))
            async for command in stream:
                yield command
        except grpc.RpcError as error:
            _LOG.debug("the stream of commands from %s has ended: %s", address, error)
        finally:
            stream.cancel()

    def _channel(self, address: str) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            if self._is_tls:
                channel = grpc.aio.secure_channel(address, self._credentials)
            else:
                channel = grpc.aio.insecure_channel(address)
            self._channels[address] = channel
        return channel

    @cached_property
    def _credentials(self) -> Any:
        access = ServiceAccess.of()
        key, certificate = access.key or access.certificate, access.certificate
        return grpc.ssl_channel_credentials(
            *(None if path is None else path.read_bytes() for path in (access.ca_file, key, certificate))
        )


class ProducerQuestions:
    """Has a producer at a gateway asked about its transactions, by the store: for as long as its stream is open."""

    def __init__(self, passed: PassedCalls, address: str, call: GrpcCall) -> None:
        self._passed, self._address, self._call = passed, address, call
        self._task: asyncio.Task[None] | None = None

    async def heard(self, commands: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yields what the client says; the store is told the settings of a producer, and asks it from then on."""
        async for command in commands:
            if command.WhichOneof("command") == "settings" and command.settings.WhichOneof("pub_sub") == "publishing":
                self.close()
                self._task = asyncio.ensure_future(self._ask(command.settings))
            yield command

    def close(self) -> None:
        """Asks no more."""
        if self._task is not None:
            self._task.cancel()

    async def _ask(self, settings: Any) -> None:
        while True:
            with contextlib.suppress(Exception):  # the client's own stream has ended, and this will be closed
                async for command in self._passed.commands(self._address, settings, self._call):
                    if command.WhichOneof("command") == "recover_orphaned_transaction_command":
                        await self._call.write(command)
            await asyncio.sleep(_AGAIN_S)


def _signed(call: GrpcCall) -> tuple[tuple[str, str], ...]:
    signature = [(name, call.metadata[name]) for name in (AUTHORIZATION, DATE_TIME) if name in call.metadata]
    return ((CLIENT_ID, call.client_id), *signature)
