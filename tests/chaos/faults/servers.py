"""Faults of servers. Producers pause while servers are killed or frozen, so that the number of acknowledged messages is exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from tests.chaos.flow import Flow
from tests.chaos.schedule import Event, ends
from tests.chaos.systems.system import System
from tests.chaos.world import World

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
    before, sent = await world.stored(), _sent(world)
    await asyncio.sleep(min(event.lasts, NOTICED_S))
    after = await world.stored()
    for link in links:
        link.away = False
    if event.lasts >= NOTICED_S and world.is_alone(event):
        grown = [each for each, count in _sent(world).items() if count > sent[each]]
        idle = [each for each in grown if name in ends(each) and after[each] <= before[each]]
        world.failures += [
            f"{each}: no message was stored for {NOTICED_S:.0f} s while the directory of {name} was unreachable" for each in idle
        ]


async def kill_directory(world: World, event: Event) -> None:
    """Kill all name servers, or the Master, and start them again after a while."""
    system = world.systems[event.where[0]]
    async with world.server_locks[system.name], _paused_flows(world.flows(system.name)):
        for process in system.directory_processes:
            await asyncio.to_thread(process.kill)
        await asyncio.sleep(event.lasts)
        for process in system.directory_processes:
            await asyncio.to_thread(process.start)


async def kill_broker(world: World, event: Event) -> None:
    """Kill the broker, and start it again after a while.

    A source that loses what is only in memory becomes reachable for the producers before it does for the instances, so new
    messages get the lost positions first. A target does not lose anything: it is killed when all copies are in files.
    """
    system = world.systems[event.where[0]]
    copies = [each.copy for each in world.directions.values() if each.target is system]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.server_locks[system.name])
        async with _paused_flows(world.flows(system.name)):
            if system.loses_memory:
                stack.enter_context(_unreachable(world, system))
                for copy in copies:
                    await asyncio.to_thread(system.wait_stored, copy)
                world.lossy |= set() if copies else {system.name}
            await asyncio.to_thread(system.broker.kill)
            await asyncio.sleep(event.lasts)
            await asyncio.to_thread(system.broker.start)
        if system.loses_memory:
            await asyncio.sleep(event.amount)


async def freeze_broker(world: World, event: Event) -> None:
    """Freeze the broker with SIGSTOP, and continue it after a while."""
    system = world.systems[event.where[0]]
    async with world.server_locks[system.name], _paused_flows(world.flows(system.name)):
        system.broker.freeze()
        try:
            await asyncio.sleep(event.lasts)
        finally:
            system.broker.thaw()


async def lower_limit(world: World, event: Event) -> None:
    """Lower the maximum size of messages, so that the brokers refuse batches that were allowed before, but no single message."""
    system = world.systems[event.where[0]]
    async with world.server_locks[system.name], system.message_size_limited(int(event.amount)):
        await asyncio.sleep(event.lasts)


@contextmanager
def _unreachable(world: World, system: System) -> Iterator[None]:
    """Make the brokers of a system unreachable for all instances, so that they acknowledge no message."""
    links = world.links(system.name)
    for link in links:
        link.away = True
        link.cut()
    try:
        yield
    finally:
        for link in links:
            link.away = False


def _sent(world: World) -> dict[str, int]:
    return {name: sum(direction.flow.sent) for name, direction in world.directions.items()}


@asynccontextmanager
async def _paused_flows(flows: Sequence[Flow]) -> AsyncIterator[None]:
    """Pause these producers during a server fault, so that the number of acknowledged messages is exact."""
    await asyncio.gather(*(flow.pause() for flow in flows))
    try:
        yield
    finally:
        for flow in flows:
            flow.resume()
