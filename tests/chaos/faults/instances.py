"""Faults of instances. Each function holds the lock of the instance."""

from __future__ import annotations

import asyncio

from tests.chaos.schedule import Event
from tests.chaos.world import World


async def kill(world: World, event: Event) -> None:
    """Send SIGKILL, and start the instance again after a while."""
    instance = world.instances[event.where[0]]
    async with instance.lock:
        await instance.kill()
        await asyncio.sleep(event.lasts)
        await instance.start()


async def roll(world: World, event: Event) -> None:
    """Send SIGTERM, wait for the exit, and start the instance again, as in a rolling update."""
    instance = world.instances[event.where[0]]
    async with instance.lock:
        await instance.terminate()
        await asyncio.sleep(event.lasts)
        await instance.start()


leave = roll  # lasts longer than `roll`: the other instance takes over all partitions, and then returns some


async def rolling_update(world: World, event: Event) -> None:
    """Restart each instance, one after the other, with SIGTERM. The next one stops while the group still rebalances."""
    for name in event.where:
        instance = world.instances[name]
        async with instance.lock:
            await instance.terminate()
            await instance.start()
        await asyncio.sleep(event.lasts)


async def stop(world: World, event: Event) -> None:
    """Freeze the instance with SIGSTOP, and continue it after a while."""
    instance = world.instances[event.where[0]]
    async with instance.lock:
        if not instance.runs:
            await instance.start()
        instance.freeze()
        try:
            await asyncio.sleep(event.lasts)
        finally:
            instance.thaw()
