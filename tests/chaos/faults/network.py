"""Faults of the network of one instance, or of both."""

from __future__ import annotations

import asyncio

from tests.chaos.schedule import Event
from tests.chaos.world import World
from tests.kit.tcp_proxy import Link


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
