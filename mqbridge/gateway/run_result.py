"""The result of a run of the gateway."""

from dataclasses import dataclass, field
from typing import Any

from mqbridge.delivery.counters import Counters
from mqbridge.gateway.route import Route


@dataclass(slots=True)
class RouteResult:
    """The result of one route at the end of a run."""

    name: str
    counters: Counters
    error: str | None = None
    """The error that stopped the route; None if none did."""
    stopped: dict[str, str] = field(default_factory=dict)
    """The error of each partition that stopped with one, by the partition as text."""

    def as_json(self) -> dict[str, Any]:
        """Return the result for JSON output."""
        return {"name": self.name, **self.counters.totals(), "error": self.error, "stopped": self.stopped}


@dataclass(slots=True)
class RunResult:
    """The result of a run."""

    routes: list[RouteResult]
    seconds: float
    """Duration of the run."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """Reason of each cluster that was unreachable at the end, by cluster name; `away` in JSON."""

    @property
    def clean(self) -> bool:
        """True if no route and no partition stopped with an error; unreachable clusters do not count."""
        return all(route.error is None and not route.stopped for route in self.routes)

    def as_json(self) -> dict[str, Any]:
        """Return the result for JSON output."""
        return {
            "routes": [route.as_json() for route in self.routes],
            "seconds": self.seconds,
            "clean": self.clean,
            "away": self.unreachable,
        }


def route_result(route: Route) -> RouteResult:
    """Return the result of a route."""
    return RouteResult(
        name=route.name,
        counters=route.counters,
        error=None if route.error is None else str(route.error),
        stopped={str(partition): reason for partition, reason in route.stopped.items()},
    )
