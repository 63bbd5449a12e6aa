"""The cluster that options name, read once, on the driver."""

from pathlib import Path

from mqbridge.config.chosen import Spelling, choose
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.options import OptionValues

_SPELLING = Spelling("the option config", "the option cluster", "the option url")


def chosen_cluster(values: OptionValues) -> ClusterRef:
    """Reads the configuration, whose path is of this machine. Raises ConfigError when no cluster is named, or two are."""
    path = values["config"]
    chosen = choose(None if path is None else Path(path), values["cluster"], values["url"], _SPELLING)
    return ClusterRef(chosen.name, chosen.adapter.system, chosen.settings)
