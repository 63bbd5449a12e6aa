"""Checks, creates and grows the target topics of a route exactly as the gateway does, before messages are moved into them.

At its start, the mirror does this for all source topics. The planner of the streaming source does it for new topics and
partitions, before it plans their first batch: tasks never create topics.
"""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet

from mqbridge.adapter.cluster import Cluster
from mqbridge.config.options.route import Route
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.errors import MqbridgeError
from mqbridge.routes.endpoints import RouteEndpoints
from mqbridge.routes.plan import Plan, Planner, raise_problems
from mqbridge.routes.retention_warnings import TopicUse, warnings_about
from mqbridge.routes.unprotected import add_unprotected_problems, unprotected_error
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.cluster_ref import ClusterRef

log = logging.getLogger(__name__)

RETRY_INTERVAL_S = 10.0
"""Pause after a failure before the same targets are planned again. Partitions that appear meanwhile end the pause."""

FAILED_TEXT = "route %s: topic %s is not read, the route continues with the other known topics: %s"
"""Log text about a topic that matches a pattern and cannot be copied."""

PartitionKey = tuple[str, str]
"""A source topic, and the name of one of its partitions."""


async def prepare_targets(routes: list[Route], clusters: Mapping[str, Cluster], graph: TopicGraph | None = None) -> list[Plan]:
    """Plan all routes, and if all plans are valid, create their targets. Raises ConfigError or ClusterError.

    `graph` contains all routes of the configuration; None: these routes are all of them.
    """
    graph = TopicGraph(routes, {}) if graph is None else graph
    planner = Planner(clusters, graph=graph)
    plans = [await planner.plan(route) for route in routes]
    await add_unprotected_problems(plans, clusters)
    raise_problems(plans)
    for plan in plans:
        for note in graph.notes(plan.route):
            log.info("route %s: %s", plan.route.name, note)
        for warning in await _create_targets(plan.route, clusters, graph, plan):
            log.warning("route %s, warning about its topics: %s", plan.route.name, warning)
        for topic, error in plan.failed.items():
            log.warning(FAILED_TEXT, plan.route.name, topic, error)
    return plans


async def _create_targets(route: Route, clusters: Mapping[str, Cluster], graph: TopicGraph, plan: Plan) -> list[str]:
    """Create missing targets, open each target once to prove that it accepts messages, and return warnings about topics.

    Topics for which this fails are moved from the sources of the plan to its failed topics, if only a pattern selects them.

    Raises ClusterError if the cluster of a target deletes messages that nobody has read, and the target does not allow it.
    The source topics are checked like topics without a consumer group: a mirror does not join the route's group, so the group
    retains no messages for the mirror.
    """
    endpoints = RouteEndpoints(route, clusters, _ignore_looped, lambda: graph)
    try:
        await endpoints.open(plan)
    finally:
        await endpoints.close()
    plan.failed = endpoints.failed_topics
    plan.sources = [source for source in plan.sources if source.selected.topic not in plan.failed]
    sources = [TopicUse(route.source.cluster, source.selected.topic) for source in plan.sources]
    if endpoints.unprotected:
        raise unprotected_error(route.name, endpoints.unprotected)
    return await warnings_about([*sources, *plan.target_uses], clusters)


def _ignore_looped(_: int) -> None:
    """Ignore the number of looped messages, because nothing is sent through these endpoints."""


class NewTargetCreator:
    """Creates the targets of new source topics and partitions of one route. The source calls it on the background event loop."""

    def __init__(self, route: Route, refs: Mapping[str, ClusterRef], graph: TopicGraph | None = None) -> None:
        self._route = route
        self._refs = {name: refs[name] for name in route.clusters}
        self._graph = TopicGraph([route], {}) if graph is None else graph
        self._failed: dict[str, str] = {}
        """The topics that failed in the last plan, with the reasons, which are logged once."""
        self._ready: set[PartitionKey] = set()
        """The source partitions whose targets were created."""
        self._last_attempt: tuple[float, AbstractSet[PartitionKey]] = (float("-inf"), frozenset())
        """Monotonic time of the last attempt, and its partitions."""

    async def create(self, new: AbstractSet[PartitionKey]) -> frozenset[PartitionKey]:
        """Create targets for these new partitions, and return the partitions that still have none.

        Failures are logged, and a call after RETRY_INTERVAL_S, or with other partitions too, tries again.
        """
        now = time.monotonic()
        tried_at, tried = self._last_attempt
        # Partitions that the last attempt did not include are tried at once, all others after a pause.
        may_try = now - tried_at >= RETRY_INTERVAL_S or not new <= tried
        if not new <= self._ready and may_try:
            self._last_attempt = (now, new)
            await self._plan_and_create(new)
        return frozenset(new - self._ready)

    async def _plan_and_create(self, new: AbstractSet[PartitionKey]) -> None:
        """Plan the whole route again, create its missing targets, and mark the new partitions of the plan as ready."""
        try:
            async with connected_clusters(self._refs) as clusters:
                plan = await Planner(clusters, graph=self._graph).plan(self._route)
                raise_problems([plan])
                await _create_targets(self._route, clusters, self._graph, plan)  # only `prepare_targets` logs the warnings
        except MqbridgeError as error:
            log.warning(
                "route %s: cannot create the targets of new partitions of %s, retrying in %.0f s: %s",
                self._route.name,
                ", ".join(sorted({topic for topic, _ in new})),
                RETRY_INTERVAL_S,
                error,
            )
            return
        for topic, failure in plan.failed.items():
            if self._failed.get(topic) != str(failure):
                log.warning(FAILED_TEXT, self._route.name, topic, failure)
        self._failed = {topic: str(failure) for topic, failure in plan.failed.items()}
        planned = {(source.selected.topic, name) for source in plan.sources for name in source.topic.partitions}
        self._ready |= planned.intersection(new)


@contextlib.asynccontextmanager
async def connected_clusters(refs: Mapping[str, ClusterRef]) -> AsyncIterator[dict[str, Cluster]]:
    """Yield the connected clusters by name; the background loop shares them in this process. Raises ClusterError."""
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(background_loop().cluster(ref)) for name, ref in refs.items()}
