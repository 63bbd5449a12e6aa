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
