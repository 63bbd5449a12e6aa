"""Queue locks of orderly groups: a member reads a queue only while it holds the lock at the broker, so two never read it at once.

A lock at a broker expires 60 s after it was last taken. We renew it every 20 s and trust it for 30 s, so that we stop in time
even if renewals fail.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.rocketmq.client.brokers import Brokers, by_broker, twice
from mqbridge.rocketmq.client.per_broker_order import PerBrokerOrder
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import Command

log = logging.getLogger(__name__)

RENEW_S = 20.0
"""The interval of the Java clients; see `LOCK_VALID_S` for how long a lock is trusted."""


class QueueLocks:
    """The locks of one member of a group."""

    def __init__(self, brokers: Brokers, group: str) -> None:
        self._brokers, self._group = brokers, group
        self._order = PerBrokerOrder()

    async def lock(self, queues: Sequence[Queue]) -> tuple[set[Queue], set[Queue]]:
        """Take or renew locks; return the locked and the refused queues. Queues of a silent broker are in neither."""
        by_name = by_broker(queues)
        answers = await asyncio.gather(*(self._lock(group) for group in by_name.values()))
        locked: set[Queue] = set()
        refused: set[Queue] = set()
        for group, answer in zip(by_name.values(), answers, strict=True):
            if answer is not None:
                locked |= answer & set(group)
                refused |= set(group) - answer
        return locked, refused

    async def _lock(self, queues: list[Queue]) -> set[Queue] | None:
        try:
            answer = await self._order.take(queues[0].broker, partial(self._ask, Code.LOCK_BATCH_MQ, queues))
            return {Queue(*queue) for queue in LockedQueues.decode(answer.body).queues}
        except (ClusterError, ProtocolError) as error:
            log.log(
                level_of(error, logging.WARNING),
                "queues of group %s could not be locked at broker %s: %s",
                self._group,
                queues[0].broker,
                error,
            )
            return None

    async def unlock(self, queues: Sequence[Queue]) -> None:
        """Release locks. If a broker cannot be reached, its locks expire after a minute."""
        for broker, group in by_broker(queues).items():
            await self._order.wait(broker)
            try:
                await twice(partial(self._ask, Code.UNLOCK_BATCH_MQ, group))
            except ClusterError as error:
                log.log(
                    level_of(error, logging.INFO),
                    "queues of group %s could not be unlocked, their locks expire within a minute: %s",
                    self._group,
                    error,
                )

    async def _ask(self, code: int, queues: Sequence[Queue]) -> Command:
        body = LockRequest(self._brokers.client.client_id, self._group, tuple(queues)).encode()
        return await self._brokers.ask(queues[0], code, {}, body)
