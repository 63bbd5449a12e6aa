"""Administrative operations on groups and topics: list members, move a group, find offsets by time, show settings.

A Broker knows the members of a group. Each member reports its own queues, and is queried through the Broker.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from time import time as now_s
from typing import Protocol

from mqbridge.adapter.operations import Member, backlog_from_offsets, newest_from_offsets
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position
from mqbridge.retention import LATE, group_warnings, target_warnings
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, TopicConfig
from mqbridge.rocketmq.wire.bodies.connections import Connection
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import Perm
from mqbridge.rocketmq.wire.bodies.running_info import RunningInfo
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.groups import RunningInfoHeader

_PERMS = {Perm.READ: "read", Perm.WRITE: "write", Perm.READ_WRITE: "read and write"}


def partition_name(queue: Queue) -> str:
    """Return the partition name of a queue."""
    return f"{queue.broker}:{queue.id}"


class TopicQueries(Protocol):
    """Queries about topics, answered by the adapter's cluster."""

    async def queues(self, topic: str) -> Sequence[Queue]:
        """Return the queues of a topic. Raises ClusterError."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Return the first and the next offset of every queue, by partition name."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the committed offsets of a group, by partition name."""


class RocketMQOperations:
    """Operations on one connected cluster. Each call raises ClusterError."""

    backlog_unit = "messages"

    def __init__(self, client: ClusterClient, topics: TopicQueries) -> None:
        self._client, self._topics = client, topics
        self._admin, self._positions, self._groups = client.admin, client.positions, client.groups

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that consume the topic, or have offsets in it."""
        return await self._groups.groups_of(topic)

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the number of messages behind the group's offset, by partition."""
        return backlog_from_offsets(*await asyncio.gather(self._topics.committed(topic, group), self._topics.bounds(topic)))

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the connected members of the group, each with the queues of the topic that it reports."""
        found = await self._groups.consumers(group)
        if found is None or topic not in {subscription.topic for subscription in found.subscriptions}:
            return []
        members = found.connections
        queues = await asyncio.gather(*(self._queues(group, topic, member) for member in members))
        return [Member(member.client_id, member.address, names) for member, names in zip(members, queues, strict=True)]

    async def _queues(self, group: str, topic: str, member: Connection) -> tuple[str, ...] | None:
        """Return a member's queues; None if it does not answer or cannot report any (a client of a 5.x proxy)."""
        ext = RunningInfoHeader(group, member.client_id).encode()
        for address in (await self._admin.masters()).values():
            try:
                response = await self._client.request(address, Code.GET_CONSUMER_RUNNING_INFO, ext)
            except ClusterError:
                continue  # the member may be connected to another Broker
            queues = RunningInfo.decode(response.body).queues
            return tuple(partition_name(queue) for queue in sorted(queues) if queue.topic == topic)
        return None

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Commit these offsets for the group.

        Raises ClusterError (FATAL) while the group has members, because they would overwrite the offsets with their own.
        """
        if (found := await self._groups.consumers(group)) is not None and found.connections:
            names = ", ".join(member.client_id for member in found.connections)
            raise ClusterError(f"group {group!r} is being consumed by {names}: stop it, then move it", Failure.FATAL)
        known = {partition_name(queue): queue for queue in await self._topics.queues(topic)}
        if unknown := positions.keys() - known.keys():
            raise ClusterError(f"topic {topic!r} has no queue {', '.join(sorted(unknown))}", Failure.FATAL)
        if group not in await self._groups.configs():
            await self._groups.create(GroupConfig(group))
        await self._groups.write(group, {known[name]: position[0] for name, position in positions.items()})

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Return the offset of the first message stored at or after this time (ms since 1970), by partition."""
        queues = await self._topics.queues(topic)
        offsets = await asyncio.gather(*(self._positions.at(queue, time_ms) for queue in queues))
        return {partition_name(queue): (offset,) for queue, offset in zip(queues, offsets, strict=True)}

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return the position `count` messages before the end, by partition."""
        return newest_from_offsets(await self._topics.bounds(topic), count)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the topic's settings; where Brokers differ, the text lists the value at each Broker."""
        found: dict[str, dict[str, str]] = {}
        for broker, config in (await self._admin.topic_config(topic)).items():
            for name, value in _topic_settings(config).items():
                found.setdefault(name, {})[broker] = value
        return {name: _joined(values) for name, values in found.items()}

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Return warnings about retention: Brokers delete messages after `fileReservedTime` hours, consumed or not."""
        configs = await self._admin.at_masters(self._admin.broker_config)
        retention_hours = [int(config["fileReservedTime"]) for config in configs.values() if "fileReservedTime" in config]
        if not retention_hours:
            return []
        hours = min(retention_hours)
        setting = f"fileReservedTime={hours}"
        if group is None:
            return target_warnings(topic, setting, hours * 3600.0)
        late_ms = round((now_s() - hours * 3600 * LATE) * 1000)
        committed, bounds, at_late = await asyncio.gather(
            self._topics.committed(topic, group), self._topics.bounds(topic), self.position_at(topic, late_ms)
        )
        return group_warnings(topic, group, setting, committed, bounds, at_late)


def _topic_settings(config: TopicConfig) -> dict[str, str]:
    return {
        "permission": _PERMS.get(config.perm, str(config.perm)),
        "read_queues": str(config.read_queues),
        "write_queues": str(config.write_queues),
        "order": str(config.order).lower(),
        **config.attributes,
    }


def _joined(values: Mapping[str, str]) -> str:
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{value} at {broker}" for broker, value in values.items())
