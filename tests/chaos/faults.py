"""What each fault does. A fault returns when it is over; the run goes on around it, and others may strike meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from mqbridge.errors import ClusterError
from tests.chaos.flow import Flow
from tests.chaos.schedule import Event
from tests.chaos.world import World
from tests.kit.process import JavaProcess
from tests.kit.tcp_proxy import Link

MOST_PARTITIONS = 6
MOVE_TRIES = 20
"""A group has its members for a while after they have gone: TubeMQ's Brokers wait for leases, RocketMQ's for connections."""
AGAIN_S = 2.0
NOTICED_S = 8.0
"""In so long messages have moved if they move at all."""


# --- instances --------------------------------------------------------------------------------------------------------


async def kill(world: World, event: Event) -> None:
    """SIGKILL, and a new life after a while."""
    instance = world.instances[event.where[0]]
    async with instance.lock:
        await instance.kill()
        await asyncio.sleep(event.lasts)
        await instance.start()


async def roll(world: World, event: Event) -> None:
    """SIGTERM, and a new life, as in a rolling update."""
    instance = world.instances[event.where[0]]
    async with instance.lock:
        await instance.terminate()
        await asyncio.sleep(event.lasts)
        await instance.start()


leave = roll  # for longer: everything goes to the other instance, and comes back


async def rolling_update(world: World, event: Event) -> None:
    """Each instance in turn: SIGTERM and a new life. The next one goes while the group is still being divided anew."""
    for name in event.where:
        instance = world.instances[name]
        async with instance.lock:
            await instance.terminate()
            await instance.start()
        await asyncio.sleep(event.lasts)


async def stop(world: World, event: Event) -> None:
    """SIGSTOP and SIGCONT."""
    instance = world.instances[event.where[0]]
    async with instance.lock:
        if not instance.runs:
            await instance.start()
        instance.freeze()
        try:
            await asyncio.sleep(event.lasts)
        finally:
            instance.thaw()


# --- the network of an instance ---------------------------------------------------------------------------------------


async def cut(world: World, event: Event) -> None:
    """Every connection is reset."""
    for name in event.where:
        world.instances[name].network.cut()


async def hold(world: World, event: Event) -> None:
    """Nothing passes between an instance and a system; connections stay."""
    links = _links(world, event)
    for link in links:
        link.passes.clear()
    await asyncio.sleep(event.lasts)
    for link in links:
        link.passes.set()


async def late(world: World, event: Event) -> None:
    """What is on its way comes after everything: today's connections are stuck, later ones work."""
    stuck = [connection for link in _links(world, event) for connection in link.stick()]
    await asyncio.sleep(event.lasts)
    for connection in stuck:
        connection.unstick()


async def slow(world: World, event: Event) -> None:
    """A link of few bytes per second."""
    links = _links(world, event)
    for link in links:
        link.bytes_per_s = event.amount
    await asyncio.sleep(event.lasts)
    for link in links:
        link.bytes_per_s = None


async def delay(world: World, event: Event) -> None:
    """A link on which everything takes long."""
    links = _links(world, event)
    for link in links:
        link.delay_s = event.amount
    await asyncio.sleep(event.lasts)
    for link in links:
        link.delay_s = 0.0


def _links(world: World, event: Event) -> list[Link]:
    name, system = event.where
    return [world.instances[name].network.links[each] for each in world.systems[system].brokers]


# --- servers ----------------------------------------------------------------------------------------------------------


async def no_directory(world: World, event: Event) -> None:
    """No name server and no Master answers any instance; what is read and written at brokers goes on."""
    name = event.where[0]
    addresses = world.systems[name].directories
    links = [instance.network.links[each] for instance in world.instances.values() for each in addresses]
    for link in links:
        link.away = True
        link.cut()
    before = await world.stored()
    await asyncio.sleep(event.lasts)
    after = await world.stored()
    for link in links:
        link.away = False
    if event.lasts >= NOTICED_S and world.is_alone(event):
        idle = [each for each in world.directions if name in each.split("-") and after[each] <= before[each]]
        world.failures += [f"{each}: nothing moved for {event.lasts:.0f} s without directory of {name}" for each in idle]


async def kill_directory(world: World, event: Event) -> None:
    """SIGKILL to all name servers or the Master, for a while."""
    await _kill(world, event, world.systems[event.where[0]].directory_processes)


async def kill_broker(world: World, event: Event) -> None:
    """SIGKILL to the broker, for a while."""
    await _kill(world, event, [world.systems[event.where[0]].broker])


async def freeze_broker(world: World, event: Event) -> None:
    """SIGSTOP and SIGCONT to the broker."""
    system = world.systems[event.where[0]]
    async with world.server_locks[system.name], _resting(world.flows(system.name)):
        system.broker.freeze()
        try:
            await asyncio.sleep(event.lasts)
        finally:
            system.broker.thaw()


async def _kill(world: World, event: Event, processes: Sequence[JavaProcess]) -> None:
    system = world.systems[event.where[0]]
    async with world.server_locks[system.name], _resting(world.flows(system.name)):
        for process in processes:
            await asyncio.to_thread(process.kill)
        await asyncio.sleep(event.lasts)
        for process in processes:
            await asyncio.to_thread(process.start)


@asynccontextmanager
async def _resting(flows: Sequence[Flow]) -> AsyncIterator[None]:
    """Producers do not meet faults of servers: what they have acknowledged stays exact."""
    await asyncio.gather(*(flow.rest() for flow in flows))
    try:
        yield
    finally:
        for flow in flows:
            flow.go_on()


# --- topics and groups ------------------------------------------------------------------------------------------------


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
        await direction.source.move_running(direction.topic, direction.group, int(event.amount))


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


Fault = Callable[[World, Event], Awaitable[None]]
FAULTS: Mapping[str, Fault] = {
    each.__name__: each
    for each in (
        kill, roll, rolling_update, stop, cut, hold, late, slow, delay, no_directory, kill_directory, kill_broker, freeze_broker,
        unload, grow, burst, move_running, move_stopped,
    )
} | {"leave": leave}  # fmt: skip
