"""Finds the cluster or the route that the Spark options name. Runs on the driver only, where the configuration file is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mqbridge.config.cluster_choice import OptionNames, choose
from mqbridge.config.load import load
from mqbridge.config.options.route import Route
from mqbridge.config.problems import nearest
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.errors import ConfigError
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.options import OptionValues

_OPTION_NAMES = OptionNames("the option config", "the option cluster", "the option url")
"""How errors call the configuration file, the cluster and the URL."""


def resolve_cluster(values: OptionValues) -> ClusterRef:
    """Return the cluster that the options `config`, `cluster` and `url` name. Reads the configuration file.

    Raises ConfigError if the options do not name exactly one cluster, or if the URL, the file or the name is invalid.
    """
    path = values["config"]
    choice = choose(None if path is None else Path(path), values["cluster"], values["url"], _OPTION_NAMES)
    return ClusterRef(choice.name, choice.adapter.system, choice.settings)


@dataclass(frozen=True, slots=True)
class ResolvedRoute:
    """A configured route, all clusters of its configuration by name, and the topics of all its routes."""

    route: Route
    clusters: Mapping[str, ClusterRef]
    graph: TopicGraph

    @property
    def source_cluster(self) -> ClusterRef:
        """The cluster that the route reads from."""
        return self.clusters[self.route.source.cluster]


def resolve_route(values: OptionValues) -> ResolvedRoute | None:
    """Return the route of the option `route`, or None without that option.

    Raises ConfigError if the configuration is invalid or has no such route, if `config` is not set, or if `cluster` or `url` is
    set as well.
    """
    name = values["route"]
    if name is None:
        return None
    if values["config"] is None or values["cluster"] is not None or values["url"] is not None:
        raise ConfigError(
            "the option route needs config, and excludes cluster and url", hint="Set config, and do not set cluster or url"
        )
    config = load(Path(values["config"]))
    routes = {route.name: route for route in config.routes}
    if name not in routes:
        raise ConfigError(f"{values['config']} has no route {name!r}", hint=nearest(name, routes))
    clusters = {key: ClusterRef(key, cluster.system, cluster.settings) for key, cluster in config.clusters.items()}
    return ResolvedRoute(routes[name], clusters, TopicGraph.of(config))
