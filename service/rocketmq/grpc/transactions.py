"""Transactions: their ends, and the questions to producers that have not said what became of one.

gRPC's clients name a transaction by a text that the service makes. It says where the half message lies, in its topic
and in the log, so that nothing has to be remembered.
"""

from __future__ import annotations

import re
from itertools import count
from typing import Any

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.transactions import TransactionOutcome
from tierlog.service.engine.append_results import Appended
from tierlog.service.rocketmq.grpc.calls import DoorParts, GrpcCall
from tierlog.service.rocketmq.grpc.clients import GrpcClients
from tierlog.service.rocketmq.grpc.codes import OK, Code, RefusedError
from tierlog.service.rocketmq.grpc.messages import shown_message
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.tiering.base.errors import InvalidRequestError, MessageNotFoundError
from tierlog.tiering.message.stored_message import MESSAGE_ID_PATTERN, StoredMessage, offset_in_message_id
from tierlog.tiering.message.waiting import REAL_TOPIC

_TRANSACTION_ID = re.compile(f"([0-9]{{1,18}})-({MESSAGE_ID_PATTERN})")
_OUTCOMES = {
    enums.TransactionResolution.COMMIT: TransactionOutcome.COMMIT,
    enums.TransactionResolution.ROLLBACK: TransactionOutcome.ROLLBACK,
    enums.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED: TransactionOutcome.UNKNOWN,
}


def transaction_id(half: Appended) -> str:
    """Returns the name of the transaction that a half message is of."""
    return f"{half.queue_offset}-{half.message_id}"


class TransactionEnds:
    """The call EndTransaction, and the questions of a door. Used on the loop."""

    def __init__(self, parts: DoorParts, clients: GrpcClients) -> None:
        self._parts = parts
        self._clients = clients
        self._turn = count()

    async def end_transaction(self, request: Any, call: GrpcCall) -> Any:
        """Ends a transaction, durably; one whose producer does not know yet stays open."""
        topic = call.topic(request.topic, Scope.PRODUCE)
        named = _TRANSACTION_ID.fullmatch(request.transaction_id)
        outcome = _OUTCOMES.get(request.resolution)
        if named is None:
            raise _unknown(request.transaction_id)
        if outcome is None:
            raise RefusedError(Code.BAD_REQUEST, f"there is no resolution {request.resolution}")
        physical_offset = offset_in_message_id(named[2])

        def end() -> None:
            found = self._parts.store.message_at(physical_offset)
            if found is None or found.record.properties.get(REAL_TOPIC) != topic:
                raise MessageNotFoundError("no half message of this topic lies there")
            self._parts.transactions.end(physical_offset, int(named[1]), outcome, group=topic)

        try:
            await self._parts.lanes.change.run(end)
        except (InvalidRequestError, MessageNotFoundError):
            raise _unknown(request.transaction_id) from None
        return messages.EndTransactionResponse(status=OK)

    async def ask(self, topic: str, half: StoredMessage) -> bool:
        """Asks one of the producers of a topic what became of a transaction; False if there is none."""
        producers = self._clients.producers(topic)
        command = messages.RecoverOrphanedTransactionCommand(
            message=shown_message(half, messages.Resource(name=topic)),
            transaction_id=f"{half.record.queue_offset}-{half.record.message_id}",
        )
        turn = next(self._turn)
        for step in range(len(producers)):
            client_id = producers[(turn + step) % len(producers)]
            told = messages.TelemetryCommand(status=OK, recover_orphaned_transaction_command=command)
            if await self._clients.tell(client_id, told):
                return True
        return False


def _unknown(name: str) -> RefusedError:
    return RefusedError(Code.INVALID_TRANSACTION_ID, f"there is no transaction {name[:100]!r}")
