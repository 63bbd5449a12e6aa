"""A member of a consumer group with connections of its own: members of one group need different client ids."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Literal, Self

from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings, StartOffset
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.client.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.sendback import MAX_TIMES, SendBack

Mode = Literal["clustering", "broadcasting"]
Strategy = Literal["averagely", "circle", "consistent_hash"]


class GroupMember:
    """Takes queues and pulls them; made by `RocketMQClient.pull_consumer`. Its `assigned_queues` are the queues, pull by pull."""

    def __init__(self, client: ClusterClient, consumer: PullConsumer, max_redeliveries: int) -> None:
        self.settings, self.name = consumer.settings, consumer.name
        self.send_back = SendBack(client, consumer.settings.group, max_times=max_redeliveries)
        """Sends records back to the group's retry topic, or to its dead letters."""
        self._client, self._consumer = client, consumer
        self._closing: asyncio.Task[None] | None = None

    @property
    def positions(self) -> Positions:
        """First and next offsets, offsets by time, committed offsets."""
        return self._client.positions

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closing is not None

    def assigned_queues(self) -> AsyncIterator[AssignedQueue]:
        """Iterate over the queues as they become this member's; ends with `close`. Raises ClusterError: close it then."""
        return self._consumer.assigned_queues()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit, give the queues back, leave the group, and close the connections."""
        if self._closing is None:
            deadline = asyncio.get_running_loop().time() + timeout
            self._closing = spawn(self._close(deadline), f"rocketmq closing {self.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float) -> None:
        try:
            await self._consumer.close(deadline)
        finally:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def join_group(
    make_client: Callable[[], ClusterClient], settings: ConsumerSettings, *, max_redeliveries: int = MAX_TIMES
) -> GroupMember:
    """Connect and join. Raises ClusterError."""
    client = make_client()
    try:
        await client.connect()
        return GroupMember(client, await join(client, settings), max_redeliveries)
    except BaseException:
        await client.close()
        raise


def start_of(start: Start | datetime) -> tuple[StartOffset, int]:
    """Where a group without offsets begins, as `ConsumerSettings` has it."""
    if isinstance(start, datetime):
        return StartOffset.TIMESTAMP, round(start.timestamp() * 1000)
    return (StartOffset.EARLIEST if start == "earliest" else StartOffset.LATEST), 0
