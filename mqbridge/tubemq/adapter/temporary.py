"""Reading for a moment without moving anybody's group: a group of its own that takes every partition at once.

Such a member balances itself, so it need not wait until the Master hands out partitions, which takes it half a minute as
shipped. What a Broker keeps of its group is removed by the next temporary reader, as far as `admin_url` is set: see `operate`.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping

from mqbridge.adapter import InboundSpec, Start
from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.message import Position
from mqbridge.tubemq.adapter.operations import READERS, Operator
from mqbridge.tubemq.client.balanced import BalancedConsumer
from mqbridge.tubemq.client.held_partitions import From
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)


class TemporaryConsumer:
    """Hands out all partitions, each once; like `Consumer` for an inbound."""

    def __init__(
        self,
        masters: Masters,
        spec: InboundSpec,
        admin: Operator | None,
        *,
        heartbeat_s: float,
        max_gets: int,
        priority: int | None,
    ) -> None:
        self._positions: Mapping[str, Position] = spec.positions
        self._admin = admin
        self._consumer = BalancedConsumer(
            masters,
            READERS + secrets.token_hex(6),
            spec.topics,
            start=From.EARLIEST if spec.start is Start.EARLIEST else From.ALWAYS_LATEST,
            filters=dict.fromkeys(spec.topics, spec.msg_types) if spec.msg_types else None,
            heartbeat_s=heartbeat_s,
            max_gets=max_gets,
            priority=priority,
        )
        self._left: deque[PartitionRef] = deque()
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Register, and learn the partitions. Raises ClusterError."""
        await self._consumer.start()
        try:
            self._left += await self._consumer.share()
        except BaseException:
            await self._consumer.close()
            raise

    async def assignments(self) -> AsyncIterator[HeldPartition]:
        """Every partition that could be read at the start; ends with `close`. Raises ClusterError when one cannot be taken."""
        while self._left and not self._closed.is_set():
            ref = self._left.popleft()
            position = self._positions.get(ref.name)
            session = await self._consumer.take(ref.key, None if position is None else position[0])
            if not session.revoked.is_set():
                yield session
        await self._closed.wait()

    async def close(self, deadline: float | None = None) -> None:
        """Leave, and sweep up after those before us."""
        self._closed.set()
        await self._consumer.close(deadline)
        if self._admin is not None:
            try:
                await self._admin.sweep(READERS)
            except (ClusterError, ProtocolError) as error:
                log.info("groups of earlier temporary readers stay: %s", error)
