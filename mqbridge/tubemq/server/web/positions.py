"""Where groups are, and how they are moved.

Partitions that consumers have here are moved through these; the others in the cluster, or in the state file.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.listener.limits import limited
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.server.broker import ServedBroker
from mqbridge.tubemq.server.consumers import Consumers
from mqbridge.tubemq.server.lanes import PartitionId
from mqbridge.tubemq.server.partition import PartitionOwnership, ServedPartition


class GroupPosition(NamedTuple):
    """Where a group is in a partition: the number before which everything is confirmed, and how far it was handed out."""

    confirmed: int
    read_end: int


class GroupPositions:
    """See the module."""

    def __init__(self, broker: ServedBroker, consumers: Consumers) -> None:
        self._broker, self._consumers = broker, consumers

    def _owned(self, topic: ListenedTopic, group: str, index: int) -> ServedPartition | None:
        """Return a partition that a consumer has here, or gets just now."""
        known = self._consumers.groups.get(group)
        served = None if known is None else known.partitions.get(PartitionId(topic.name, index))
        return None if served is None or served.state is PartitionOwnership.FREE else served

    async def of(self, topic: ListenedTopic, group: str) -> dict[int, GroupPosition]:
        """Return the positions of a group, by partition; none where it has none. Raises RequestRefused, ClusterError."""
        async with limited(f"reading the offsets of group {group} in topic {topic.name}"):
            committed = await self._broker.services.groups.committed(topic, group)
        numbers = {index: self._broker.services.numbering.number(position) for index, position in committed.items()}
        found = {index: GroupPosition(number, number) for index, number in numbers.items()}
        for index in topic.partitions:
            served = self._owned(topic, group, index)
            if served is not None and served.state is not PartitionOwnership.OPENING:
                found[index] = GroupPosition(served.confirmed, served.read_end)
        return found

    async def move(self, topic: ListenedTopic, group: str, numbers: Mapping[int, int]) -> None:
        """Move a group to these numbers, by partition. Raises RequestRefused, ClusterError."""
        await asyncio.shield(spawn(self._move(topic, group, numbers), f"move of group {group}", log_errors=False))

    async def _move(self, topic: ListenedTopic, group: str, numbers: Mapping[int, int]) -> None:
        owned = {index: served for index in numbers if (served := self._owned(topic, group, index)) is not None}
        await self._move_unowned(topic, group, {index: number for index, number in numbers.items() if index not in owned})
        for index, served in owned.items():
            if not await served.move(numbers[index]):
                await self._move_unowned(topic, group, {index: numbers[index]})

    async def _move_unowned(self, topic: ListenedTopic, group: str, numbers: Mapping[int, int]) -> None:
        if not numbers:
            return
        positions = {index: self._broker.position(number) for index, number in numbers.items()}
        await self._broker.services.groups.move(topic, group, positions)
        for index, number in numbers.items():
            if (served := self._owned(topic, group, index)) is not None:  # since now: it may have begun where the group was
                await served.move(number)
