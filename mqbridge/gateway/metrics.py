"""The metrics page: the routes' totals (`delivery/counters.py`) and gauges, read when the page is asked for.

Nothing is counted twice: the hot path adds to plain integers once per batch, the collector turns them into samples.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mqbridge.delivery.counters import declared
from mqbridge.gateway.reload import Reloaded
from mqbridge.gateway.route import Route


class RouteCollector(Collector):
    """Samples of every route at the moment of asking, and of the last reload."""

    def __init__(self, routes: Callable[[], Iterable[Route]], reloaded: Callable[[], Reloaded | None]) -> None:
        self._routes, self._reloaded = routes, reloaded

    def collect(self) -> Iterator[Metric]:
        """All families, each with one sample per route."""
        routes = list(self._routes())
        for total in declared():
            family = CounterMetricFamily(total.metric, total.text, labels=["route"])
            for route in routes:
                family.add_metric([route.name], getattr(route.counters, total.name))
            yield family
        now = asyncio.get_running_loop().time()
        gauges: dict[str, tuple[str, Callable[[Route], float]]] = {
            "mqbridge_route_up": ("1 while the route runs, 0 when it stopped", lambda r: float(r.error is None)),
            "mqbridge_route_sessions": ("How often the route joined its group since it was configured", lambda r: r.sessions),
            "mqbridge_lanes": ("Source partitions that are assigned to this process", lambda r: len(r.deliveries)),
            "mqbridge_stopped_partitions": ("Partitions that stopped by an error", lambda r: len(r.stopped)),
            "mqbridge_in_flight_bytes": ("Bytes received and not yet acknowledged", lambda r: r.budget.used),
            "mqbridge_lane_head_age_seconds": ("Age of the oldest batch in flight", lambda r: r.head_age(now)),
        }
        for name, (text, read) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=["route"])
            for route in routes:
                gauge.add_metric([route.name], read(route))
            yield gauge
        last = self._reloaded()
        text = "1 unless the configuration was read again and could not be taken"
        yield GaugeMetricFamily("mqbridge_reload_ok", text, value=float(last is None or not last.problems))


def make_registry(routes: Callable[[], Iterable[Route]], reloaded: Callable[[], Reloaded | None]) -> CollectorRegistry:
    """A registry of our own: nothing global, so that tests and embedders can run several gateways."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(RouteCollector(routes, reloaded))
    return registry
