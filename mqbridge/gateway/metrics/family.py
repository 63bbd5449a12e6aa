"""What a metric is: its name, type, labels and meaning, when to look at it, and how it is read when the page is asked for."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from mqbridge.adapter.cluster import Cluster
from mqbridge.delivery.counters import Histogram
from mqbridge.gateway.lag import LagWatch
from mqbridge.gateway.reload import Reloader
from mqbridge.gateway.route import Route


class Shown(Protocol):
    """What is shown: a gateway."""

    clusters: dict[str, Cluster]
    routes: list[Route]
    lag: LagWatch
    reloader: Reloader
    ready: bool
    """Everything was started and nothing is being stopped."""


Value = float | Histogram
Samples = Iterable[tuple[tuple[str, ...], Value]]
"""Label values, and what is measured."""


class Family(NamedTuple):
    """One metric. `kind` is `counter`, `gauge` or `histogram`; the name of a counter is without its `_total`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    look: str
    """When a person looks at it."""
    read: Callable[[Shown], Samples]

    @property
    def full_name(self) -> str:
        """As it stands on the page."""
        return self.name + "_total" * (self.kind == "counter")


ROUTE = ("route",)


def of_routes(read: Callable[[Route], Value | None]) -> Callable[[Shown], Samples]:
    """One sample per route; none where there is nothing to say."""

    def samples(shown: Shown) -> Samples:
        values = ((route, read(route)) for route in shown.routes)
        return [((route.name,), value) for route, value in values if value is not None]

    return samples
