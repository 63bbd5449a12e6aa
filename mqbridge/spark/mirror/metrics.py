"""Metrics of a mirror for Prometheus, in the driver's own Python. Totals have the names that they have in a gateway."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mqbridge.delivery.counters import declared
from mqbridge.errors import ConfigError
from mqbridge.spark.mirror.progress import RouteProgress

log = logging.getLogger(__name__)

TOTALS = ("received", "stored", "dead", "filtered", "looped", "bytes")
"""Of `delivery.counters`: the others are about groups and sessions, which a mirror does not have."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One gauge per route."""

    name: str
    text: str
    read: Callable[[RouteProgress], float | None]


GAUGES = (
    Gauge(
        "mqbridge_route_up", "1 while the route's query runs, 0 when it stopped by an error", lambda one: float(one.error is None)
    ),
    Gauge("mqbridge_mirror_batch_seconds", "How long the last batch took", lambda one: one.batch_s if one.batches else None),
    Gauge("mqbridge_mirror_left_seconds", "After how long the backlog is gone if it goes on like this", lambda one: one.left_s),
)


class MirrorCollector(Collector):
    """Samples of every route, at the moment of asking."""

    def __init__(self, routes: Callable[[], Iterable[RouteProgress]]) -> None:
        self._routes = routes

    def collect(self) -> Iterator[Metric]:
        """All families."""
        routes = list(self._routes())
        for total in declared():
            if total.name in TOTALS:
                counter = CounterMetricFamily(total.metric, f"{total.text}, as far as batches are done", labels=["route"])
                for one in routes:
                    counter.add_metric([one.name], one.totals.get(total.name, 0))
                yield counter
        batches = CounterMetricFamily("mqbridge_mirror_batches", "Batches of the query that are done", labels=["route"])
        for one in routes:
            batches.add_metric([one.name], one.batches)
        yield batches
        yield self._lag(routes)
        for gauge in GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=["route"])
            for one in routes:
                if (value := gauge.read(one)) is not None:
                    family.add_metric([one.name], value)
            yield family

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read a mirror that has not begun."""
        return []

    @staticmethod
    def _lag(routes: Iterable[RouteProgress]) -> Metric:
        text = "How much of the source lies before the route, all partitions together, in the source's own unit"
        family = GaugeMetricFamily("mqbridge_lag", text, labels=["route", "unit"])
        for one in routes:
            if one.backlog is not None:
                family.add_metric([one.name, one.backlog.unit], one.backlog.units)
        return family


def serve(host: str, port: int, routes: Callable[[], Iterable[RouteProgress]]) -> Callable[[], None]:
    """Answer at `/metrics` until what is returned is called. Raises ConfigError when the port is taken."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(MirrorCollector(routes))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}", path="--metrics", hint="Choose another port"
        ) from error
    log.info("metrics: http://%s:%d/metrics", host, server.server_port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
