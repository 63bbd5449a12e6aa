"""The difference between the running configuration and a new one.

A cluster stays connected if its settings are unchanged. A route or listener keeps running if its configuration is unchanged and
all its clusters stay connected. A route that stopped with an error is started again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.config import Config
from mqbridge.config.options.listener import ListenerConfig
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.gateway.listeners import ListenerRunner
from mqbridge.routes.route import Route


@dataclass(slots=True)
class Change:
    """Clusters, routes and listeners to start and stop; all others keep running."""

    clusters_to_connect: dict[str, ClusterConfig] = field(default_factory=dict)
    """New clusters, and clusters with changed settings, by name."""
    clusters_to_close: list[str] = field(default_factory=list)
    """Names of the running clusters that were removed or replaced."""
    routes_to_start: list[RouteConfig] = field(default_factory=list)
    """New routes and routes to restart."""
    routes_to_stop: list[Route] = field(default_factory=list)
    """Removed routes and routes to restart."""
    listeners_to_start: list[ListenerConfig] = field(default_factory=list)
    """New listeners and listeners to restart."""
    listeners_to_stop: list[ListenerRunner] = field(default_factory=list)
    """Removed listeners and listeners to restart."""

    def summary(self) -> dict[str, list[str]]:
        """Return the names of the routes under `started` (started or restarted) and `removed`."""
        return _summary(self.routes_to_start, self.routes_to_stop)

    def summary_of_listeners(self) -> dict[str, list[str]]:
        """Return the names of the listeners in the same form."""
        return _summary(self.listeners_to_start, self.listeners_to_stop)


class _Named(Protocol):
    """A route or listener."""

    @property
    def name(self) -> str:
        """Its name."""


def _summary(to_start: Sequence[_Named], to_stop: Sequence[_Named]) -> dict[str, list[str]]:
    started = [each.name for each in to_start]
    return {"started": started, "removed": [each.name for each in to_stop if each.name not in started]}


def compare(old: Config, new: Config, routes: Sequence[Route], listeners: Sequence[ListenerRunner] = ()) -> Change:
    """Return the change from the configuration `old`, with which `routes` and `listeners` run, to `new`."""
    new_or_changed_clusters = {name for name, cluster in new.clusters.items() if old.clusters.get(name) != cluster}
    clusters_to_close = [name for name in old.clusters if name not in new.clusters or name in new_or_changed_clusters]
    running = {route.name: route for route in routes}
    configured = {route.name: route for route in new.routes}
    unchanged_routes = {
        name
        for name, route in running.items()
        if route.state.error is None
        and configured.get(name) == route.config
        and not route.config.clusters & new_or_changed_clusters
    }
    configured_listeners = {listener.name: listener for listener in new.listeners}
    unchanged_listeners = {
        runner.name
        for runner in listeners
        if configured_listeners.get(runner.name) == runner.config and not runner.config.clusters & new_or_changed_clusters
    }
    return Change(
        clusters_to_connect={name: cluster for name, cluster in new.clusters.items() if name in new_or_changed_clusters},
        clusters_to_close=clusters_to_close,
        routes_to_start=[route for route in new.routes if route.name not in unchanged_routes],
        routes_to_stop=[route for route in routes if route.name not in unchanged_routes],
        listeners_to_start=[listener for listener in new.listeners if listener.name not in unchanged_listeners],
        listeners_to_stop=[runner for runner in listeners if runner.name not in unchanged_listeners],
    )


def restart_warnings(initial: Config, new: Config) -> list[str]:
    """Return a warning for each option that differs from the initial configuration and takes effect only at a restart."""
    changed_options = [key for key in ("state", "http") if getattr(initial, key) != getattr(new, key)]
    return [f"`{key}` was changed, which takes effect only when the gateway is restarted" for key in changed_options]
