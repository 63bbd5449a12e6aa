"""The HTTP endpoints of a running gateway: metrics, health, and the state of its routes and listeners as JSON.

/metrics        Prometheus text
/health/live    200 while the process answers
/health/ready   200 while every route runs, every listener serves clients, every cluster can be reached, and every target sends
                receipts and keeps unread messages; else 503 with reasons
/routes         every route: its totals, its lag, and the problem that blocks it
/listeners      every listener: its address, its totals, its producers and consumers, and the problem that blocks it
/reload         POST: reload the configuration; 200 if it was applied, 422 with the problems if not, 403 if the client may not,
                409 if the gateway has no file, or is starting or stopping
"""

import asyncio
import logging
from types import TracebackType
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as HttpRoute

from mqbridge.adapter.cluster import Cluster, CountsUnreplicated
from mqbridge.config.options.http import Http
from mqbridge.errors import ConfigError
from mqbridge.gateway.health import (
    connectivity_of,
    failing_targets,
    has_trouble,
    listener_has_trouble,
    outage_of,
    route_failures,
    stuck_targets,
    unreachable_clusters,
)
from mqbridge.gateway.listeners import ListenerRunner
from mqbridge.gateway.metrics.collector import make_registry
from mqbridge.gateway.metrics.family import MeteredGateway
from mqbridge.gateway.reload_permission import why_not_permitted
from mqbridge.net.http_server import HttpServer
from mqbridge.routes.route import Route

log = logging.getLogger(__name__)


class StatusServer:
    """The HTTP server. Call `bind` before anything else starts; then `async with` serves requests until its end."""

    def __init__(self, gateway: MeteredGateway, options: Http) -> None:
        self._gateway, self._options = gateway, options
        self._address = f"{options.host}:{options.port}"
        self._registry = make_registry(gateway)
        self._server = HttpServer(options.host, options.port)

    @property
    def port(self) -> int:
        """The bound port; 0 before `bind`."""
        return self._server.port

    def bind(self) -> None:
        """Bind the port. Raises ConfigError if this fails, for example because the port is in use."""
        try:
            self._server.bind()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._address}: {error.strerror or error}",
                path="http.listen",
                hint="Choose another port, 0 for any free one, or set http.enabled: false",
            ) from error

    def unbind(self) -> None:
        """Release the port when the gateway has stopped, or could not start."""
        self._server.unbind()

    async def __aenter__(self) -> Self:
        routes = [
            HttpRoute("/metrics", self._metrics),
            HttpRoute("/health/live", self._live),
            HttpRoute("/health/ready", self._ready),
            HttpRoute("/routes", self._routes),
            HttpRoute("/listeners", self._listeners),
            HttpRoute("/reload", self._reload, methods=["POST"]),
        ]
        self._server.start(Starlette(routes=routes))
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop()

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _live(self, _: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _ready(self, _: Request) -> Response:
        gateway, now = self._gateway, asyncio.get_running_loop().time()
        stopped = {name: why for route in gateway.routes for name, why in route_failures(route).items()}
        users: list[Route | ListenerRunner] = [*gateway.routes, *gateway.listeners]
        unreachable = {name: why for user in users for name, why in unreachable_clusters(gateway.clusters, user).items()}
        stuck = {f"{route.name} {label}": why for route in gateway.routes for label, why in stuck_targets(route, now).items()}
        unprotected = {f"{route.name} {label}": why for route in gateway.routes for label, why in route.state.unprotected.items()}
        paused = {f"{route.name} {name}": why for route in gateway.routes for name, why in route.state.pauses.items()}
        failing = {f"{route.name} {label}": why for route in gateway.routes for label, why in failing_targets(route, now).items()}
        optional = self._options.ready_without
        has_troubles = any(has_trouble(gateway, route, now, optional) for route in gateway.routes) or any(
            listener_has_trouble(gateway, runner, optional) for runner in gateway.listeners
        )
        ready = gateway.ready and not has_troubles
        last_reload = gateway.reloader.last
        body = {
            "ready": ready,
            "stopped": stopped,
            "away": unreachable,
            "stuck": stuck,
            "paused": paused,
            "failing": failing,
            "unprotected": unprotected,
            "listeners": {runner.name: why for runner in gateway.listeners if (why := runner.problem) is not None},
            "clusters": {name: _connection_state(cluster) for name, cluster in gateway.clusters.items()},
            "reload": None if last_reload is None else last_reload.as_dict(),
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _routes(self, _: Request) -> Response:
        return JSONResponse([self._describe(route) for route in self._gateway.routes])

    async def _listeners(self, _: Request) -> Response:
        return JSONResponse([_describe_listener(runner) for runner in self._gateway.listeners])

    async def _reload(self, request: Request) -> Response:
        if (problem := await why_not_permitted(request, self._options.reload_token)) is not None:
            log.warning(
                "POST /reload from %s refused: %s", request.client.host if request.client else "an unknown client", problem
            )
            return JSONResponse({"ok": False, "problems": [problem]}, status_code=403)
        reloader = self._gateway.reloader
        if reloader.path is None or not self._gateway.ready:
            why = "the gateway is starting or stopping" if reloader.path else "the gateway was not started from a file"
            return JSONResponse({"ok": False, "problems": [f"cannot reload: {why}"]}, status_code=409)
        result = await reloader.reload()
        return JSONResponse(result.as_dict(), status_code=422 if result.problems else 200)

    def _describe(self, route: Route) -> dict[str, Any]:
        """Return the object for `/routes` about one route."""
        now, state = asyncio.get_running_loop().time(), route.state
        lag, unreachable = self._gateway.lag.of(route), unreachable_clusters(self._gateway.clusters, route)
        waiting_s = {  # by target: time since its last receipt while sends are in flight
            label: max(progress.waiting_s(now) for progress in progresses) for label, progresses in state.progress.items()
        }
        blocked_by = state.waits_because or next((f"cluster {name} {why}" for name, why in unreachable.items()), None)
        return {
            "name": route.name,
            **state.counters.totals(),
            "in_flight_bytes": state.budget.used,
            "in_flight_messages": state.in_flight_messages,
            "lag": {
                "total": None if lag.measured_at is None else lag.total,
                "unit": lag.unit,
                "age_s": None if lag.measured_at is None else round(now - lag.measured_at, 1),
                "partitions": {f"{topic}/{partition}": count for (topic, partition), count in lag.partitions.items()},
                "problem": lag.problem,
            },
            "lanes": {  # by partition: the position after the last batch that is stored with all batches before it
                str(partition): ":".join(map(str, delivery.position or ())) for partition, delivery in state.deliveries.items()
            },
            "targets": state.target_partitions,  # number of target partitions, by source topic and target label
            "waiting_s": {label: round(seconds, 1) for label, seconds in waiting_s.items() if seconds},
            "stopped": {str(partition): why for partition, why in state.stopped.items()},
            "paused": dict(state.pauses),  # source topics or partitions that the source does not let us read now, with the reason
            "failing": failing_targets(route, now),  # targets whose sends fail and are retried, with the last failure
            "unprotected": dict(state.unprotected),
            "failed_topics": dict(
                state.failed_topics
            ),  # topics that match a pattern and cannot be read or copied, with the reason
            "excluded": dict(state.endpoints.excluded),  # topics that a pattern matches and that are not read, with the reason
            "warnings": route.warnings.current,
            "error": None if state.error is None else str(state.error),
            "retrying": None if blocked_by is None else str(blocked_by),
        }


def _describe_listener(runner: ListenerRunner) -> dict[str, Any]:
    """Return the object for `/listeners` about one listener."""
    listener = runner.listener
    return {
        "name": runner.name,
        "system": runner.config.system,
        "cluster": runner.config.cluster,
        "address": runner.address,
        "web": runner.web_address,
        "state": runner.state.value,
        "problem": runner.problem,  # why it does not serve clients
        "connections": len(listener.port.connections),
        "refused_connections": listener.port.refused,
        **listener.server.counts._asdict(),
        "dead_letters": listener.publishers.dead_letters,
        "in_flight_bytes": listener.in_flight.used,
        "unacknowledged_bytes": listener.unacknowledged.used,
        "details": dict(listener.server.describe()),  # of producers and consumers, as the system's server shows them
    }


def _connection_state(cluster: Cluster) -> dict[str, Any]:
    """Return the object for `/health/ready` about one cluster; a cluster without connections is always up."""
    connectivity = connectivity_of(cluster)
    if connectivity is None:
        return {"up": True}
    return {
        "up": connectivity.unreachable_s is None,
        "why": outage_of(cluster),
        "reconnects": connectivity.reconnects,
        "connection_failures": connectivity.failures,
        "retries": connectivity.retries,
        "unreplicated": connectivity.unreplicated if isinstance(connectivity, CountsUnreplicated) else 0,
    }
