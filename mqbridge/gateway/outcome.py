"""How a run of the gateway ended."""

from dataclasses import dataclass, field
from typing import Any

from mqbridge.delivery.counters import Counters
from mqbridge.gateway.route import Route


@dataclass(slots=True)
class RouteOutcome:
    """How a route ended."""

    name: str
    counters: Counters
    error: str | None = None
    stopped: dict[str, str] = field(default_factory=dict)
    """Partitions that stopped by an error, and by which."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, **self.counters.totals(), "error": self.error, "stopped": self.stopped}


@dataclass(slots=True)
class Outcome:
    """How a run ended; `clean` when no route and no partition stopped by an error."""

    routes: list[RouteOutcome]
    seconds: float
    away: dict[str, str] = field(default_factory=dict)
    """Clusters that could not be reached when it ended, and why."""

    @property
    def clean(self) -> bool:
        """Whether everything that came was delivered."""
        return all(route.error is None and not route.stopped for route in self.routes)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "routes": [route.as_json() for route in self.routes],
            "seconds": self.seconds,
            "clean": self.clean,
            "away": self.away,
        }


def outcome_of(route: Route) -> RouteOutcome:
    """How this route ended."""
    return RouteOutcome(
        route.name,
        route.counters,
        None if route.error is None else str(route.error),
        {str(partition): reason for partition, reason in route.stopped.items()},
    )
