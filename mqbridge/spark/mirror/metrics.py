"""Prometheus metrics of a mirror, served by the driver's Python process. Metrics that the gateway has too have the same names."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mqbridge.delivery.counters import declared_totals
from mqbridge.errors import ConfigError
from mqbridge.net.http_server import HttpServer
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.mirror.progress import RouteProgress

log = logging.getLogger(__name__)

MIRRORED_TOTALS = ("received", "stored", "dead", "filtered", "looped", "bytes")
"""Names of the totals of `delivery.counters` that a mirror has. The others describe consumer groups and connections."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge with one sample per route; a route for which `read` returns None has no sample."""

    name: str
    description: str
    read: Callable[[RouteProgress], float | None]


GAUGES = (
    Gauge(
        "mqbridge_route_up",
        "0 after the route's query has stopped with an error, otherwise 1",
        lambda route: float(route.error is None),
    ),
    Gauge("mqbridge_mirror_batch_seconds", "Duration of the last batch", lambda route: route.batch_s if route.batches else None),
    Gauge("mqbridge_mirror_left_seconds", "Time until the backlog is empty at the current speed", lambda route: route.left_s),
)


class MirrorCollector(Collector):
    """Collects the metrics of all routes when Prometheus scrapes them."""

    def __init__(self, routes: Callable[[], Iterable[RouteProgress]]) -> None:
        self._routes = routes

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        routes = list(self._routes())
        for total in declared_totals():
            if total.name in MIRRORED_TOTALS:
                counter = CounterMetricFamily(total.metric, f"{total.description}, in completed batches", labels=["route"])
                for route in routes:
                    counter.add_metric([route.name], route.totals.get(total.name, 0))
                yield counter
        batches = CounterMetricFamily("mqbridge_mirror_batches", "Completed batches of the query", labels=["route"])
        for route in routes:
            batches.add_metric([route.name], route.batches)
        yield batches
        yield self._lag_family(routes)
        for gauge in GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.description, labels=["route"])
            for route in routes:
                if (value := gauge.read(route)) is not None:
                    family.add_metric([route.name], value)
            yield family

    def describe(self) -> list[Metric]:
        """Return no metrics: a registry may call this before the mirror has any progress."""
        return []

    @staticmethod
    def _lag_family(routes: Iterable[RouteProgress]) -> Metric:
        description = "Backlog of the route in its source, sum of all partitions, in the source's own unit"
        family = GaugeMetricFamily("mqbridge_lag", description, labels=["route", "unit"])
        for route in routes:
            if route.backlog is not None:  # it has been measured
                family.add_metric([route.name, route.backlog.unit], route.backlog.units)
        return family


def serve(host: str, port: int, routes: Callable[[], Iterable[RouteProgress]]) -> Callable[[], None]:
    """Serve the metrics at `/metrics`, and return a function that stops the server. Raises ConfigError if it cannot listen."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(MirrorCollector(routes))
    server = HttpServer(host, port)
    try:
        server.bind()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", path="--metrics", hint="Choose another host or port"
        ) from error
    loop = background_loop()

    async def show(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def start() -> None:
        server.start(Starlette(routes=[Route("/metrics", show)]))

    loop.run(start())
    log.info("metrics: http://%s:%d/metrics", host, server.port)

    def stop() -> None:
        loop.run(server.stop())
        server.unbind()

    return stop
