"""Offsets of broadcasting groups. Brokers do not store them; each member has its own, in a store that the caller supplies.

An offset is the next one to read: all messages of the queue below it are acknowledged.
"""

from collections.abc import Mapping
from typing import Protocol

from mqbridge.rocketmq.wire.bodies.queue import Queue


class BroadcastOffsets(Protocol):
    """Stores offsets across restarts. A method that fails raises ClusterError; the consumer calls it again later."""

    async def load(self, queue: Queue) -> int | None:
        """Return the saved offset; None if there is none."""

    async def save(self, offsets: Mapping[Queue, int]) -> None:
        """Save the offsets of these queues; those of other queues stay."""


class MemoryOffsets:
    """Offsets in memory, lost with the process."""

    def __init__(self) -> None:
        self.offsets: dict[Queue, int] = {}

    async def load(self, queue: Queue) -> int | None:
        """Return the saved offset; None if there is none."""
        return self.offsets.get(queue)

    async def save(self, offsets: Mapping[Queue, int]) -> None:
        """Save the offsets of these queues; those of other queues stay."""
        self.offsets.update(offsets)
