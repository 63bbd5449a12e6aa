"""Faults of instances. Whoever strikes one holds its lock."""

from __future__ import annotations

import asyncio

from tests.chaos.schedule import Event
from tests.chaos.world import World


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
    """Restart each instance, one after the other, with SIGTERM. The next one stops while the group still rebalances."""
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
