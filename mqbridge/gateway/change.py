"""The difference between the running configuration and a new one.

A cluster keeps running if its settings are the same. A route keeps running if it runs, its configuration is the same and every
cluster that it uses keeps running; a route that stopped by an error is started again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.gateway.route import Route


@dataclass(slots=True)
class Change:
    """Clusters and routes to start and stop. Everything else keeps running untouched."""

    clusters: dict[str, ClusterConfig] = field(default_factory=dict)
    """Clusters to connect: new, or with changed settings."""
    unused: list[str] = field(default_factory=list)
    """Names of running clusters that were removed or replaced."""
    begin: list[RouteConfig] = field(default_factory=list)
    end: list[Route] = field(default_factory=list)

    def summary(self) -> dict[str, list[str]]:
        """Return the names of the routes that are started (again) and of those that are removed."""
        begun = [route.name for route in self.begin]
        return {"started": begun, "removed": [route.name for route in self.end if route.name not in begun]}


def compare(old: Config, new: Config, routes: Sequence[Route]) -> Change:
    """Return what has to change for `new`, while `routes` run with `old`."""
    changed = {name for name, cluster in new.clusters.items() if old.clusters.get(name) != cluster}
    replaced = [name for name in old.clusters if name not in new.clusters or name in changed]
    running = {route.name: route for route in routes}
    wanted = {route.name: route for route in new.routes}
    kept = {
        name
        for name, route in running.items()
        if route.error is None and wanted.get(name) == route.config and not route.config.clusters & changed
    }
    return Change(
        clusters={name: cluster for name, cluster in new.clusters.items() if name in changed},
        unused=replaced,
        begin=[route for route in new.routes if route.name not in kept],
        end=[route for route in routes if route.name not in kept],
    )


def not_applied(started: Config, new: Config) -> list[str]:
    """Return a warning for each changed option that takes effect only when the process is restarted."""
    changed = [key for key in ("state", "http") if getattr(started, key) != getattr(new, key)]
    return [f"`{key}` was changed, which takes effect only when the gateway is restarted" for key in changed]
