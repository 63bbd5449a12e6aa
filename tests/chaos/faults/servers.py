"""Faults of servers, while producers rest, and of servers that do not answer the instances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.chaos.flow import Flow
from tests.chaos.schedule import Event
from tests.chaos.world import World
from tests.kit.process import JavaProcess

NOTICED_S = 8.0
"""In so long messages have moved if they move at all."""


async def no_directory(world: World, event: Event) -> None:
    """No name server and no Master responds to any instance; reads and writes at brokers continue."""
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
        world.failures += [f"{each}: nothing moved for {NOTICED_S:.0f} s without directory of {name}" for each in idle]


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
    """The producers' connections have no faults, so the record of acknowledged messages is exact."""
    await asyncio.gather(*(flow.rest() for flow in flows))
    try:
        yield
    finally:
        for flow in flows:
            flow.go_on()
