"""The declaration of a metric: its name, type, labels and meaning, when to look at it, and how to read it from a gateway."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.delivery.counters import Histogram
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.listeners import ListenerRunner
from mqbridge.gateway.reload import Reloader
from mqbridge.routes.route import Route
from mqbridge.routes.route_state import RouteState


class MeteredGateway(Protocol):
    """The parts of a gateway that metrics and the HTTP server read."""

    clusters: dict[str, Cluster]
    routes: list[Route]
    listeners: list[ListenerRunner]
    lag: LagWatch
    reloader: Reloader
    ready: bool
    """True once the gateway has started, until it begins to stop."""


Value = float | Histogram
Samples = Iterable[tuple[tuple[str, ...], Value]]
"""Pairs of label values and the measured value."""


class Family(NamedTuple):
    """The declaration of one metric. `kind` is `counter`, `gauge` or `histogram`; a counter's name is without `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    description: str
    when_to_look: str
    """When to look at the metric, and what its value then means."""
    read: Callable[[MeteredGateway], Samples]
    """Returns the current samples."""

    @property
    def full_name(self) -> str:
        """The name on the metrics page: with `_total` for a counter."""
        return self.name + "_total" * (self.kind == "counter")


ROUTE = ("route",)
"""The labels of a metric with one sample per route."""


def of_routes(read: Callable[[RouteState], Value | None]) -> Callable[[MeteredGateway], Samples]:
    """Return a function that reads one sample per route; routes whose value is None have no sample."""

    def samples(gateway: MeteredGateway) -> Samples:
        values = ((route, read(route.state)) for route in gateway.routes)
        return [((route.name,), value) for route, value in values if value is not None]

    return samples
