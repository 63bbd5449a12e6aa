"""A member of a consumer group. It has its own connections, because brokers identify the members of a group by client id."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Literal, Self

from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.admin.positions import Positions
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, StartOffset
from mqbridge.rocketmq.client.consumer.offset_store import NoOffsets
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.sendback import MAX_REDELIVERIES, SendBack

Mode = Literal["clustering", "broadcasting"]
"""With `clustering`, the members of a group divide the queues; with `broadcasting`, every member reads all queues."""
Strategy = Literal["averagely", "circle", "consistent_hash"]
"""How the members of a group divide the queues; `allocation_strategies` implements each."""


class GroupMember:
    """A member of a group, or a reader of given queues, opened by `RocketMQClient.pull_consumer`.

    The application receives the pulls of each queue that `assigned_queues` yields (`AssignedQueue.receive`), and commits them
    (`AssignedQueue.commit`). After `max_redeliveries`, a message that `send_back` sends back becomes a dead letter.
    """

    def __init__(self, client: ClusterClient, consumer: PullConsumer, max_redeliveries: int) -> None:
        self._home = HomeLoop(f"the member {consumer.name}")
        self.settings, self.name = consumer.settings, consumer.name  # `name` is for logs and errors
        self.send_back = SendBack(client, consumer.settings.group, max_redeliveries=max_redeliveries)
        """Sends records back to the group's retry topic, or to its dead letter topic."""
        self._client, self._consumer = client, consumer
        self._close_task: asyncio.Task[None] | None = None

    @property
    def positions(self) -> Positions:
        """Look-ups of offsets in a queue: of its first message, of the next one to be stored, at a time, committed by a group."""
        return self._client.positions

    @property
    def stores_offsets(self) -> bool:
        """True if acknowledgements are stored: by the brokers, or in broadcasting by the application's store."""
        return not isinstance(self._consumer.store, NoOffsets)

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._close_task is not None

    def assigned_queues(self) -> AsyncIterator[AssignedQueue]:
        """Yield each queue when it is assigned to this member, until `close`.

        Raises ClusterError if another member has other subscriptions, or if a permission is missing: then close the member.
        """
        self._home.check()
        return self._consumer.assigned_queues()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the offsets, release the queues and leave the group, within `timeout` seconds; then close the connections.

        A second call waits for the first, whose `timeout` applies.
        """
        if self._home.is_over():
            return
        if self._close_task is None:
            deadline = asyncio.get_running_loop().time() + timeout
            self._close_task = spawn(self._close(deadline), f"rocketmq closing {self.name}")
        await asyncio.shield(self._close_task)

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
    make_client: Callable[[], ClusterClient], settings: ConsumerSettings, *, max_redeliveries: int = MAX_REDELIVERIES
) -> GroupMember:
    """Connect the client that `make_client` returns, and join the group with it. Raises ClusterError."""
    client = make_client()
    try:
        await client.connect()
        return GroupMember(client, await join(client, settings), max_redeliveries)
    except BaseException:
        await client.close()
        raise


def parse_start(start: Start | datetime) -> tuple[StartOffset, int]:
    """Return the settings `start` and `start_ms` of ConsumerSettings for this start of a group without committed offsets.

    `start_ms` is used only with a time, and 0 otherwise.
    """
    if isinstance(start, datetime):
        return StartOffset.TIMESTAMP, round(start.timestamp() * 1000)
    return (StartOffset.EARLIEST if start == "earliest" else StartOffset.LATEST), 0
