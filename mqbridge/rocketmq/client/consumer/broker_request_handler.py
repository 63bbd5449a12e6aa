"""Handles the requests that brokers send to consumers: rebalance, reset offsets, report the state, consume one message.

A client has one handler for all of its groups.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from mqbridge.errors import LocalProtocolError
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.held_queues import HeldQueues
from mqbridge.rocketmq.client.consumer.membership import Membership
from mqbridge.rocketmq.wire.bodies.groups import PASSIVELY
from mqbridge.rocketmq.wire.bodies.offsets import ResetOffsets
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.running_info import LATER, ConsumeDirectlyResult, RunningInfo
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.groups import ConsumeDirectlyHeader, GroupHeader, ResetOffsetHeader, RunningInfoHeader

log = logging.getLogger(__name__)


_handlers_by_client: "WeakKeyDictionary[BaseClient, BrokerRequestHandler]" = WeakKeyDictionary()
"""The handler of each client, for `BrokerRequestHandler.of`; an entry disappears with its client."""


class ServedConsumer(Protocol):
    """The part of a consumer that the handler of broker requests uses."""

    settings: ConsumerSettings
    membership: Membership
    held: HeldQueues
    gaps: dict[Queue, int]
    """Queues that were released at a gap (missing messages), with the offset of the first missing message."""

    async def leave_gap(self, queue: Queue, offset: int) -> None:
        """Continue at `offset` in a queue that stopped, or was released, at a gap."""

    def request_rebalance(self) -> None:
        """Let the consumer rebalance as soon as possible, because the group's members have changed."""


class BrokerRequestHandler:
    """Handles requests for all consumer groups of one client; `of` returns the client's handler."""

    def __init__(self, client: BaseClient) -> None:
        self._consumers: dict[str, ServedConsumer] = {}
        """The consumer of each group of which this client has a member."""
        client.on(Code.NOTIFY_CONSUMER_IDS_CHANGED, self._on_members_changed)
        client.on(Code.RESET_CONSUMER_CLIENT_OFFSET, self._on_reset)
        client.on(Code.GET_CONSUMER_RUNNING_INFO, self._report_running_info)
        client.on(Code.CONSUME_MESSAGE_DIRECTLY, self._decline_to_consume)

    @classmethod
    def of(cls, client: BaseClient) -> "BrokerRequestHandler":
        """Return the handler of a client; the first call for a client creates it."""
        handler = _handlers_by_client.get(client)
        if handler is None:
            handler = _handlers_by_client[client] = cls(client)
        return handler

    def register(self, group: str, consumer: ServedConsumer) -> None:
        """Register a consumer. Raises LocalProtocolError if the client has a member of the group already."""
        if group in self._consumers:
            raise LocalProtocolError(f"this client has a member of group {group} already; another member needs its own client")
        self._consumers[group] = consumer

    def unregister(self, group: str, consumer: ServedConsumer) -> bool:
        """Unregister a consumer; return False if it was not registered."""
        if self._consumers.get(group) is not consumer:
            return False
        del self._consumers[group]
        return True

    def _on_members_changed(self, address: str, request: Command) -> None:
        """Let the consumer of the group rebalance."""
        group = GroupHeader.decode(request.ext).consumer_group
        consumer = self._consumers.get(group)
        if consumer is not None:
            log.debug("broker %s: the members of group %s changed, rebalancing", address, group)
            consumer.request_rebalance()

    def _on_reset(self, address: str, request: Command) -> None:
        """Continue at the offsets of an administrator's reset, in the queues that our consumer has or has released at a gap.

        For a queue that is no longer read because of a gap, the new offset is committed, and a rebalance starts the queue there.
        In other queues, reading jumps to the new offset.
        """
        header = ResetOffsetHeader.decode(request.ext)
        consumer = self._consumers.get(header.group)
        if consumer is None:
            return
        for queue, offset in ResetOffsets.decode(request.body).offsets.items():
            assigned = consumer.held.get(queue)
            if assigned is not None and not assigned.state.rests_at_gap:
                spawn(
                    assigned.reset(offset, f"because an administrator has reset the group at broker {address}"),
                    f"rocketmq reset of {assigned}",
                )
            elif assigned is not None or queue in consumer.gaps:
                spawn(consumer.leave_gap(queue, offset), f"rocketmq reset of {queue}")

    def _report_running_info(self, _address: str, request: Command) -> Command:
        """Return the consumer's settings, subscriptions and queues, for the tools of administrators."""
        group = RunningInfoHeader.decode(request.ext).consumer_group
        consumer = self._consumers.get(group)
        if consumer is None:
            return self._unknown_group(request, group)
        properties = {
            "PROP_CONSUMEORDERLY": str(consumer.settings.orderly).lower(),
            "PROP_CONSUME_TYPE": PASSIVELY,
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.membership.version),  # when it got its version, ms since the epoch
            "PROP_CLIENT_VERSION": "V5_3_3",  # the release of `codes.VERSION`, which our requests announce
            "PROP_THREADPOOL_CORE_SIZE": "1",  # of Java's thread pool, which this client does not have
        }
        queues = {queue: _process_queue_info(assigned) for queue, assigned in consumer.held.items()}
        return request.answer(body=RunningInfo(properties, tuple(consumer.membership.subscription_data()), queues).encode())

    def _decline_to_consume(self, _address: str, request: Command) -> Command:
        """Decline to consume a single message at once: the application takes the messages of a queue in order."""
        group = ConsumeDirectlyHeader.decode(request.ext).consumer_group
        consumer = self._consumers.get(group)
        if consumer is None:
            return self._unknown_group(request, group)
        remark = "this consumer takes messages in the order of their queues and cannot consume one alone"
        return request.answer(body=ConsumeDirectlyResult(LATER, remark=remark, order=consumer.settings.orderly).encode())

    def _unknown_group(self, request: Command, group: str) -> Command:
        """Return the response for a group of which this client has no consumer."""
        groups = ", ".join(self._consumers) or "none"
        return request.answer(Status.SYSTEM_ERROR, remark=f"this client has no consumer of group {group}; its groups: {groups}")


def _process_queue_info(assigned: AssignedQueue) -> Mapping[str, Any]:
    """Return a queue's figures, under the names of Java's ProcessQueueInfo (`droped` is spelt so there).

    The cached messages are those that were pulled and are not acknowledged yet; their number is a difference of offsets. Figures
    that we do not record are 0.
    """
    return {
        "cachedMsgCount": assigned.position - assigned.acknowledged,
        "cachedMsgMaxOffset": max(assigned.position - 1, 0),
        "cachedMsgMinOffset": assigned.acknowledged,
        "cachedMsgSizeInMiB": assigned.held_bytes >> 20,
        "commitOffset": assigned.acknowledged,
        "droped": assigned.revoked,
        "lastConsumeTimestamp": 0,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": assigned.answered_ms,
        "locked": assigned.state.locked_at is not None,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
