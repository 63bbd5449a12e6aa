"""The gateway process: clusters, routes and the HTTP page of one configuration, from start to drained end.

Everything is prepared before anything runs: clusters are reached, topics found, targets opened, the port taken. What is wrong by
then is raised and nothing was half-started.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

from mqbridge.adapter import Adapter, Cluster, load_adapters
from mqbridge.config.models import Config
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.gateway.http import StatusServer
from mqbridge.gateway.route import Route
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

IDLE_CHECK_S = 0.1
REPORT_EVERY_S = 30.0
"""A line per route in the log, so that whoever looks at it sees that it moves."""


@dataclass(slots=True)
class RouteOutcome:
    """How a route ended."""

    name: str
    received: int
    stored: int
    dead: int
    acknowledged: int
    error: str | None
    stopped: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """How a run ended; `clean` when no route and no partition stopped by an error."""

    routes: list[RouteOutcome]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether everything that came was delivered."""
        return all(route.error is None and not route.stopped for route in self.routes)


class Gateway:
    """One configuration, running."""

    def __init__(self, config: Config, adapters: Mapping[str, Adapter] | None = None) -> None:
        self.config = config
        self._adapters = adapters
        self.clusters: dict[str, Cluster] = {}
        self.routes: list[Route] = []
        self.ready = False
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Drain and end; `run` returns when that is done."""
        self._stop.set()

    async def run(self, until_idle_s: float | None = None) -> Outcome:
        """Run until `stop`, until every route has stopped, or until nothing came for `until_idle_s`.

        Raises ConfigError or ClusterError when it cannot begin.
        """
        began = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            await self._prepare(stack)
            tasks = [spawn(route.run(), f"route {route.name}") for route in self.routes]
            self.ready = True
            reporter = spawn(self._report(), "report")
            try:
                await self._wait(tasks, until_idle_s)
            finally:
                self.ready = False
                await cancel(reporter)
                for route in self.routes:
                    route.stop()
                await asyncio.gather(*tasks, return_exceptions=True)
        return Outcome([_outcome(route) for route in self.routes], time.monotonic() - began)

    async def _prepare(self, stack: contextlib.AsyncExitStack) -> None:
        config = self.config
        server = StatusServer(self, config.http.host, config.http.port) if config.http.enabled else None
        if server is not None:
            server.bind()
            stack.callback(server.unbind)
        self.clusters = await stack.enter_async_context(connected(config, self._adapters))
        checkpoints = None
        if config.state is not None:
            checkpoints = Checkpoints(config.state)
            stack.callback(checkpoints.close)
            writer = spawn(checkpoints.run(), "checkpoints")
            stack.push_async_callback(cancel, writer)
        self.routes = [Route(route, self.clusters, checkpoints, config.shutdown_timeout) for route in config.routes]
        for route in self.routes:
            stack.push_async_callback(route.close)
            await route.prepare()
        if server is not None:
            await stack.enter_async_context(server)

    async def _wait(self, tasks: list[asyncio.Task[None]], until_idle_s: float | None) -> None:
        stopping = spawn(self._stop.wait(), "stop signal")
        loop = asyncio.get_running_loop()
        try:
            while not self._stop.is_set() and not all(task.done() for task in tasks):
                await asyncio.wait([stopping, *tasks], timeout=IDLE_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
                if until_idle_s is not None and all(route.idle_for(loop.time()) >= until_idle_s for route in self.routes):
                    return
                if any(task.done() for task in tasks):
                    await asyncio.sleep(IDLE_CHECK_S)
        finally:
            await cancel(stopping)

    async def _report(self) -> None:
        before = dict.fromkeys((route.name for route in self.routes), 0)
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            for route in self.routes:
                stored = route.counters.stored
                log.info(
                    "route %s: %s messages stored, %.0f per second; %d partitions, %.1f MB in flight, %d dead letters",
                    route.name,
                    f"{stored:,}",
                    (stored - before[route.name]) / REPORT_EVERY_S,
                    len(route.deliveries),
                    route.budget.used / 1e6,
                    route.counters.dead,
                )
                before[route.name] = stored


@contextlib.asynccontextmanager
async def connected(config: Config, adapters: Mapping[str, Adapter] | None = None) -> AsyncIterator[dict[str, Cluster]]:
    """Every configured cluster, reached; closed at the end. Raises ClusterError naming the one that cannot be."""
    if adapters is None:
        adapters = load_adapters()
    clusters = {name: adapters[cluster.system].make_cluster(name, cluster.settings) for name, cluster in config.clusters.items()}
    try:
        await _connect_all(clusters.values())
        yield clusters
    finally:
        await asyncio.gather(*(cluster.close() for cluster in clusters.values()), return_exceptions=True)


async def _connect_all(clusters: Iterable[Cluster]) -> None:
    """Connect side by side; the first failure ends the other attempts and is raised."""
    tasks = [spawn(cluster.connect(), f"connect {cluster.name}", quiet=True) for cluster in clusters]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


def _outcome(route: Route) -> RouteOutcome:
    counters = route.counters
    return RouteOutcome(
        name=route.name,
        received=counters.received,
        stored=counters.stored,
        dead=counters.dead,
        acknowledged=counters.acknowledged,
        error=None if route.error is None else str(route.error),
        stopped={str(partition): reason for partition, reason in route.stopped.items()},
    )
