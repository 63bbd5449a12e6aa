"""Collects all metrics for Prometheus, when they are requested.

The hot path only increments plain numbers, once per batch (`delivery/counters.py`); a request makes samples of them.
"""

from collections.abc import Iterator
from functools import cache
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mqbridge.delivery.counters import BUCKETS_S, Histogram
from mqbridge.gateway.metrics import clusters, routes, source_and_targets
from mqbridge.gateway.metrics.family import Family, MeteredGateway

SIMPLE: dict[str, type[CounterMetricFamily] | type[GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


@cache
def families() -> tuple[Family, ...]:
    """Return the declarations of all metrics, in the order of the metrics page."""
    return (
        *clusters.clusters(),
        *source_and_targets.lags(),
        *source_and_targets.targets(),
        *routes.states(),
        *routes.totals(),
        *routes.times(),
        *clusters.process(),
    )


class GatewayCollector(Collector):
    """Collects samples of all declared metrics at the time of the request."""

    def __init__(self, shown: MeteredGateway) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        for family in families():
            yield _filled(family, self._shown)

    def describe(self) -> list[Metric]:
        """Return nothing: registering the collector must not read a gateway that has not started."""
        return []


def _filled(family: Family, shown: MeteredGateway) -> Metric:
    if family.kind == "histogram":
        histograms = HistogramMetricFamily(family.name, family.text, labels=family.labels)
        for labels, value in family.read(shown):
            assert isinstance(value, Histogram)  # noqa: S101 - by its kind
            histograms.add_metric(labels, _buckets(value), value.seconds)
        return histograms
    made = SIMPLE[family.kind](family.name, family.text, labels=family.labels)
    for labels, value in family.read(shown):
        assert not isinstance(value, Histogram)  # noqa: S101 - by its kind
        made.add_metric(labels, float(value))
    return made


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the upper bounds of the buckets with cumulative counts, as Prometheus expects them."""
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(map(float, histogram.counts)), strict=True))


def make_registry(shown: MeteredGateway) -> CollectorRegistry:
    """Make a registry for one gateway: with the global registry, a process could not run several gateways."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(GatewayCollector(shown))
    return registry
