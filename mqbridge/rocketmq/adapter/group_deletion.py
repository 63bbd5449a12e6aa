"""Deletion of what the Brokers keep of a group in one topic.

Brokers have one configuration and one retry topic per group, and an offset in each queue. They delete a group only as a whole,
with its offsets in all topics. So a group that has offsets in other topics stays, and only its offsets in this topic are removed:
a Broker takes the offset NO_OFFSET for none. It still lists such a group among those of the topic.

A group without offsets in this topic is left alone: it reads other topics, its members store their offsets themselves
(broadcasting), or somebody has configured it for members to come.

Dead letters of a group (`%DLQ%GROUP`) are kept: somebody may still look for them.
"""

import asyncio
from collections.abc import Sequence

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.admin.admin import is_system
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.subscription import retry_topic
from mqbridge.rocketmq.wire.bodies.queue import Queue

NO_OFFSET = -1
"""The offset that stands for no offset, so that the group begins where its next member says.

A Broker before 5.0 answers 0 instead, as it does for every group without an offset while the queue has its first message.
"""


async def delete_group(client: ClusterClient, topic: str, group: str, queues: Sequence[Queue]) -> None:
    """Delete a group with its retry topic, or if it reads other topics, its offsets in these queues, those of the topic.

    Does nothing if it has no offset in them. The caller has checked that all Brokers run. Raises ClusterError, FATAL while the
    group has members.
    """
    await check_no_members(client, group, "then delete the group")
    if not (found := await _queues_with_offset(client, group, queues)):
        return
    others = [name for name in await client.groups.topics_of(group) if name != topic and not is_system(name)]
    if any(await asyncio.gather(*(_reads(client, group, name) for name in others))):
        await asyncio.gather(*(client.positions.commit(queue, group, NO_OFFSET) for queue in found))
        return
    await client.groups.delete(group)
    # Its offset in the retry topic is deleted, too, so that a group made anew would receive the messages there once more.
    if await client.routes.get(retry := retry_topic(group), fresh=True) is not None:
        await client.admin.delete_topic(retry)


async def check_no_members(client: ClusterClient, group: str, advice: str) -> None:
    """Raise ClusterError (FATAL) while the group has members, because they commit offsets; `advice` says what to do then."""
    if (consumers := await client.groups.consumers(group)) is not None and consumers.connections:
        names = ", ".join(member.client_id for member in consumers.connections)
        raise ClusterError(f"group {group!r} has members ({names}): stop them, {advice}", Failure.FATAL)


async def _reads(client: ClusterClient, group: str, topic: str) -> bool:
    """Return True if the group has an offset in the topic, and the topic exists."""
    route = await client.routes.get(topic)
    return route is not None and bool(await _queues_with_offset(client, group, route.read_queues()))


async def _queues_with_offset(client: ClusterClient, group: str, queues: Sequence[Queue]) -> list[Queue]:
    offsets = await asyncio.gather(*(client.positions.committed(queue, group) for queue in queues))
    return [queue for queue, offset in zip(queues, offsets, strict=True) if offset is not None]
