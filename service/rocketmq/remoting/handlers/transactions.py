"""Transactions: what producers say became of one, and how they are asked.

A message that is prepared is stored as a half message (:mod:`~service.rocketmq.remoting.handlers.sending`), which its
producer names by its offset in the log and in the half topic when it ends it. Where it says nothing, one of its group's
producers gets CHECK_TRANSACTION_STATE with the message, and ends the transaction by the same request.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.transactions import TransactionOutcome
from tierlog.service.rocketmq.remoting.broker import Broker
from tierlog.service.rocketmq.remoting.calls import CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.tiering.base.errors import InvalidRequestError, MessageNotFoundError
from tierlog.tiering.format.properties import UNIQ_KEY
from tierlog.tiering.format.record import SysFlag, encode_record
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.message.waiting import REAL_QUEUE, REAL_TOPIC
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

_OUTCOMES: Mapping[int, TransactionOutcome] = {
    0: TransactionOutcome.UNKNOWN,
    int(SysFlag.TRANSACTION_COMMIT): TransactionOutcome.COMMIT,
    int(SysFlag.TRANSACTION_ROLLBACK): TransactionOutcome.ROLLBACK,
}


@handles(RequestCode.END_TRANSACTION, lane=CallLane.APPEND)
def end_transaction(call: RemotingCall) -> RemotingAnswer:
    """Ends a transaction, durably; one whose producer does not know yet stays open."""
    outcome = _OUTCOMES.get(call.number("commitOrRollback"))
    if outcome is None:
        raise InvalidRequestError(f"commitOrRollback is {call.number('commitOrRollback')}")
    physical_offset, queue_offset = call.number("commitLogOffset"), call.number("tranStateTableOffset")
    found = call.broker.store.message_at(physical_offset)
    topic = "" if found is None else found.record.properties.get(REAL_TOPIC, "")
    if not call.caller.may(Scope.PRODUCE, topic):
        return refusal(ResponseCode.SYSTEM_ERROR, f"no half message {queue_offset} lies at {physical_offset}")
    try:
        call.broker.transactions.end(physical_offset, queue_offset, outcome, group=call.text("producerGroup"))
    except (InvalidRequestError, MessageNotFoundError) as error:
        return refusal(ResponseCode.SYSTEM_ERROR, error.message)
    return RemotingAnswer()


class ProducersOfDoor:
    """Asks the producers that are connected to one door, those of a group in turn. Thread safe."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turn = count()
        self._lock = threading.Lock()

    def ask(self, group: str, message: StoredMessage) -> bool:
        """Asks one of the group's producers; False if none is there."""
        members = self._broker.clients.producers(group)
        if not members:
            return False
        with self._lock:
            member = members[next(self._turn) % len(members)]
        half = message.record
        properties = half.properties
        queue = properties.get(REAL_QUEUE, "0")
        queue_id = int(queue) if queue.isascii() and queue.isdigit() else 0
        told = replace(half, topic=properties.get(REAL_TOPIC, half.topic), queue_id=queue_id)
        key = properties.get(UNIQ_KEY, half.message_id)
        fields = {
            "commitLogOffset": str(half.physical_offset),
            "msgId": key,
            "offsetMsgId": half.message_id,
            "topic": told.topic,
            "tranStateTableOffset": str(half.queue_offset),
            "transactionId": key,
        }
        push = partial(member.connection.push, RequestCode.CHECK_TRANSACTION_STATE, fields, encode_record(told))
        self._broker.call_soon(push)
        return True
