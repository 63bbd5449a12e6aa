"""Network faults of one or both instances."""

from __future__ import annotations

import asyncio

from tests.chaos.schedule import Event
from tests.chaos.world import World
from tests.kit.tcp_proxy import Link


async def cut(world: World, event: Event) -> None:
    """Reset every connection."""
    for name in event.where:
        world.instances[name].network.cut()


async def hold(world: World, event: Event) -> None:
    """Hold all bytes between an instance and a system for a while; connections stay open."""
    links = _links(world, event)
    for link in links:
        link.passes.clear()
    await asyncio.sleep(event.lasts)
    for link in links:
        link.passes.set()


async def pause_target(world: World, event: Event) -> None:
    """Let the target of a direction store nothing for a while; connections of the instances stay open."""
    with world.paused(world.directions[event.where[0]].target):
        await asyncio.sleep(event.lasts)


async def late(world: World, event: Event) -> None:
    """Hold the bytes of the existing connections for a while; new connections work, so the old bytes arrive late."""
    stuck = [connection for link in _links(world, event) for connection in link.stick()]
    await asyncio.sleep(event.lasts)
    for connection in stuck:
        connection.unstick()


async def slow(world: World, event: Event) -> None:
    """Limit the bytes per second of each connection between an instance and a system."""
    links = _links(world, event)
    for link in links:
        link.bytes_per_s = event.amount
    await asyncio.sleep(event.lasts)
    for link in links:
        link.bytes_per_s = None


async def delay(world: World, event: Event) -> None:
    """Delay all bytes between an instance and a system."""
    links = _links(world, event)
    for link in links:
        link.delay_s = event.amount
    await asyncio.sleep(event.lasts)
    for link in links:
        link.delay_s = 0.0


def _links(world: World, event: Event) -> list[Link]:
    name, system = event.where
    return [world.instances[name].network.links[each] for each in world.systems[system].brokers]
