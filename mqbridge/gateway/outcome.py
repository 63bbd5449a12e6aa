"""How a run of the gateway ended."""

from dataclasses import dataclass, field

from mqbridge.gateway.route import Route


@dataclass(slots=True)
class RouteOutcome:
    """How a route ended."""

    name: str
    received: int
    stored: int
    dead: int
    acknowledged: int
    error: str | None
    filtered: int = 0
    looped: int = 0
    gaps: int = 0
    stopped: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """How a run ended; `clean` when no route and no partition stopped by an error."""

    routes: list[RouteOutcome]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether everything that came was delivered."""
        return all(route.error is None and not route.stopped for route in self.routes)


def outcome_of(route: Route) -> RouteOutcome:
    """How this route ended."""
    counters = route.counters
    return RouteOutcome(
        name=route.name,
        received=counters.received,
        stored=counters.stored,
        dead=counters.dead,
        acknowledged=counters.acknowledged,
        error=None if route.error is None else str(route.error),
        filtered=counters.filtered,
        looped=counters.looped,
        gaps=counters.gaps,
        stopped={str(partition): reason for partition, reason in route.stopped.items()},
    )
