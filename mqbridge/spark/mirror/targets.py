"""Target topics of a route: refused, made and grown exactly as the gateway does it, before anything is moved into them.

At the start the mirror does it for all topics there are. The source's process does it for topics and partitions that come later,
before it lets the first range of them out: tasks never make topics.
"""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet

from mqbridge.adapter.cluster import Cluster
from mqbridge.config.options.route import Route
from mqbridge.errors import MqbridgeError
from mqbridge.gateway.endpoints import RouteEndpoints
from mqbridge.gateway.plan import Plan, Planner, refuse
from mqbridge.gateway.retention_warnings import TopicUse, warnings_about
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.cluster_ref import ClusterRef

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""Before targets are planned again that could not be made; what is new meanwhile is tried at once."""

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
    """Make what is missing and open every target once, which proves that it can be written; the warnings about its topics.

    The source's are those of a topic that no group reads: the route's has nothing to do with a mirror, and keeps nothing for it.
    """
    ends = RouteEndpoints(route, clusters, _ignore)
    try:
        await ends.open(plan)
    finally:
        await ends.close()
    uses = [TopicUse(route.source.cluster, one.selected.topic) for one in plan.sources]
    uses += [TopicUse(target.cluster, target.topic) for one in plan.sources for target in one.targets]
    if (letters := route.delivery.dead_letter) is not None:
        uses.append(TopicUse(letters.cluster, letters.topic))
    return await warnings_about(uses, clusters)


def _ignore(_: int) -> None:
    """Nothing is sent through these ends."""


class TargetKeeper:
    """Sees to the targets of topics and partitions that are new, for the source of one route. On the background event loop."""

    def __init__(self, route: Route, refs: Mapping[str, ClusterRef]) -> None:
        self._route = route
        self._refs = {name: refs[name] for name in route.clusters}
        self._ready: set[Key] = set()
        self._tried: tuple[float, AbstractSet[Key]] = (float("-inf"), frozenset())
        """When it was tried last, and for what."""

    async def waiting(self, new: AbstractSet[Key]) -> frozenset[Key]:
        """Those of these new partitions whose targets could not be made; the log says why."""
        now = time.monotonic()
        tried_at, tried = self._tried
        if not new <= self._ready and (now - tried_at >= RETRY_S or not new <= tried):
            self._tried = (now, new)
            await self._prepare(new)
        return frozenset(new - self._ready)

    async def _prepare(self, new: AbstractSet[Key]) -> None:
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
    """These clusters, connected, as the background loop of this process keeps them. Raises ClusterError."""
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(background_loop().cluster(ref)) for name, ref in refs.items()}
