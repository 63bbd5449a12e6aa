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
from mqbridge.gateway.metrics import clusters, listeners, routes, source_and_targets
from mqbridge.gateway.metrics.family import Family, MeteredGateway

METRIC_CLASSES: dict[str, type[CounterMetricFamily] | type[GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}
"""Classes of the Prometheus client by `Family.kind`, without histograms, whose samples have another form."""


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
        *listeners.listeners(),
        *clusters.process(),
    )


class GatewayCollector(Collector):
    """Collects samples of all declared metrics at the time of the request."""

    def __init__(self, gateway: MeteredGateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """Yield every declared metric with its current samples."""
        for family in families():
            yield _to_metric(family, self._gateway)

    def describe(self) -> list[Metric]:
        """Return nothing. Otherwise the registration would call `collect`, which must not read a gateway that has not started."""
        return []


def _to_metric(family: Family, gateway: MeteredGateway) -> Metric:
    """Return a declared metric with its current samples, as the Prometheus client expects it."""
    if family.kind == "histogram":
        histograms = HistogramMetricFamily(family.name, family.description, labels=family.labels)
        for labels, value in family.read(gateway):
            assert isinstance(value, Histogram)  # noqa: S101 - the kind is histogram
            histograms.add_metric(labels, _buckets(value), value.seconds)
        return histograms
    metric = METRIC_CLASSES[family.kind](family.name, family.description, labels=family.labels)
    for labels, value in family.read(gateway):
        assert not isinstance(value, Histogram)  # noqa: S101 - the kind is counter or gauge
        metric.add_metric(labels, float(value))
    return metric


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the upper bounds of the buckets with cumulative counts, as Prometheus expects them."""
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(map(float, histogram.counts)), strict=True))


def make_registry(gateway: MeteredGateway) -> CollectorRegistry:
    """Make a registry for one gateway: a process that runs several gateways could not use the global registry for all of them."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(GatewayCollector(gateway))
    return registry
