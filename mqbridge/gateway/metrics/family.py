"""The declaration of a metric: its name, type, labels and meaning, when to look at it, and how to read it from a gateway."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.delivery.counters import Histogram
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.reload import Reloader
from mqbridge.gateway.route import Route


class Shown(Protocol):
    """A gateway whose metrics are shown."""

    clusters: dict[str, Cluster]
    routes: list[Route]
    lag: LagWatch
    reloader: Reloader
    ready: bool
    """True while everything is started and nothing is stopping."""


Value = float | Histogram
Samples = Iterable[tuple[tuple[str, ...], Value]]
"""Label values, and the measured value."""


class Family(NamedTuple):
    """One metric. `kind` is `counter`, `gauge` or `histogram`; the name of a counter is without its `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    look: str
    """When a person should look at it."""
    read: Callable[[Shown], Samples]

    @property
    def full_name(self) -> str:
        """The name on the metrics page."""
        return self.name + "_total" * (self.kind == "counter")


ROUTE = ("route",)


def of_routes(read: Callable[[Route], Value | None]) -> Callable[[Shown], Samples]:
    """Read one sample per route; none if the value is None."""

    def samples(shown: Shown) -> Samples:
        values = ((route, read(route)) for route in shown.routes)
        return [((route.name,), value) for route, value in values if value is not None]

    return samples
