"""Clients of a running service, for threads and for event loops; imports nothing of the engine."""

from tierlog.client.async_client import AsyncClient
from tierlog.client.async_consumer import AsyncConsumer
from tierlog.client.client import Client
from tierlog.client.consumer import Consumer
from tierlog.client.consumer_settings import ConsumerCounts, Consuming, Decision, Start
from tierlog.client.models import (
    Appended,
    AxisHint,
    Coverage,
    CoveredRange,
    GroupInfo,
    IntervalCounts,
    Membership,
    Message,
    Page,
    PulledPage,
    QueueInfo,
    QueueProgress,
    QueueRef,
    StoreCoverage,
    StoredMessage,
    TopicInfo,
)
from tierlog.client.paging import AsyncPages, Pages
from tierlog.client.producers import AsyncProducer, Batching, Producer
from tierlog.client.requests import RetryPolicy
from tierlog.tiering.base.types import Boundary, Durability, Order, PullStatus, Tier, TimeAxis

__all__ = [
    "Appended",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncPages",
    "AsyncProducer",
    "AxisHint",
    "Batching",
    "Boundary",
    "Client",
    "Consumer",
    "ConsumerCounts",
    "Consuming",
    "Coverage",
    "CoveredRange",
    "Decision",
    "Durability",
    "GroupInfo",
    "IntervalCounts",
    "Membership",
    "Message",
    "Order",
    "Page",
    "Pages",
    "Producer",
    "PullStatus",
    "PulledPage",
    "QueueInfo",
    "QueueProgress",
    "QueueRef",
    "RetryPolicy",
    "Start",
    "StoreCoverage",
    "StoredMessage",
    "Tier",
    "TimeAxis",
    "TopicInfo",
]
