"""The service: each call of the protocol, by whom it is answered, and what becomes of its errors.

A call ends with a status of the protocol, whatever happens. gRPC's own errors are for what never reaches a call: too
many at once, a message that is too long, bytes that are none.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from tierlog.service.rocketmq.access import SignedAccess
from tierlog.service.rocketmq.grpc.calls import DoorParts, GrpcCall, client_id_of
from tierlog.service.rocketmq.grpc.clients import GrpcClients
from tierlog.service.rocketmq.grpc.codes import Code, RefusedError, status_of
from tierlog.service.rocketmq.grpc.offsets import Offsets
from tierlog.service.rocketmq.grpc.protocol import CALLS, SERVICE, CallKind
from tierlog.service.rocketmq.grpc.receives import Receives
from tierlog.service.rocketmq.grpc.renewals import Renewals
from tierlog.service.rocketmq.grpc.routes import Routes
from tierlog.service.rocketmq.grpc.sends import Sends
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


class MessagingService:
    """All calls of ``apache.rocketmq.v2.MessagingService`` on one store."""

    def __init__(self, parts: DoorParts, access: SignedAccess) -> None:
        self._access = access
        self.clients = GrpcClients(parts)
        self.renewals = Renewals(parts, self.clients)
        self.sends = Sends(parts)
        routes, offsets = Routes(parts), Offsets(parts)
        receives = Receives(parts, self.clients, self.renewals)
        self._answering: dict[str, Answering] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "SendMessage": self.sends.send_message,
            "RecallMessage": self.sends.recall_message,
            "Heartbeat": self.clients.heartbeat,
            "NotifyClientTermination": self.clients.notify_client_termination,
            "Telemetry": self.clients.telemetry,
            "ReceiveMessage": receives.receive_message,
            "AckMessage": receives.ack_message,
            "ChangeInvisibleDuration": receives.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": receives.forward_message_to_dead_letter_queue,
            "PullMessage": offsets.pull_message,
            "UpdateOffset": offsets.update_offset,
            "GetOffset": offsets.get_offset,
            "QueryOffset": offsets.query_offset,
        }

    def handlers(self) -> Any:
        """Returns what a server of gRPC is given."""
        return grpc.method_handlers_generic_handler(SERVICE, {kind.name: self._handler(kind) for kind in CALLS})

    def _handler(self, kind: CallKind) -> Any:
        return _HANDLERS[kind.request_streams, kind.response_streams](
            self._answer(kind, self._answering.get(kind.name, _not_implemented)),
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
