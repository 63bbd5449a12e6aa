"""Where a broadcasting group stands: no broker keeps that, every member has its own offsets in a store that the caller gives."""

from collections.abc import Mapping
from typing import Protocol

from mqbridge.rocketmq.wire.bodies.queue import Queue


class BroadcastOffsets(Protocol):
    """Keeps offsets across restarts. When it cannot it raises ClusterError, and is asked again later."""

    async def load(self, queue: Queue) -> int | None:
        """The offset saved last; None when there is none."""

    async def save(self, offsets: Mapping[Queue, int]) -> None:
        """Keep these, beside those of other queues."""


class MemoryOffsets:
    """Offsets that last as long as the process."""

    def __init__(self) -> None:
        self.offsets: dict[Queue, int] = {}

    async def load(self, queue: Queue) -> int | None:
        """What was saved."""
        return self.offsets.get(queue)

    async def save(self, offsets: Mapping[Queue, int]) -> None:
        """Keep them."""
        self.offsets.update(offsets)
