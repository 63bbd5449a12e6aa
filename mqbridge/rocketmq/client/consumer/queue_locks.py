"""Queue locks of orderly groups: a member reads a queue only while it holds the lock at the broker, so two never read it at once.

A lock expires at the broker 60 s after the last LOCK_BATCH_MQ. `HeldQueues` renews it every 20 s, and `queue_state.py`
stops the reading 30 s after the last success. So if renewals fail, this member stops before another one can get the lock.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.rocketmq.client.connection.brokers import Brokers, group_by_broker, repeat_if_lost
from mqbridge.rocketmq.client.connection.per_broker_order import PerBrokerOrder
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import Command

log = logging.getLogger(__name__)

RENEW_INTERVAL_S = 20.0
"""Interval at which `HeldQueues` calls `lock` for its queues again, as in the Java clients."""


class QueueLocks:
    """Requests and releases the locks of one member of a group."""

    def __init__(self, brokers: Brokers, group: str, owner: str | None = None) -> None:
        """`owner` is the client id of another member, whose locks are to be released; None: our own locks."""
        self._brokers, self._group, self._owner = brokers, group, owner
        self._order = PerBrokerOrder()

    async def lock(self, queues: Sequence[Queue]) -> tuple[set[Queue], set[Queue]]:
        """Take or renew locks; return the locked queues, and those whose lock another member holds.

        If the request to a broker fails, its queues are in neither set.
        """
        requested_by_broker = group_by_broker(queues)
        locked_by_broker = await asyncio.gather(*(self._lock_at_broker(requested) for requested in requested_by_broker.values()))
        locked: set[Queue] = set()
        refused: set[Queue] = set()
        for requested, locked_there in zip(requested_by_broker.values(), locked_by_broker, strict=True):
            if locked_there is not None:
                locked |= locked_there & set(requested)
                refused |= set(requested) - locked_there
        return locked, refused

    async def _lock_at_broker(self, queues: list[Queue]) -> set[Queue] | None:
        """Lock queues of one broker; return those that we hold now, or None after a failure, which is logged."""
        try:
            response = await self._order.run(queues[0].broker, partial(self._request, Code.LOCK_BATCH_MQ, queues))
            return {Queue(*queue) for queue in LockedQueues.decode(response.body).queues}
        except (ClusterError, ProtocolError) as error:
            log.log(
                retry_log_level(error, logging.WARNING),
                "locking queues of group %s at broker %s failed, retrying within %g s: %s",
                self._group,
                queues[0].broker,
                RENEW_INTERVAL_S,
                error,
            )
            return None

    async def unlock(self, queues: Sequence[Queue]) -> None:
        """Release locks. If a broker cannot be reached, its locks expire within a minute."""
        for broker, locked in group_by_broker(queues).items():
            await self._order.wait_for_earlier(broker)  # a lock request still in flight could lock the queues again
            try:
                await repeat_if_lost(partial(self._request, Code.UNLOCK_BATCH_MQ, locked))
            except ClusterError as error:
                log.log(
                    retry_log_level(error, logging.INFO),
                    "unlocking queues of group %s at broker %s failed (their locks expire within a minute): %s",
                    self._group,
                    broker,
                    error,
                )

    async def _request(self, code: int, queues: Sequence[Queue]) -> Command:
        owner = self._owner or self._brokers.client.client_id
        body = LockRequest(owner, self._group, tuple(queues)).encode()
        return await self._brokers.request(queues[0], code, {}, body)
