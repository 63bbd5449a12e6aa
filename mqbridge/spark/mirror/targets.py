"""Target topics of a route: refused, made and grown exactly as the gateway does it, before anything is moved into them.

At the start the mirror does it for all topics there are. The source's process does it for topics and partitions that come later,
before it lets the first range of them out: tasks never make topics.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.topics import Bounds
from mqbridge.config.options.route import Route
from mqbridge.errors import MqbridgeError
from mqbridge.gateway.ends import Ends
from mqbridge.gateway.plan import Plan, Planner, refuse
from mqbridge.message import Position
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.portal import portal

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A source topic, and the name of a partition of it."""


async def prepare(routes: list[Route], clusters: Mapping[str, Cluster]) -> list[Plan]:
    """Plan all routes, and make what they need when nothing is wrong with any. Raises ConfigError or ClusterError."""
    planner = Planner(clusters)
    plans = [await planner.plan(route) for route in routes]
    refuse(plans)
    for plan in plans:
        for text in await _carry_out(plan.route, clusters, plan):
            log.warning("route %s: %s", plan.route.name, text)
    return plans


async def _carry_out(route: Route, clusters: Mapping[str, Cluster], plan: Plan) -> list[str]:
    """Make what is missing and open every target once, which proves that it can be written; the warnings about its topics."""
    ends = Ends(route, clusters, _ignore)
    try:
        await ends.open(plan)
        return await ends.warnings()
    finally:
        await ends.close()


def _ignore(_: int) -> None:
    """Nothing is sent through these ends."""


class TargetKeeper:
    """Sees to the targets of topics and partitions that are new, for the source of one route. On the portal's loop."""

    def __init__(self, route: Route, refs: Mapping[str, ClusterRef]) -> None:
        self._route = route
        self._refs = {name: refs[name] for name in route.clusters}
        self._ready: set[Key] = set()

    async def admit(self, held: Mapping[Key, Bounds], start: Mapping[Key, Position]) -> dict[Key, Bounds]:
        """Those partitions that may be read: the ones of `start`, and new ones once their targets are made.

        What is new waits while they cannot be made, and the log says why.
        """
        new = held.keys() - start.keys() - self._ready
        if new:
            await self._prepare(new)
        return {key: bounds for key, bounds in held.items() if key in start or key in self._ready}

    async def _prepare(self, new: Collection[Key]) -> None:
        try:
            async with lent(self._refs) as clusters:
                plan = await Planner(clusters).plan(self._route)
                refuse([plan])
                await _carry_out(self._route, clusters, plan)
        except MqbridgeError as error:
            log.warning("route %s: new topics or partitions wait: %s", self._route.name, error)
            return
        planned = {(one.selected.topic, name) for one in plan.sources for name in one.topic.partitions}
        self._ready |= planned.intersection(new)


@contextlib.asynccontextmanager
async def lent(refs: Mapping[str, ClusterRef]) -> AsyncIterator[dict[str, Cluster]]:
    """These clusters, connected, as the portal of this process has them. Raises ClusterError."""
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(portal().cluster(ref)) for name, ref in refs.items()}
