"""A client's responses to requests of administration tools, which the broker forwards: report state, or consume a message."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body, member
from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData
from mqbridge.rocketmq.wire.bodies.queue import Queue

CONSUMED = "CR_SUCCESS"
LATER = "CR_LATER"
THREW = "CR_THROW_EXCEPTION"
"""Values of `result`: the application consumed the message, wants it later, or raised an exception."""


@dataclass(frozen=True, slots=True)
class RunningInfo(Body):
    """Response to GET_CONSUMER_RUNNING_INFO: the state of a consumer.

    `queues` contains the positions and counts of each queue, named like the fields of Java's ProcessQueueInfo.
    """

    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...] = member("subscriptionSet", ())
    queues: Mapping[Queue, Mapping[str, Any]] = member("mqTable", dict)

    def _write_only_members(self) -> dict[str, Any]:
        """Return members that the tools expect, but mqbridge does not fill."""
        return {"mqPopTable": {}, "statusTable": {}, "userConsumerInfo": {}}


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult(Body):
    """Response to CONSUME_MESSAGE_DIRECTLY: the result of consuming one message; `spent_ms` is the time it took.

    `order` is True for an orderly consumer. `auto_commit` is False only for an orderly Java consumer that commits by itself. An
    empty `remark` is not written (`sparse`).
    """

    result: str = member("consumeResult")
    spent_ms: int = member("spentTimeMills", 0)
    remark: str = member("remark", "", sparse=True)
    order: bool = False
    auto_commit: bool = True
