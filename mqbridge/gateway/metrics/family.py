"""The declaration of a metric: its name, type, labels and meaning, when to look at it, and how to read it from a gateway."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.delivery.counters import Histogram
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.reload import Reloader
from mqbridge.gateway.route import Route


class MeteredGateway(Protocol):
    """The parts of a gateway that metrics and the HTTP server read."""

    clusters: dict[str, Cluster]
    routes: list[Route]
    lag: LagWatch
    reloader: Reloader
    ready: bool
    """True from the end of the start to the beginning of the stop."""


Value = float | Histogram
Samples = Iterable[tuple[tuple[str, ...], Value]]
"""Pairs of label values and the measured value."""


class Family(NamedTuple):
    """The declaration of one metric. `kind` is `counter`, `gauge` or `histogram`; a counter's name is without `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    look: str
    """When a person should look at it."""
    read: Callable[[MeteredGateway], Samples]

    @property
    def full_name(self) -> str:
        """The name on the metrics page: with `_total` for a counter."""
        return self.name + "_total" * (self.kind == "counter")


ROUTE = ("route",)


def of_routes(read: Callable[[Route], Value | None]) -> Callable[[MeteredGateway], Samples]:
    """Return a function that reads one sample per route, and leaves out routes whose value is None."""

    def samples(shown: MeteredGateway) -> Samples:
        values = ((route, read(route)) for route in shown.routes)
        return [((route.name,), value) for route, value in values if value is not None]

    return samples
