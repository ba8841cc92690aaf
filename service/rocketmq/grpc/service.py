"""The service: each call of the protocol, by whom it is answered, and what becomes of its errors.

A call ends with a status of the protocol, whatever happens. gRPC's own errors are for what never reaches a call: too
many at once, a message that is too long, bytes that are none.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from tierlog.service.rocketmq.access import SignedAccess
from tierlog.service.rocketmq.grpc.calls import GrpcCall, client_id_of
from tierlog.service.rocketmq.grpc.codes import Code, RefusedError, status_of
from tierlog.service.rocketmq.grpc.protocol import CALLS, SERVICE, CallKind
from tierlog.tiering.base.errors import StoreError

_LOG = logging.getLogger("tierlog")
#: Answers a call; what streams writes its answers itself.
Answering = Callable[[Any, GrpcCall], Awaitable[Any]]
#: By whether requests and responses stream.
_HANDLERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def handlers(calls: Mapping[str, Answering], access: SignedAccess) -> Any:
    """Returns what a server of gRPC is given: the calls by name, and those of the protocol that are not served."""
    made = _Handlers(access)
    found = {kind.name: made.handler(kind, calls.get(kind.name, _not_implemented)) for kind in CALLS}
    return grpc.method_handlers_generic_handler(SERVICE, found)


class _Handlers:
    """Calls with the errors that they end with."""

    def __init__(self, access: SignedAccess) -> None:
        self._access = access

    def handler(self, kind: CallKind, answering: Answering) -> Any:
        return _HANDLERS[kind.request_streams, kind.response_streams](
            self._answer(kind, answering),
            request_deserializer=kind.request.FromString,
            response_serializer=kind.response.SerializeToString,
        )

    def _answer(self, kind: CallKind, answering: Answering) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            try:
                return await answering(request, self._call(context))
            except (RefusedError, StoreError) as error:
                response = kind.response(status=status_of(error))
            except Exception as error:
                _LOG.exception("the call %s of a RocketMQ client has failed", kind.name)
                response = kind.response(status=status_of(error))
            if kind.response_streams:
                await context.write(response)
                return None
            return response

        return answer

    def _call(self, context: Any) -> GrpcCall:
        metadata = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        caller = self._access.of_metadata(metadata)
        return GrpcCall(caller, client_id_of(metadata), context.peer(), context.write, context.time_remaining)


async def _not_implemented(request: Any, call: GrpcCall) -> Any:
    raise RefusedError(Code.NOT_IMPLEMENTED, "this call is not served")
