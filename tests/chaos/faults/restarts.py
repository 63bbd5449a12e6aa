"""Restarts of brokers in order. The producers continue, and send again what a broker did not acknowledge.

A TubeMQ Broker that stops in order confirms the packs that are out, whoever holds them. The instance that held a pack sets the
group back when it registers again, but no other instance knows that it should. So if two instances share a TubeMQ source, its
Broker restarts only while no partition changes its owner: not soon after the members have changed, and they do not change before
they have registered again. The same holds after an instance was killed, because its last state may not be written.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.chaos.instance import Instance
from tests.chaos.schedule import Event
from tests.chaos.systems.system import System
from tests.chaos.world import Strike, World, all_instances_locked

PAUSED_BEFORE_S = 4.0
"""Time between the pause of a target and the restart of the source's broker: the instances receive messages meanwhile."""
LEASE_S = 35.0
"""Time for which a TubeMQ Broker keeps the registrations of an instance that has died."""
ABRUPT = ("kill", "stop", "no_directory", "kill_directory")
"""Faults after which leases may have to expire, or may have expired."""
ORDERLY = ("roll", "leave", "rolling_update", "move_stopped", "pause_group")
"""Faults after which partitions move between instances at their next heartbeats."""
POLL_S = 0.2


async def restart_broker(world: World, event: Event) -> None:
    """Restart the broker in order."""
    system = world.systems[event.where[0]]
    async with _restartable(world, event, system):
        await asyncio.to_thread(system.broker.restart_in_order, event.lasts)


async def restart_during_pause(world: World, event: Event) -> None:
    """Restart the broker of the source in order while the target stores nothing, so that the instances hold messages.

    The pause lasts until some time after the restart. Before its end an instance may be rolled or killed.
    """
    direction, (_, name, end) = world.directions[event.where[0]], event.where
    async with _restartable(world, event, direction.source):
        with world.paused(direction.target):
            await asyncio.sleep(PAUSED_BEFORE_S)
            await asyncio.to_thread(direction.source.broker.restart_in_order, event.lasts)
            await asyncio.sleep(event.amount)
            await _end(world.instances[name], end)
        await _start_again(world.instances[name], end)


async def end_without_broker(world: World, event: Event) -> None:
    """Roll or kill an instance while a broker, which was stopped in order, is away."""
    system, (_, name, end) = world.systems[event.where[0]], event.where
    async with _restartable(world, event, system):
        await asyncio.to_thread(system.broker.stop_in_order)
        await _end(world.instances[name], end)
        await asyncio.sleep(event.lasts)
        await asyncio.gather(_start_again(world.instances[name], end), asyncio.to_thread(system.broker.start))


async def missing_broker(world: World, event: Event) -> None:
    """Stop a broker in order for a while, so that it is in no route. An instance may end, and starts while it is missing."""
    system, (_, name, end) = world.systems[event.where[0]], event.where
    async with _restartable(world, event, system):
        await asyncio.to_thread(system.broker.stop_in_order)
        try:
            await _end(world.instances[name], end)
            await _start_again(world.instances[name], end)
            await asyncio.sleep(event.lasts)
        finally:
            await asyncio.to_thread(system.broker.start)


@asynccontextmanager
async def _restartable(world: World, event: Event, system: System) -> AsyncIterator[None]:
    """Hold the lock of a system's servers, and before it those of instances that must not change."""
    is_shared_tubemq = world.source_is_tubemq(system.name) and len(world.instances) > 1
    async with AsyncExitStack() as stack:
        if is_shared_tubemq or event.where[-1] in ("rolls", "is_killed"):
            await stack.enter_async_context(all_instances_locked(world))
        await stack.enter_async_context(world.server_locks[system.name])
        if world.source_is_tubemq(system.name):
            await _wait_until_unchanged(world, is_shared=is_shared_tubemq)
        yield
        if is_shared_tubemq:
            await asyncio.sleep(_register_s(world))


async def _wait_until_unchanged(world: World, *, is_shared: bool) -> None:
    """Wait until the members of the groups have settled after all other faults that change them."""
    settle_s = 2 * _register_s(world) if is_shared else 0.0
    while world.now < settle_s or any(_is_unsettled(world, strike, settle_s) for strike in world.strikes):
        await asyncio.sleep(POLL_S)


def _is_unsettled(world: World, strike: Strike, settle_s: float) -> bool:
    name = strike.event.kind.name
    is_abrupt = name in ABRUPT or strike.event.where[-1] == "is_killed"
    if math.isinf(strike.end):
        # Others do not delay a change of members: they wait for the locks that this fault holds, or concern no members.
        return name in ABRUPT or (settle_s > 0 and strike.event.kind.where == "link")
    return strike.end + (LEASE_S if is_abrupt else settle_s if name in ORDERLY else 0.0) > world.now


def _register_s(world: World) -> float:
    """Return the time in which every member has sent a heartbeat and registered its partitions, on a busy machine."""
    return world.schedule.heartbeat_s + 5.0


async def _end(instance: Instance, end: str) -> None:
    if end == "rolls":
        await instance.terminate()
    elif end == "is_killed":
        await instance.kill()


async def _start_again(instance: Instance, end: str) -> None:
    if end != "stays":
        await instance.start()
