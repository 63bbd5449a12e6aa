"""Faults of listeners, and of their connections with clients and with their cluster."""

from __future__ import annotations

import asyncio

from tests.chaos.schedule import Event
from tests.chaos.systems.listener import AtListener
from tests.chaos.world import World
from tests.kit.tcp_proxy import Link


def listener_of(world: World, system: str) -> AtListener:
    """Return a cluster behind a listener."""
    found = world.systems[system]
    assert isinstance(found, AtListener)
    return found


async def kill_listener(world: World, event: Event) -> None:
    """Send SIGKILL, and start the listener again after a while."""
    system = listener_of(world, event.where[0])
    async with system.lock:
        await asyncio.to_thread(system.listener.kill)
        system.clients.cut()
        system.behind.cut()
        await asyncio.sleep(event.lasts)
        await asyncio.to_thread(system.listener.start)


async def roll_listener(world: World, event: Event) -> None:
    """Send SIGTERM, wait for the exit, and start the listener again."""
    system = listener_of(world, event.where[0])
    async with system.lock:
        code = await asyncio.to_thread(system.listener.terminate)
        if code:
            world.failures.append(f"{system.name} ended with status {code} after SIGTERM")
        await asyncio.sleep(event.lasts)
        await asyncio.to_thread(system.listener.start)


async def stop_listener(world: World, event: Event) -> None:
    """Freeze the listener with SIGSTOP, and continue it after a while."""
    system = listener_of(world, event.where[0])
    async with system.lock:
        system.listener.freeze()
        try:
            await asyncio.sleep(event.lasts)
        finally:
            system.listener.thaw()


async def cut_listener(world: World, event: Event) -> None:
    """Reset every connection of clients with the listener."""
    listener_of(world, event.where[0]).clients.cut()


async def hold_listener(world: World, event: Event) -> None:
    """Hold all bytes between the listener and its clients for a while."""
    links = _links(world, event)
    for link in links:
        link.passes.clear()
    await asyncio.sleep(event.lasts)
    for link in links:
        link.passes.set()


async def delay_listener(world: World, event: Event) -> None:
    """Delay all bytes between the listener and its clients, and between it and its cluster."""
    links = [*_links(world, event), *listener_of(world, event.where[0]).behind.links.values()]
    for link in links:
        link.delay_s = event.amount
    await asyncio.sleep(event.lasts)
    for link in links:
        link.delay_s = 0.0


def _links(world: World, event: Event) -> list[Link]:
    return list(listener_of(world, event.where[0]).clients.links.values())
