"""Administrative operations on groups and topics: list members, move a group, find offsets by time, show settings."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from time import time as now_s
from typing import Protocol

from mqbridge.adapter.operations import Member, backlog_from_offsets, newest_from_offsets
from mqbridge.adapter.tools.retention import LATE_FRACTION, group_warnings, target_warnings
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position
from mqbridge.rocketmq.adapter.group_deletion import check_no_members, delete_group
from mqbridge.rocketmq.client.admin.read_permission import advice, is_readable, permit_reading
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, TopicConfig
from mqbridge.rocketmq.wire.bodies.connections import ClientConnection
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import Perm
from mqbridge.rocketmq.wire.bodies.running_info import RunningInfo
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.groups import RunningInfoHeader
from mqbridge.wire.limits import is_number

MAX_NAMED_QUEUES = 5
"""How many queues a warning names."""
_PERMISSION_NAMES = {Perm.READ: "read", Perm.WRITE: "write", Perm.READ_WRITE: "read and write"}


def partition_name(queue: Queue) -> str:
    """Return the partition name of a queue: `broker:queue`."""
    return f"{queue.broker}:{queue.id}"


class TopicQueries(Protocol):
    """The part of the adapter's cluster that the operations use."""

    async def queues(self, topic: str) -> Sequence[Queue]:
        """Return the queues of a topic. Raises ClusterError."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Return the offsets of the first message and of the next one to be stored, for every queue, by partition name."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the committed offsets of a group, by partition name."""

    async def why_unseen(self, topic: str) -> str | None:
        """Return which Broker is down that may have queues of this topic or of others; None if there is none."""


class RocketMQOperations:
    """Administrative operations on one connected cluster. Each call raises ClusterError if a request fails."""

    backlog_unit = "messages"

    def __init__(self, client: ClusterClient, topics: TopicQueries) -> None:
        self._client, self._topics = client, topics
        self._admin, self._positions, self._groups = client.admin, client.positions, client.groups

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that consume the topic, or have offsets in it."""
        return await self._groups.groups_of(topic)

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the number of messages that the group has not consumed yet, by partition name."""
        return backlog_from_offsets(*await asyncio.gather(self._topics.committed(topic, group), self._topics.bounds(topic)))

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the connected members of the group, each with those queues of the topic that it says it reads.

        The list is empty if no member is connected, or the members do not subscribe to the topic.
        """
        consumers = await self._groups.consumers(group)
        if consumers is None or topic not in {subscription.topic for subscription in consumers.subscriptions}:
            return []
        members = consumers.connections
        queues = await asyncio.gather(*(self._member_queues(group, topic, member) for member in members))
        return [Member(member.client_id, member.address, names) for member, names in zip(members, queues, strict=True)]

    async def _member_queues(self, group: str, topic: str, member: ClientConnection) -> tuple[str, ...] | None:
        """Return the partition names of a member's queues; None if the member does not report them, like clients of a 5.x proxy.

        Only the member itself knows its queues: a Broker to which it is connected forwards the query to it.
        """
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
        """Commit these offsets, by partition name, for the group. Creates the group if it does not exist.

        Raises ClusterError (FATAL) while the group has members, because they would overwrite the offsets with their own.
        """
        await check_no_members(self._client, group, "then move the group's offsets")
        queues = {partition_name(queue): queue for queue in await self._topics.queues(topic)}
        if unknown := positions.keys() - queues.keys():
            raise ClusterError(f"topic {topic!r} has no queue {', '.join(sorted(unknown))}", Failure.FATAL)
        if group not in await self._groups.configs():
            await self._groups.create(GroupConfig(group))
        await self._groups.write(group, {queues[name]: position[0] for name, position in positions.items()})

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete the group; if it has offsets in other topics, only its offsets in this topic (see `group_deletion`).

        Does nothing if it has none in this topic. Raises ClusterError: FATAL while the group has members, RETRY while a Broker is
        down that may have offsets of it.
        """
        if (reason := await self._topics.why_unseen(topic)) is not None:
            raise ClusterError(f"group {group!r} is not deleted now: {reason}", Failure.RETRY)
        await delete_group(self._client, topic, group, await self._topics.queues(topic))

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Return the offset of the first message stored at or after this time (ms since the epoch), by partition name.

        For a queue without such a message, this is the offset of the next message to be stored.
        """
        queues = await self._topics.queues(topic)
        offsets = await asyncio.gather(*(self._positions.at(queue, time_ms) for queue in queues))
        return {partition_name(queue): (offset,) for queue, offset in zip(queues, offsets, strict=True)}

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return the position `count` messages before the end of each queue, or of its first message, by partition name."""
        return newest_from_offsets(await self._topics.bounds(topic), count)

    async def permit_reading(self, topic: str) -> list[str]:
        """Permit reading of a topic at each Broker that forbids it; return their names."""
        return await permit_reading(self._admin, topic)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the topic's settings by name; if Brokers have different values, the text lists the value of each Broker."""
        by_name: dict[str, dict[str, str]] = {}
        for broker, config in (await self._admin.topic_config(topic)).items():
            for name, value in _topic_settings(config).items():
                by_name.setdefault(name, {})[broker] = value
        return {name: _format_values(values) for name, values in by_name.items()}

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Return warnings about retention: Brokers delete messages after `fileReservedTime` hours, consumed or not.

        With None as `group`, `topic` is a target; otherwise it is a source that the group consumes. A target also gets a warning
        about queues that can be written but not read, a source about a paused group or a topic that may not be read.

        `planned` (groups that are created with the topic) is not used, because retention does not depend on groups.
        """
        others = await (self._unreadable_queues(topic) if group is None else self._paused(topic, group))
        configs = await self._admin.at_masters(self._admin.broker_config)
        retention_hours = [int(text) for config in configs.values() if is_number(text := config.get("fileReservedTime", ""))]
        if not retention_hours:
            return others
        hours = min(retention_hours)  # of the Broker that deletes messages first
        setting = f"fileReservedTime={hours}"
        if group is None:
            return others + target_warnings(topic, setting, hours * 3600.0)
        route = await self._admin.route(topic)
        if route is not None and not route.read_queues():  # reading positions needs readable queues
            return others
        # A group is late if it has not read messages that are older than LATE_FRACTION of the retention, so deleted soon.
        late_ms = round((now_s() - hours * 3600 * LATE_FRACTION) * 1000)
        committed, bounds, late_offsets = await asyncio.gather(
            self._topics.committed(topic, group), self._topics.bounds(topic), self.position_at(topic, late_ms)
        )
        return others + group_warnings(topic, group, setting, committed, bounds, late_offsets)

    async def _paused(self, topic: str, group: str) -> list[str]:
        """Return warnings if Brokers do not let the group consume, or nobody read the topic: its messages wait until they do."""
        try:
            groups, topics = await asyncio.gather(self._groups.configs(), self._admin.topic_config(topic))
        except AccessRefused:  # these credentials may not query it; a refused pull is logged
            return []
        paused = [broker for broker, config in groups.get(group, {}).items() if not config.consume_enable]
        closed = [broker for broker, config in topics.items() if not is_readable(config)]
        warnings = []
        if paused:
            warnings.append(
                f"group {group!r} is paused (consumeEnable=false at {', '.join(sorted(paused))}): {topic} is not read"
            )
        if closed:
            warnings.append(f"nobody may read topic {topic} at {', '.join(sorted(closed))}: {advice(topic)}")
        return warnings

    async def _unreadable_queues(self, topic: str) -> list[str]:
        """Return a warning if Brokers accept messages in queues from which no consumer can read."""
        route = await self._admin.route(topic, fresh=True)
        if route is None or not (hidden := {*route.write_queues()} - {*route.read_queues()}):
            return []
        names = ", ".join(partition_name(queue) for queue in sorted(hidden)[:MAX_NAMED_QUEUES])
        problem = f"no consumer can read {len(hidden)} queues of {topic} in which Brokers store messages ({names})"
        return [f"{problem}: raise readQueueNums to writeQueueNums, and permit reading (perm 6)"]


def _topic_settings(config: TopicConfig) -> dict[str, str]:
    return {
        "permission": _PERMISSION_NAMES.get(config.perm, str(config.perm)),
        "read_queues": str(config.read_queues),
        "write_queues": str(config.write_queues),
        "order": str(config.order).lower(),
        **config.attributes,
    }


def _format_values(values: Mapping[str, str]) -> str:
    """Format the values of one setting, given by Broker name."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{value} at {broker}" for broker, value in values.items())
