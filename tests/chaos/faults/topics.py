"""Actions of operators and producers on topics and groups."""

from __future__ import annotations

import asyncio

from mqbridge.errors import ClusterError
from tests.chaos.schedule import Event
from tests.chaos.world import World, all_instances_locked

MAX_PARTITIONS = 6
MAX_MOVE_ATTEMPTS = 20
"""After the instances have exited, a group keeps its members for a while: until the leases at TubeMQ's Brokers expire, or until
RocketMQ's brokers notice that the connections are closed. Meanwhile the group cannot be moved."""
RETRY_DELAY_S = 2.0


async def unload(world: World, event: Event) -> None:
    """Let the broker unload the source or the target topic of a direction."""
    direction = world.directions[event.where[0]]
    system, topic = direction.end(event.where[1])
    async with world.server_locks[system.name]:
        await asyncio.to_thread(system.unload, topic)


async def grow(world: World, event: Event) -> None:
    """Add a partition to the source topic. The gateway must add one to the target."""
    direction = world.directions[event.where[0]]
    async with world.server_locks[direction.source.name]:
        if len(direction.flow.sent) < MAX_PARTITIONS:
            await direction.flow.grow(len(direction.flow.sent) + 1)


async def burst(world: World, event: Event) -> None:
    """Send many messages at once, to fill all queues."""
    flow = world.directions[event.where[0]].flow
    await flow.burst(flow.load.burst(int(event.amount)))


async def move_running(world: World, event: Event) -> None:
    """Move the group back while its members run, as an operator."""
    direction = world.directions[event.where[0]]
    async with world.server_locks[direction.source.name]:
        direction.moved |= await direction.source.move_running(direction.topic, direction.group, int(event.amount))


async def pause_group(world: World, event: Event) -> None:
    """Let the source give the group nothing for a while, as an administrator."""
    direction = world.directions[event.where[0]]
    async with (
        world.server_locks[direction.source.name],
        direction.source.group_paused(direction.topic, direction.group),
    ):
        await asyncio.sleep(event.lasts)


async def refuse_target(world: World, event: Event) -> None:
    """Let the target refuse all messages for a while: by its permissions, or a quota. Half of the time, only one broker does."""
    direction = world.directions[event.where[0]]
    async with (
        world.server_locks[direction.target.name],
        direction.target.writes_refused(direction.copy, partly=event.amount < 0.5),
    ):
        await asyncio.sleep(event.lasts)


async def remake_topic(world: World, event: Event) -> None:
    """Delete the source topic under the instances, create it again, and fill it at once.

    The deleted messages need not arrive, but all of the new topic. A partition may stop: an operator restarts the instances.
    """
    direction = world.directions[event.where[0]]
    source, flow = direction.source, direction.flow
    async with all_instances_locked(world), world.server_locks[source.name]:
        direction.has_deletions = True
        async with flow.deletion(opens_again=True):
            await source.delete(direction.topic)
            await source.create(world.clusters[source.name], direction.topic, len(flow.sent), direction.layout)
            await asyncio.to_thread(source.register, direction.topic, direction.group)
        await flow.burst(flow.load.burst(int(event.amount)))
        await asyncio.sleep(event.lasts)
        for instance in world.instances.values():
            if instance.has_process:
                await instance.terminate()
                await instance.start()


async def truncate(world: World, event: Event) -> None:
    """Delete all messages of the source topic, also unread ones. An operator restarts instances whose partitions stopped."""
    direction = world.directions[event.where[0]]
    source = direction.source
    async with all_instances_locked(world), world.server_locks[source.name]:
        direction.has_deletions = True
        async with direction.flow.deletion(opens_again=False):
            await source.truncate(direction.topic)
        await asyncio.sleep(event.lasts)
        for instance in world.instances.values():
            status = await instance.ask("/health/ready")
            if instance.has_process and (status is None or status["stopped"]):
                await instance.terminate()
                await instance.start()


async def move_stopped(world: World, event: Event) -> None:
    """Stop the instances, move the group back, and start them again, as an operator."""
    direction = world.directions[event.where[0]]
    source = direction.source
    async with all_instances_locked(world), world.server_locks[source.name]:
        ran = [instance for instance in world.instances.values() if instance.runs]
        await asyncio.gather(*(instance.terminate() for instance in ran))
        async with source.open() as cluster:
            assert cluster.operations is not None
            committed = await cluster.committed(direction.topic, direction.group)
            earlier = {name: source.earlier(at, int(event.amount)) for name, at in committed.items() if at[0] >= 0}
            for attempt in range(MAX_MOVE_ATTEMPTS):
                try:
                    await cluster.operations.move(direction.topic, direction.group, earlier)
                    break
                except ClusterError:
                    if attempt == MAX_MOVE_ATTEMPTS - 1:
                        raise
                    await asyncio.sleep(RETRY_DELAY_S)
        for instance in ran:
            await instance.start()
