"""What a new configuration changes in a running one.

A cluster goes on when its own settings are the same. A route goes on when it runs, is configured as before and every cluster that
it uses goes on; a route that stopped by an error is begun again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.gateway.route import Route


@dataclass(slots=True)
class Change:
    """The difference. What is in none of these goes on untouched."""

    clusters: dict[str, ClusterConfig] = field(default_factory=dict)
    """To be reached: new, or with other settings."""
    unused: list[str] = field(default_factory=list)
    """Names of running clusters that are gone or replaced."""
    begin: list[RouteConfig] = field(default_factory=list)
    end: list[Route] = field(default_factory=list)

    def summary(self) -> dict[str, list[str]]:
        """The names of routes that were begun (again) and that are gone."""
        begun = [route.name for route in self.begin]
        return {"started": begun, "removed": [route.name for route in self.end if route.name not in begun]}


def compare(old: Config, new: Config, routes: Sequence[Route]) -> Change:
    """What is to be done for `new`, while `routes` run by `old`."""
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
    """What differs from the configuration that the process was started with and needs a restart of it."""
    changed = [key for key in ("state", "http") if getattr(started, key) != getattr(new, key)]
    return [f"`{key}` was changed, which takes effect only when the gateway is started again" for key in changed]
