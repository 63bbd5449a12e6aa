"""Faults of servers. Producers pause meanwhile, unless only the instances cannot reach the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.chaos.flow import Flow
from tests.chaos.schedule import Event
from tests.chaos.world import World
from tests.kit.process import JavaProcess

NOTICED_S = 8.0
"""If messages still move, at least one is stored within this time."""


async def no_directory(world: World, event: Event) -> None:
    """Make all name servers, or the Master, unreachable for all instances. Reads and writes at brokers must continue."""
    name = event.where[0]
    addresses = world.systems[name].directories
    links = [instance.network.links[each] for instance in world.instances.values() for each in addresses]
    for link in links:
        link.away = True
        link.cut()
    await asyncio.sleep(max(0.0, event.lasts - NOTICED_S))
    before = await world.stored()
    await asyncio.sleep(min(event.lasts, NOTICED_S))
    after = await world.stored()
    for link in links:
        link.away = False
    if event.lasts >= NOTICED_S and world.is_alone(event):
        idle = [each for each in world.directions if name in each.split("-") and after[each] <= before[each]]
        world.failures += [
            f"{each}: no message was stored for {NOTICED_S:.0f} s while the directory of {name} was unreachable" for each in idle
        ]


async def kill_directory(world: World, event: Event) -> None:
    """Kill all name servers, or the Master, and start them again after a while."""
    await _kill(world, event, world.systems[event.where[0]].directory_processes)


async def kill_broker(world: World, event: Event) -> None:
    """Kill the broker, and start it again after a while."""
    await _kill(world, event, [world.systems[event.where[0]].broker])


async def freeze_broker(world: World, event: Event) -> None:
    """Freeze the broker with SIGSTOP, and continue it after a while."""
    system = world.systems[event.where[0]]
    async with world.server_locks[system.name], _paused_flows(world.flows(system.name)):
        system.broker.freeze()
        try:
            await asyncio.sleep(event.lasts)
        finally:
            system.broker.thaw()


async def _kill(world: World, event: Event, processes: Sequence[JavaProcess]) -> None:
    system = world.systems[event.where[0]]
    async with world.server_locks[system.name], _paused_flows(world.flows(system.name)):
        for process in processes:
            await asyncio.to_thread(process.kill)
        await asyncio.sleep(event.lasts)
        for process in processes:
            await asyncio.to_thread(process.start)


@asynccontextmanager
async def _paused_flows(flows: Sequence[Flow]) -> AsyncIterator[None]:
    """Pause these producers during a server fault, so that the number of acknowledged messages is exact."""
    await asyncio.gather(*(flow.pause() for flow in flows))
    try:
        yield
    finally:
        for flow in flows:
            flow.resume()
