"""What operators and producers do to topics and groups."""

from __future__ import annotations

import asyncio

from mqbridge.errors import ClusterError
from tests.chaos.schedule import Event
from tests.chaos.world import World

MOST_PARTITIONS = 6
MOVE_TRIES = 20
"""A group has its members for a while after they have gone: TubeMQ's Brokers wait for leases, RocketMQ's for connections."""
AGAIN_S = 2.0


async def unload(world: World, event: Event) -> None:
    """The broker closes the topic at one end of a direction."""
    direction = world.directions[event.where[0]]
    system, topic = direction.end(event.where[1])
    async with world.server_locks[system.name]:
        await asyncio.to_thread(system.unload, topic)


async def grow(world: World, event: Event) -> None:
    """The source gets one more partition; the target is the gateway's business."""
    direction = world.directions[event.where[0]]
    async with world.server_locks[direction.source.name]:
        if len(direction.flow.sent) < MOST_PARTITIONS:
            await direction.flow.grow(len(direction.flow.sent) + 1)


async def burst(world: World, event: Event) -> None:
    """Many messages at once, for every queue to be full."""
    await world.directions[event.where[0]].flow.burst(int(event.amount))


async def move_running(world: World, event: Event) -> None:
    """An operator sets the group back while it runs."""
    direction = world.directions[event.where[0]]
    async with world.server_locks[direction.source.name]:
        direction.moved |= await direction.source.move_running(direction.topic, direction.group, int(event.amount))


async def move_stopped(world: World, event: Event) -> None:
    """An operator stops the instances, sets the group back and starts them."""
    direction = world.directions[event.where[0]]
    source = direction.source
    async with world.instances["a"].lock, world.instances["b"].lock, world.server_locks[source.name]:
        ran = [instance for instance in world.instances.values() if instance.runs]
        await asyncio.gather(*(instance.terminate() for instance in ran))
        async with source.open() as cluster:
            assert cluster.operations is not None
            committed = await cluster.committed(direction.topic, direction.group)
            earlier = {name: source.earlier(at, int(event.amount)) for name, at in committed.items() if at[0] >= 0}
            for tries in range(MOVE_TRIES):
                try:
                    await cluster.operations.move(direction.topic, direction.group, earlier)
                    break
                except ClusterError:
                    if tries == MOVE_TRIES - 1:
                        raise
                    await asyncio.sleep(AGAIN_S)
        for instance in ran:
            await instance.start()
