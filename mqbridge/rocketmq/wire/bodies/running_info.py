"""Requests that a broker forwards to a client for a tool: report your state, consume one message at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body, member
from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData
from mqbridge.rocketmq.wire.bodies.queue import Queue

CONSUMED, LATER, THREW = "CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"
"""Results of consuming one message."""


@dataclass(frozen=True, slots=True)
class RunningInfo(Body):
    """Response to GET_CONSUMER_RUNNING_INFO: the state of a consumer.

    `queues` holds the figures of each queue under the names of Java's ProcessQueueInfo.
    """

    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...] = member("subscriptionSet", ())
    queues: Mapping[Queue, Mapping[str, Any]] = member("mqTable", dict)

    def _also_written(self) -> dict[str, Any]:
        return {"mqPopTable": {}, "statusTable": {}, "userConsumerInfo": {}}


@dataclass(frozen=True, slots=True)
class DirectResult(Body):
    """Response to CONSUME_MESSAGE_DIRECTLY: the result of consuming one message; `spent_ms` is the time it took."""

    result: str = member("consumeResult")
    spent_ms: int = member("spentTimeMills", 0)
    remark: str = member("remark", "", sparse=True)
    order: bool = False
    auto_commit: bool = True
