"""Target topics of a route: refused, made and grown exactly as the gateway does it, before anything is moved into them.

At the start the mirror does it for all topics there are. The source's process does it for topics and partitions that come later,
before it lets the first range of them out: tasks never make topics.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.config.options.route import Route
from mqbridge.errors import MqbridgeError
from mqbridge.gateway.ends import Ends
from mqbridge.gateway.plan import Plan, Planner, refuse

log = logging.getLogger(__name__)


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
    """Sees to the targets of topics and partitions that are new, for the source of one route."""

    def __init__(self, route: Route, clusters: Mapping[str, Cluster]) -> None:
        self._route, self._clusters = route, clusters
        self._ready: dict[str, int] = {}
        """Partitions of the source topics whose targets are as they must be."""
        self._lock = asyncio.Lock()

    async def admit(self, topics: Mapping[str, int]) -> dict[str, int]:
        """How many partitions of each source topic may be read, of those that there are.

        What is new waits until its targets are made; when they cannot be, it goes on waiting and the log says why.
        """
        async with self._lock:
            if any(count > self._ready.get(topic, 0) for topic, count in topics.items()):
                await self._prepare(topics)
            return {topic: min(count, self._ready[topic]) for topic, count in topics.items() if topic in self._ready}

    async def _prepare(self, topics: Mapping[str, int]) -> None:
        try:
            plan = await Planner(self._clusters).plan(self._route)
            refuse([plan])
            await _carry_out(self._route, self._clusters, plan)
        except MqbridgeError as error:
            log.warning("route %s: new topics or partitions wait: %s", self._route.name, error)
            return
        found = {one.selected.topic: len(one.topic.partitions) for one in plan.sources}
        for topic, count in topics.items():
            if topic in found:
                self._ready[topic] = max(self._ready.get(topic, 0), min(count, found[topic]))


@contextlib.asynccontextmanager
async def lent(refs: Mapping[str, Any], portal: Any) -> Any:
    """Every cluster of the references, connected, from the portal of this process."""
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(portal.cluster(ref)) for name, ref in refs.items()}
