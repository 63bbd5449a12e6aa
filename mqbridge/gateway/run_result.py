"""The result of a run of the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mqbridge.delivery.counters import Counters
from mqbridge.gateway.listeners import ListenerRunner
from mqbridge.routes.route import Route


@dataclass(slots=True)
class RouteResult:
    """The result of one route at the end of a run."""

    name: str
    counters: Counters
    error: str | None = None
    """The error that stopped the route; None if none did."""
    stopped: dict[str, str] = field(default_factory=dict)
    """The error of each partition that stopped with one, and of each topic that failed alone, by partition or topic as text."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why it is unknown whether partitions have unread messages, by the partition or topic as text, or by the route's name."""

    def as_json(self) -> dict[str, Any]:
        """Return the result for JSON output."""
        return {
            "name": self.name,
            **self.counters.totals(),
            "error": self.error,
            "stopped": self.stopped,
            "unread": dict(self.unread),
        }


@dataclass(slots=True)
class ListenerResult:
    """What one listener has done in a run."""

    name: str
    counts: dict[str, int]
    """The totals of `ServerCounts`, and those of its dead letters and refused connections."""

    def as_json(self) -> dict[str, Any]:
        """Return the result for JSON output."""
        return {"name": self.name, **self.counts}


@dataclass(slots=True)
class RunResult:
    """The result of a run."""

    routes: list[RouteResult]
    seconds: float
    """Duration of the run."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """Reason of each cluster that was unreachable at the end, by cluster name; `away` in JSON."""
    listeners: list[ListenerResult] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """True if no route and no partition stopped with an error, and none may have unread messages.

        Unreachable clusters do not count, because a source that cannot be asked makes its partitions `unread`.
        """
        return not self.has_stopped and not any(route.unread for route in self.routes)

    @property
    def has_stopped(self) -> bool:
        """True if a route or a partition stopped with an error, or a topic failed alone."""
        return any(route.error is not None or route.stopped for route in self.routes)

    def as_json(self) -> dict[str, Any]:
        """Return the result for JSON output."""
        return {
            "routes": [route.as_json() for route in self.routes],
            "seconds": self.seconds,
            "clean": self.clean,
            "away": self.unreachable,
            "listeners": [listener.as_json() for listener in self.listeners],
        }


def route_result(route: Route, unread: Mapping[str, str]) -> RouteResult:
    """Return the result of a route."""
    state = route.state
    return RouteResult(
        name=route.name,
        counters=state.counters,
        error=None if state.error is None else str(state.error),
        stopped={**state.failed_topics, **{str(partition): reason for partition, reason in state.stopped.items()}},
        unread=unread,
    )


def listener_result(runner: ListenerRunner) -> ListenerResult:
    """Return what a listener has done."""
    listener = runner.listener
    counts = listener.server.counts._asdict()
    for present in ("producers", "consumers"):  # these are present numbers, and there are none at the end
        del counts[present]
    more = {"dead_letters": listener.publishers.dead_letters, "refused_connections": listener.port.refused}
    return ListenerResult(runner.name, counts | more)
