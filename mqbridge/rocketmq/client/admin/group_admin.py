"""Administration of consumer groups: configuration, members, progress, and moving offsets.

Each broker has its own configuration of a group, and stores the group's offsets for its own queues.
"""

import asyncio
from collections.abc import Iterable, Mapping

from mqbridge.errors import ClusterError, ServerRefused
from mqbridge.rocketmq.client.admin.admin import Admin
from mqbridge.rocketmq.client.admin.compat_v4 import topics_with_offsets
from mqbridge.rocketmq.client.admin.name_rules import check_group
from mqbridge.rocketmq.client.admin.positions import Positions
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, GroupConfigs
from mqbridge.rocketmq.wire.bodies.connections import ClientConnection, ConsumerConnections, ProducerConnections
from mqbridge.rocketmq.wire.bodies.groups import GroupList
from mqbridge.rocketmq.wire.bodies.offsets import ConsumeOffsets, ConsumerOffsets, ConsumeStats, ResetOffsets
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import TopicList
from mqbridge.rocketmq.wire.codes import Code, Status, refusal_error
from mqbridge.rocketmq.wire.headers.admin import TopicHeader
from mqbridge.rocketmq.wire.headers.groups import (
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupConfigHeader,
    GroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
)

CONSUMER_RESPONSES = frozenset({Status.SUCCESS, Status.CONSUMER_NOT_ONLINE})
"""Codes of the response to a query of a group's consumers. CONSUMER_NOT_ONLINE: none is connected to the broker."""
PRODUCER_RESPONSES = frozenset({Status.SUCCESS, Status.SYSTEM_ERROR})
"""Codes of the response to a query of a group's producers. For SYSTEM_ERROR see `NO_PRODUCERS`."""
NO_PRODUCERS = "not exist"
"""Part of the remark of a SYSTEM_ERROR if no producer of the group is connected to the broker."""


class GroupAdmin:
    """Administration of the groups at all brokers that the name servers know, possibly of several clusters.

    Each call raises ClusterError, and RemoteProtocolError for an invalid response.
    """

    def __init__(self, client: BaseClient, admin: Admin, positions: Positions) -> None:
        self._client, self._admin, self._positions = client, admin, positions

    # --- configuration ----------------------------------------------------------------------------------------------

    async def create(self, group: GroupConfig, *, cluster: str | None = None) -> None:
        """Create a group at every master of `cluster` (None: of every cluster), or replace its configuration."""
        check_group(group.name)
        body = group.encode()
        code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._admin.at_masters(lambda address: self._client.request(address, code, body=body), cluster)

    async def delete(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group at every master; without `clean_offsets` a new group of this name continues at its offsets."""
        ext = DeleteGroupHeader(group, clean_offsets, remove_offset=clean_offsets).encode()
        await self._admin.at_masters(lambda address: self._client.request(address, Code.DELETE_SUBSCRIPTIONGROUP, ext))

    async def configs(self) -> dict[str, dict[str, GroupConfig]]:
        """Return every group's configuration, by group and broker name; system groups included."""
        code = Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        responses = await self._admin.at_masters(lambda address: self._client.request(address, code))
        groups: dict[str, dict[str, GroupConfig]] = {}
        for broker, response in responses.items():
            for name, config in GroupConfigs.decode(response.body).groups.items():
                groups.setdefault(name, {})[broker] = config
        return groups

    # --- members ----------------------------------------------------------------------------------------------------

    async def consumers(self, group: str) -> ConsumerConnections | None:
        """Return members and subscriptions, from the first broker (by name) with a member; None if no member is connected."""
        ext = GroupHeader(group).encode()
        code = Code.GET_CONSUMER_CONNECTION_LIST
        responses = await self._admin.at_masters(
            lambda address: self._client.request(address, code, ext, accept=CONSUMER_RESPONSES)
        )
        bodies = [response.body for response in responses.values() if response.code == Status.SUCCESS]
        return ConsumerConnections.decode(bodies[0]) if bodies else None

    async def producers(self, group: str) -> list[ClientConnection]:
        """Return the clients of a producer group, without duplicates."""
        ext = ProducerGroupHeader(group).encode()
        code = Code.GET_PRODUCER_CONNECTION_LIST
        responses = await self._admin.at_masters(
            lambda address: self._client.request(address, code, ext, accept=PRODUCER_RESPONSES)
        )
        for broker, response in responses.items():
            if response.code == Status.SYSTEM_ERROR and NO_PRODUCERS not in (response.remark or ""):
                raise refusal_error(f"the producers of {group} at {broker}", response.code, response.remark)
        bodies = [response.body for response in responses.values() if response.code == Status.SUCCESS]
        clients = [client for body in bodies for client in ProducerConnections.decode(body).connections]
        return list({client.client_id: client for client in clients}.values())

    async def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets."""
        ext = GroupConfigHeader(group).encode()

        async def query_topics(address: str) -> Iterable[str]:
            try:
                response = await self._client.request(address, Code.QUERY_TOPICS_BY_CONSUMER, ext)
            except ServerRefused as error:
                if error.code != Status.REQUEST_CODE_NOT_SUPPORTED:  # the code of 4.x brokers, which do not have this request
                    raise
                return await topics_with_offsets(self._client, address, group)
            return list(TopicList.decode(response.body).topics)

        return sorted({topic for topics in (await self._admin.at_masters(query_topics)).values() for topic in topics})

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that consume a topic, or have offsets in it.

        A 5.3.3 broker also lists the topic's own name while it is consumed. It is removed, unless a group of this name has
        offsets in the topic.
        """
        responses = await self._admin.request_masters_of(topic, Code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic).encode())
        groups = {group for response in responses for group in GroupList.decode(response.body).groups}
        if topic in groups and topic not in await self.topics_of(topic):
            groups.remove(topic)
        return sorted(groups)

    # --- offsets ----------------------------------------------------------------------------------------------------

    async def progress(self, group: str, topic: str | None = None) -> dict[Queue, ConsumeOffsets]:
        """Return the group's progress in each queue in which it has an offset, of one topic or all, retry queues included."""
        ext = ConsumeStatsHeader(group, topic).encode()
        responses = await self._admin.at_masters(lambda address: self._client.request(address, Code.GET_CONSUME_STATS, ext))
        stats_of_brokers = [ConsumeStats.decode(response.body) for response in responses.values()]
        return {queue: offsets for stats in stats_of_brokers for queue, offsets in stats.offsets.items()}

    async def offsets(self, group: str | None = None) -> dict[tuple[str, Queue], int]:
        """Return every committed offset, of one group or all, by group and queue."""
        responses = await self._admin.at_masters(lambda address: self._client.request(address, Code.GET_ALL_CONSUMER_OFFSET))
        return {
            (name, Queue(topic, broker, queue_id)): offset
            for broker, response in responses.items()
            for (topic, name), queues in ConsumerOffsets.decode(response.body).offsets.items()
            for queue_id, offset in queues.items()
            if group is None or name == group
        }

    async def reset(self, group: str, topic: str, timestamp: int) -> dict[Queue, int]:
        """Reset a group to messages stored at `timestamp` (ms) or later, or with -1 to the end; return the offsets by queue.

        The broker sends the offsets to running consumers, in the response to the next pull or in a request; a stopped consumer
        begins at them when it starts.
        """
        header = ResetOffsetHeader(group, topic, timestamp)
        responses = await self._admin.request_masters_of(topic, Code.INVOKE_BROKER_TO_RESET_OFFSET, header.encode())
        return {queue: offset for response in responses for queue, offset in ResetOffsets.decode(response.body).offsets.items()}

    async def write(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set the offsets of a stopped group; a running consumer would overwrite them with its own.

        After a `reset`, until the group pulls from the queue, a 5.x broker confirms commits but ignores them. There this method
        resets the queue again, to the given offset. Raises ClusterError (RETRY) if offsets still differ, probably because members
        run.
        """
        await asyncio.gather(*(self._positions.commit(queue, group, offset) for queue, offset in offsets.items()))
        unchanged = await self._queues_that_differ(group, offsets)
        if unchanged:
            await asyncio.gather(*(self._replace_reset(group, queue, offsets[queue]) for queue in unchanged))
            unchanged = await self._queues_that_differ(group, offsets)
        if unchanged:
            labels = ", ".join(map(queue_label, unchanged[:5]))
            problem = f"the offsets of group {group} did not change in {len(unchanged)} queues, such as {labels}"
            raise ClusterError(f"{problem}, probably because the group has running members: stop them first")

    async def _queues_that_differ(self, group: str, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Return the queues whose committed offset is not the one in `offsets`."""
        committed = await asyncio.gather(*(self._positions.committed(queue, group) for queue in offsets))
        return [queue for queue, offset in zip(offsets, committed, strict=True) if offset != offsets[queue]]

    async def _replace_reset(self, group: str, queue: Queue, offset: int) -> None:
        """Reset the group to `offset` in one queue; the broker then ignores the timestamp, -1."""
        header = ResetOffsetHeader(group, queue.topic, timestamp=-1, queue_id=queue.id, offset=offset)
        await self._client.request(await self._positions.master(queue), Code.INVOKE_BROKER_TO_RESET_OFFSET, header.encode())
