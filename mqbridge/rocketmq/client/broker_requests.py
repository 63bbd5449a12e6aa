"""What brokers ask a consumer: to look at its group again, to go to other offsets, what it is doing, to consume one message.

A client has one handler for all of its groups.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from mqbridge.errors import LocalProtocolError
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.held_queues import HeldQueues
from mqbridge.rocketmq.client.membership import Membership
from mqbridge.rocketmq.client.spec import GroupSpec
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.wire.bodies.groups import PASSIVELY
from mqbridge.rocketmq.wire.bodies.offsets import ResetOffsets
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.running import LATER, DirectResult, RunningInfo
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.groups import ConsumeDirectlyHeader, GroupHeader, ResetOffsetHeader, RunningInfoHeader

log = logging.getLogger(__name__)


_handlers_by_client: "WeakKeyDictionary[BaseClient, BrokerRequestHandler]" = WeakKeyDictionary()


class ServedConsumer(Protocol):
    """A consumer, as the handler of broker requests sees it."""

    spec: GroupSpec
    membership: Membership
    held: HeldQueues
    gaps: dict[Queue, int]

    async def leave_gap(self, queue: Queue, offset: int) -> None:
        """Go on with a queue that stands at a gap, or was given back at one."""

    def look_again(self) -> None:
        """Divide the queues anew."""


class BrokerRequestHandler:
    """Answers for the groups of one client. `of` gives the client's own."""

    def __init__(self, client: BaseClient) -> None:
        self._consumers: dict[str, ServedConsumer] = {}
        client.on(Code.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        client.on(Code.RESET_CONSUMER_CLIENT_OFFSET, self._reset)
        client.on(Code.GET_CONSUMER_RUNNING_INFO, self._running_info)
        client.on(Code.CONSUME_MESSAGE_DIRECTLY, self._directly)

    @classmethod
    def of(cls, client: BaseClient) -> "BrokerRequestHandler":
        """The handler of a client."""
        handler = _handlers_by_client.get(client)
        if handler is None:
            handler = _handlers_by_client[client] = cls(client)
        return handler

    def admit(self, group: str, consumer: ServedConsumer) -> None:
        """Answer for this consumer. Raises LocalProtocolError when the client has a member of the group already."""
        if group in self._consumers:
            raise LocalProtocolError(f"this client has a member of group {group} already; another one needs a client of its own")
        self._consumers[group] = consumer

    def dismiss(self, group: str, consumer: ServedConsumer) -> bool:
        """Answer no more for this consumer; False when it was not answered for."""
        if self._consumers.get(group) is not consumer:
            return False
        del self._consumers[group]
        return True

    def _members_changed(self, address: str, request: Command) -> None:
        group = GroupHeader.decode(request.ext).consumer_group
        consumer = self._consumers.get(group)
        if consumer is not None:
            log.debug("%s says that the members of group %s changed", address, group)
            consumer.look_again()

    def _reset(self, address: str, request: Command) -> None:
        header = ResetOffsetHeader.decode(request.ext)
        consumer = self._consumers.get(header.group)
        if consumer is None:
            return
        for queue, offset in ResetOffsets.decode(request.body).offsets.items():
            stream = consumer.held.get(queue)
            if stream is not None and not stream.state.rests_at_gap:
                spawn(stream.reset(offset, f"as an administrator has told {address}"), f"rocketmq reset of {stream}")
            elif stream is not None or queue in consumer.gaps:
                spawn(consumer.leave_gap(queue, offset), f"rocketmq reset of {queue}")

    def _running_info(self, _address: str, request: Command) -> Command:
        consumer = self._consumers.get(RunningInfoHeader.decode(request.ext).consumer_group)
        if consumer is None:
            return self._unknown(request)
        properties = {
            "PROP_CONSUMEORDERLY": str(consumer.spec.orderly).lower(),
            "PROP_CONSUME_TYPE": PASSIVELY,
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.membership.version),
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_THREADPOOL_CORE_SIZE": "1",
        }
        queues = {queue: _process(stream) for queue, stream in consumer.held.items()}
        return request.answer(body=RunningInfo(properties, tuple(consumer.membership.data()), queues).encode())

    def _directly(self, _address: str, request: Command) -> Command:
        """Only the application can consume, and it takes whole answers in order: the tool is told so."""
        consumer = self._consumers.get(ConsumeDirectlyHeader.decode(request.ext).consumer_group)
        if consumer is None:
            return self._unknown(request)
        remark = "this consumer takes messages in the order of their queues and cannot consume one alone"
        return request.answer(body=DirectResult(LATER, remark=remark, order=consumer.spec.orderly).encode())

    def _unknown(self, request: Command) -> Command:
        groups = ", ".join(self._consumers) or "none"
        return request.answer(Status.SYSTEM_ERROR, remark=f"no such consumer group in this client; it has {groups}")


def _process(stream: QueueStream) -> Mapping[str, Any]:
    """One queue's numbers, as Java's ProcessQueueInfo has them. Messages that wait are counted by their offsets."""
    return {
        "cachedMsgCount": stream.position - stream.committed,
        "cachedMsgMaxOffset": max(stream.position - 1, 0),
        "cachedMsgMinOffset": stream.committed,
        "cachedMsgSizeInMiB": stream.held_bytes >> 20,
        "commitOffset": stream.committed,
        "droped": stream.revoked,
        "lastConsumeTimestamp": 0,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": stream.answered_ms,
        "locked": stream.state.locked_at is not None,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
