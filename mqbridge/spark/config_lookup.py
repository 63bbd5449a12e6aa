"""The cluster that options name, read once, on the driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mqbridge.config.cluster_choice import OptionNames, choose
from mqbridge.config.load import load
from mqbridge.config.options.route import Route
from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.options import OptionValues

_OPTION_NAMES = OptionNames("the option config", "the option cluster", "the option url")


def resolve_cluster(values: OptionValues) -> ClusterRef:
    """Reads the configuration, whose path is of this machine. Raises ConfigError when no cluster is named, or two are."""
    path = values["config"]
    chosen = choose(None if path is None else Path(path), values["cluster"], values["url"], _OPTION_NAMES)
    return ClusterRef(chosen.name, chosen.adapter.system, chosen.settings)


@dataclass(frozen=True, slots=True)
class ResolvedRoute:
    """A route of a configuration, and all clusters of it by name."""

    route: Route
    clusters: Mapping[str, ClusterRef]

    @property
    def source(self) -> ClusterRef:
        """The cluster that it reads from."""
        return self.clusters[self.route.source.cluster]


def resolve_route(values: OptionValues) -> ResolvedRoute | None:
    """The route that options name; None where they name none. Raises ConfigError."""
    name = values["route"]
    if name is None:
        return None
    if values["config"] is None or values["cluster"] is not None or values["url"] is not None:
        raise ConfigError("the option route goes with config, and says the cluster itself", hint="Leave cluster and url out")
    config = load(Path(values["config"]))
    routes = {route.name: route for route in config.routes}
    if name not in routes:
        raise ConfigError(f"{values['config']} has no route {name!r}", hint=nearest(name, routes))
    clusters = {key: ClusterRef(key, one.system, one.settings) for key, one in config.clusters.items()}
    return ResolvedRoute(routes[name], clusters)
